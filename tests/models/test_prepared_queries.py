"""What is composed beforehand does to every kind of column what the ORM does."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import F, Model
from django.db.models.functions import Coalesce
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from mcpregistry.prepared_queries import Given, Insert, Select, Update
from subagents.llm.scripted.app import ScriptedModels
from subagents.llm.scripted.script import Script
from subagents.models import Attempt, LanguageModel, Provider, Run, StoredOutput, ToolCall, Turn
from tests.subagents.kit import Bench, confirmed
from tests.waiting import HANG_LIMIT

AWKWARD = "100 % of 'it', \"quoted\", %s ? :x \\ \r\n 🧌 ﷽"
LATE = datetime(2031, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)


def started(monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr("subagents.services.runs.wake", lambda run_id: None)
    bench = Bench("http://127.0.0.1:9", ScriptedModels(Script()), Path("none"))
    bench.provider.options = {"top_p": 0.5}
    confirmed(bench.provider)
    bench.expert(bench.model("m", {"text": "x"}, input_price="1.25"))
    return bench.start()


@pytest.fixture
def run(db: None, monkeypatch: pytest.MonkeyPatch) -> Run:
    return started(monkeypatch)


def columns(model: type[Model]) -> list[str]:
    return [field.name for field in model._meta.local_concrete_fields]


def filled(run: Run) -> dict[type[Model], dict[str, Any]]:
    """For every column of what a run writes, something that is hard to store; keys instead of
    instances."""
    asked = LanguageModel.objects.get()
    now = timezone.now()
    StoredOutput.objects.get_or_create(handle="h", run=run, text="", bytes=0, lines=1, sha256="")
    turn = {
        "run": run.pk,
        "number": 2**31 - 1,
        "model": asked.pk,
        "model_name": AWKWARD,
        "final": True,
        "note": "",
        "text": "x" * 3_000_000,
        "finish": "stop",
        "dropped_calls": 0,
        "input_tokens": 7,
        "output_tokens": 8,
        "cached_tokens": 9,
        "cache_write_tokens": 1,
        "estimated_tokens": 2,
        "cost": Decimal("123456.123456785"),
        "started_at": LATE,
        "duration_ms": 0.1 + 0.2,
        "reasoning_tokens": 3,
        "cache_saved": Decimal("-0.00000001"),
        "provider_state": AWKWARD,
    }
    attempt = {
        "run": run.pk,
        "turn_number": 1,
        "model": None,
        "model_name": "m",
        "trouble": "auth",
        "message": AWKWARD,
        "status": None,
        "retry_after": 1e-9,
        "at": now,
        "duration_ms": 3,
        "input_tokens": 7,
        "output_tokens": 8,
        "cost": Decimal("0.00000001"),
    }
    call = {
        "run": run.pk,
        "turn_number": 1,
        "index": 0,
        "provider_id": "c",
        "name": AWKWARD,
        "arguments": '{"a": "%s"}',
        "state": "done",
        "attempt": 3,
        "invocation": "i" * 32,
        "result": AWKWARD,
        "is_error": True,
        "stored": "h",
        "raw_characters": 5,
        "details": {"a": [1, None, {"ä": 1.5}], "%s": AWKWARD},
        "settled_by": "",
        "settled_by_id": 2**40,
        "started_at": now,
        "finished_at": None,
        "coerced": AWKWARD,
    }
    return {Turn: turn, Attempt: attempt, ToolCall: call}


def read(row: Model) -> dict[str, Any]:
    """Every column but the key, read anew."""
    row.refresh_from_db()
    return {
        f.name: getattr(row, f.attname)
        for f in row._meta.local_concrete_fields
        if not f.primary_key
    }


def as_keys(model: type[Model], values: dict[str, Any]) -> dict[str, Any]:
    return {model._meta.get_field(name).attname: value for name, value in values.items()}


@pytest.mark.parametrize("model", [Turn, Attempt, ToolCall])
def test_an_inserted_row_is_the_one_that_the_orm_makes(run: Run, model: Any) -> None:
    values = filled(run)[model]
    made = model.objects.create(**as_keys(model, values))
    wanted = read(made)
    made.delete()
    Insert(model)([values])
    assert read(model.objects.get()) == wanted


def test_rows_are_inserted_together_each_with_its_own_defaults(run: Run) -> None:
    insert = Insert(ToolCall)
    rows = [
        {
            "run": run.pk,
            "turn_number": 1,
            "index": i,
            "provider_id": "",
            "name": "n",
            "arguments": "",
        }
        for i in (0, 1)
    ]
    insert([rows[0], rows[1] | {"details": {"own": 1}}])
    insert([])
    first, second = ToolCall.objects.all()
    made = ToolCall.objects.create(run=run, turn_number=2, index=0, name="n")
    assert read(first) == read(made) | {"turn_number": 1}
    assert read(second) == read(first) | {"index": 1, "details": {"own": 1}}


@pytest.mark.parametrize("model", [Turn, Attempt, ToolCall])
def test_what_is_set_and_read_is_what_the_orm_sets_and_reads(run: Run, model: Any) -> None:
    values = filled(run)[model]
    plain = {
        "run": run.pk,
        "model_name": "",
        "trouble": "x",
        "at": LATE,
        "started_at": LATE,
        "duration_ms": 0,
    }
    blank = {name: value for name, value in plain.items() if name in columns(model)}
    numbers = {"number": 1, "turn_number": 5, "index": 5}
    row = model.objects.create(
        **as_keys(model, blank | {k: v for k, v in numbers.items() if k in columns(model)})
    )
    model.objects.filter(pk=row.pk).update(**values)
    wanted = read(row)
    model.objects.filter(pk=row.pk).update(**blank)

    names = [name for name in columns(model) if name != "id"]
    assert (
        Update(model.objects.filter(id=Given("key", like="id")), *names)(key=row.pk, **values) == 1
    )
    assert read(row) == wanted

    asked = model.objects.filter(id=Given("id")).values_list(*columns(model), named=True)
    (found,) = Select(asked).fetch_rows(id=row.pk)
    assert found._asdict() == model.objects.values(*columns(model)).get()


def test_every_column_of_a_run_and_of_its_models_is_read_as_the_orm_reads_it(run: Run) -> None:
    Run.objects.update(
        cost=Decimal("0.00000001"), started_at=LATE, savings={"a": [1.5]}, error=AWKWARD
    )
    for model in (Run, LanguageModel, Provider):
        row = model._default_manager.get()
        asked = model._default_manager.filter(pk=Given("id")).values_list(
            *columns(model), named=True
        )
        assert (
            Select(asked).get(id=row.pk)._asdict()
            == model._default_manager.values(*columns(model)).get()
        )
    through = LanguageModel.objects.filter(
        id__in=[Given("a", "id"), Given("b", "id")], provider__enabled=True
    )
    asked = through.values_list("provider__options", "provider__enabled", "input_price", named=True)
    (found,) = Select(asked).fetch_rows(a=LanguageModel.objects.get().pk, b=0)
    assert tuple(found) == ({"top_p": 0.5}, True, Decimal("1.25"))
    with pytest.raises(LanguageModel.DoesNotExist):
        Select(asked).get(a=0, b=0)


def test_expressions_count_on_the_row_as_it_is(run: Run) -> None:
    now = timezone.now()
    due = Run.objects.filter(
        id=Given("id"), created_at__lt=Given("now", like="created_at"), finished_at=None
    )
    update = Update(
        due,
        "reserved_cost",
        input_tokens=F("input_tokens") + Given("more", like="input_tokens"),
        energy=F("energy") + Given("drawn", like="energy"),
        started_at=Coalesce("started_at", Given("now", like="started_at")),
    )
    facts = {"id": run.pk, "reserved_cost": Decimal("0.1"), "more": 2**33, "drawn": 0.25}
    assert update(now=now, **facts) == update(now=LATE, **facts) == 1
    assert update(now=datetime(2001, 1, 1, tzinfo=UTC), **facts) == 0
    run.refresh_from_db()
    assert (run.input_tokens, run.energy, run.reserved_cost) == (2**34, 0.5, Decimal("0.1"))
    assert run.started_at == now


def test_nothing_may_be_forgotten_or_added(run: Run) -> None:
    update = Update(Run.objects.filter(id=Given("id")), "error")
    with pytest.raises(TypeError, match="error"):
        update(id=run.pk)
    with pytest.raises(TypeError, match="answer"):
        update(id=run.pk, error="", answer="")
    with pytest.raises(TypeError, match="unknown"):
        Insert(Turn)([filled(run)[Turn] | {"unknown": 1}])


def test_what_breaks_a_transaction_breaks_it_as_with_the_orm(run: Run) -> None:
    insert = Insert(Attempt)
    values = filled(run)[Attempt]
    with transaction.atomic(), pytest.raises(IntegrityError), transaction.atomic():
        insert([values, values | {"model_name": None}])
    assert not Attempt.objects.exists()
    with transaction.atomic():
        with pytest.raises(IntegrityError):
            insert([values | {"trouble": None}])
        with pytest.raises(transaction.TransactionManagementError):
            insert([values])
        transaction.set_rollback(True)
    assert not Attempt.objects.exists()


def test_django_sees_them_as_any_other_query(run: Run) -> None:
    select = Select(Run.objects.filter(id=Given("id")).values_list("error", named=True))
    heard: list[str] = []

    def hear(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        heard.append(sql)
        return execute(sql, params, many, context)

    values = filled(run)[Attempt]
    with CaptureQueriesContext(connection) as asked, connection.execute_wrapper(hear):
        select.fetch_rows(id=run.pk)
        Insert(Attempt)([values] * 2)
    assert run.pk in asked[0]["sql"]
    assert asked[1]["sql"].startswith("2 times: INSERT")
    assert len(heard) == len(asked) == 2


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads take turns after every few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_may_compose_the_same_at_once(
    live_db: None, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = started(monkeypatch).version.expert.targets.get()
    together = Barrier(4)
    named = LanguageModel.objects.filter(id=Given("id")).order_by(
        "provider__slug", "experts__agent__slug"
    )
    # composing adds the order's tables
    selects = [Select(named.values_list("name", named=True)) for _ in range(50)]

    def work() -> list[Any]:
        try:
            return [select.get(id=asked.pk) for select in selects if together.wait(HANG_LIMIT) >= 0]
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as threads:
        found = [each.result() for each in [threads.submit(work) for _ in range(4)]]
    assert found == [[("m",)] * 50] * 4


def test_threads_compose_for_themselves_and_a_closed_connection_goes_on(
    live_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = started(monkeypatch)
    update = Update(Run.objects.filter(id=Given("id")), input_tokens=F("input_tokens") + 1)
    select = Select(
        Run.objects.filter(id=Given("id")).values_list("input_tokens", "created_at", named=True)
    )

    def work() -> list[Any]:
        try:
            for _ in range(10):
                assert update(id=run.pk) == 1
            connection.close()
            return select.fetch_rows(id=run.pk)
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as threads:
        found = [each.result() for each in [threads.submit(work) for _ in range(4)]]
    assert max(rows[0].input_tokens for rows in found) == 40
    assert {rows[0].created_at for rows in found} == {run.created_at}
