"""Calls are found by the words that their record holds, and by no others."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.ids import make_ordered_id
from mcpregistry.models import Invocation
from mcpregistry.models.call_text import INDEX, CallText
from mcpregistry.models.guards import drop_guards, install_guards
from mcpregistry.queries import call_search
from mcpregistry.queries.call_search import search_calls
from mcpregistry.services.records import search_index

pytestmark = pytest.mark.django_db


def made(*, state: InvocationState = InvocationState.SUCCEEDED, **fields: Any) -> str:
    values = {
        "id": make_ordered_id(),
        "state": state.value,
        "agent_slug": "robot",
        "server_slug": "git",
        "tool_name": "log",
        "exposed_name": "git__log",
        "arguments": json.dumps({"planet": "Märs", "path": "src/app_main.py"}, ensure_ascii=False),
        "result": json.dumps({"content": [{"type": "text", "text": "first\nsecond line"}]}),
        "origin": "http",
        "writer": "web",
        "received_at": timezone.now(),
    }
    return Invocation.objects.create(**values | fields).pk


@pytest.mark.parametrize(
    "question",
    [
        "Märs",
        "mär",
        "app main",
        "second",
        "git robot",
        "PLANET first",
        "src/app_main.py",
        "toolu 7",
    ],
)
def test_a_call_is_found_by_its_names_arguments_and_result(question: str) -> None:
    call = made(request_id="toolu_7")
    if question.isascii():
        assert search_calls(question) == [call]
    assert search_index.index_due() == (connection.vendor == "sqlite")
    assert search_calls(question) == [call]
    assert search_index.index_due() == 0


@pytest.mark.parametrize(
    "question", ["venus", "first venus", "", "  ", '"', "AND *", "(", "' OR 1"]
)
def test_what_is_not_in_it_finds_nothing_and_breaks_nothing(question: str) -> None:
    made()
    assert search_calls(question) == []


@pytest.mark.parametrize("question", ["ärger", "ÄRGER", "arger", "a\u0308rger"])
def test_a_new_call_is_found_by_the_measure_of_the_index(question: str) -> None:
    call = made(arguments='{"word": "ÄRGER"}', exposed_name="git__history")
    for _ in range(2):  # first by its text, then by the index
        if question != "arger" or connection.vendor == "sqlite":  # PostgreSQL keeps accents
            assert search_calls(question) == [call]
        assert search_calls("log") == [call]  # its server's name for it
        assert search_calls("rger") == []
        search_index.index_due()


def test_a_single_character_is_a_whole_word_and_no_beginning() -> None:
    one = made(tool_name="tool_1", arguments="{}")
    _twelve = made(tool_name="tool_12", arguments="{}")
    for _ in range(2):  # first by its text, then by the index
        assert search_calls("tool_1") == [one]
        search_index.index_due()


def test_a_call_is_found_by_its_id_and_while_it_is_open() -> None:
    ended = made()
    held = made(state=InvocationState.PENDING, arguments='{"planet":"pluto"}')
    assert search_calls(ended) == [ended]
    assert search_calls("pluto") == [held]
    Invocation.objects.filter(pk=held).update(
        state=InvocationState.REJECTED.value, reason="Not that one."
    )
    assert search_calls("pluto") == search_calls("not that") == [held]


def test_the_newest_are_found_though_others_lie_before_and_between_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(call_search, "MOST", 2)
    monkeypatch.setattr(call_search, "_NEAR", (2, 3))
    calls = [made(agent_slug="rare" if number in {0, 1, 4} else "usual") for number in range(7)]
    search_index.index_due()
    assert sorted(search_calls("usual")) == sorted(calls[5:])
    assert sorted(search_calls("rare")) == sorted([calls[1], calls[4]])
    assert search_calls("neither") == []


def test_what_retention_erases_is_no_longer_found() -> None:
    call = made()
    _ = made(agent_slug="other")
    search_index.index_due()
    Invocation.objects.update(arguments="", result="")  # as retention does
    assert search_calls("second") == []
    assert search_calls("robot") == [call]
    Invocation.objects.all().delete()
    assert search_calls("robot") == []
    assert not CallText.objects.exists()


def test_an_older_site_gets_the_words_of_its_calls() -> None:
    drop_guards()
    call = made()
    assert search_calls("second") == []
    install_guards()
    assert search_calls("second") == [call]


def test_a_restored_site_gets_its_index_anew() -> None:
    call = made()
    with connection.cursor() as cursor:
        cursor.execute(f"DROP {'TABLE' if connection.vendor == 'sqlite' else 'INDEX'} {INDEX}")
    drop_guards()
    install_guards()
    assert search_calls("second") == [call]


def test_words_that_the_index_never_had_stop_no_retention() -> None:
    drop_guards()
    call = CallText.objects.create(call_id=made(), text="second")
    install_guards()
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute(f"DELETE FROM {INDEX}")
    Invocation.objects.update(arguments="", result="")
    Invocation.objects.all().delete()
    assert not CallText.objects.filter(pk=call.pk).exists()


@pytest.mark.one_database  # the plans are SQLite's
def test_no_search_goes_through_all_calls() -> None:
    made()
    search_index.index_due()
    with CaptureQueriesContext(connection) as asked:
        search_calls("second line")
    with connection.cursor() as cursor:
        plans = [cursor.execute(f"EXPLAIN QUERY PLAN {each['sql']}").fetchall() for each in asked]
    steps = [step[3] for plan in plans for step in plan]
    scans = [step for step in steps if step.startswith("SCAN mcpregistry_")]
    assert [scan for scan in scans if "call_open" not in scan] == []
