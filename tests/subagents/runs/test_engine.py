"""A run from its question to its answer, over a scripted model and real MCP servers."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from django.test import Client, override_settings
from prometheus_client.parser import text_string_to_metric_families

from mcpregistry.db import db_call
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import Invocation, Server, Tool
from mcpregistry.services.definitions import decisions, observe
from subagents.domain.context import REFUSAL
from subagents.domain.lifecycle import Exit, RunState
from subagents.domain.outputs import handle_of
from subagents.llm.client import complete
from subagents.models import Attempt, LanguageModel, Provider, Run, StoredOutput, ToolCall, Turn
from subagents.runs import tool_calls
from subagents.services import runs
from subagents.services.accounting import list_entries
from tests.calls.conftest import add_server, tool
from tests.logs import logged
from tests.subagents.kit import ANSWER, LOOK, WORDS, Bench, calls, ready_provider, states
from tests.waiting import HANG_LIMIT, until


def served() -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """What ``GET /metrics`` of a web process says, which has done nothing of it itself."""
    with override_settings(METRICS_LOCAL=True):
        page = Client(headers={"Host": "127.0.0.1"}).get("/metrics").content.decode()
    families = text_string_to_metric_families(page)
    return {
        (each.name, frozenset(each.labels.items())): each.value
        for family in families
        for each in family.samples
    }


def rows(model: Any, run: Run) -> list[Any]:
    return list(model.objects.filter(run=run))


async def test_a_question_becomes_calls_and_an_answer(bench: Bench, worker: Any) -> None:
    def prepare() -> Run:
        bench.expert(bench.model("m", LOOK, ANSWER), uses=[bench.server()])
        return bench.start("hello")

    run = await db_call(prepare)
    run = await (await worker()).drive(run)
    assert (run.error, run.answer, run.state, run.exit) == (
        "",
        "It said hello.",
        RunState.DONE,
        Exit.ANSWER,
    )
    assert [p["arguments"] for p in bench.sent()] == [{"text": "hello"}]
    turns = await db_call(rows, Turn, run)
    assert run.input_tokens == sum(t.input_tokens for t in turns) > 0
    assert run.cost == sum(t.cost for t in turns) > 0
    (call,) = await db_call(rows, ToolCall, run)
    record = await db_call(Invocation.objects.get, pk=call.invocation)
    assert (record.origin, record.request_id, record.state) == ("run", run.pk, "succeeded")


async def test_the_model_sees_its_whitelist_and_nothing_else(bench: Bench, worker: Any) -> None:
    def prepare() -> Run:
        echo = bench.server("echo", "echo", "pid")
        bench.server("slow", "count")
        asked = calls(
            ("slow__count", {}),
            ("echo__nonsense", {}),
            ("slow::count", {}),
            ("SLOW__count", {}),
            ("count", {}),
            ("expert", {}),
            ("../slow__count", {}),
            ("slow__count\u200b", {}),
        )
        bench.expert(bench.model("m", asked, {"text": "done"}), uses=[echo])
        return bench.start()

    run = await db_call(prepare)
    run = await (await worker()).drive(run)
    assert {state for _, state in await db_call(states, run)} == {"refused"}
    assert bench.sent() == []
    assert set(bench.models.journal[0]["tools"]) == {"echo__echo", "echo__pid", "tool_output"}
    assert run.answer == "done"


async def test_broken_arguments_go_back_to_the_model(bench: Bench, worker: Any) -> None:
    def prepare() -> Run:
        bench.expert(
            bench.model("m", calls(("echo__echo", '{"text": ')), {"text": "{{ last.text }}"}),
            uses=[bench.server()],
        )
        return bench.start()

    run = await db_call(prepare)
    run = await (await worker()).drive(run)
    assert "not a JSON object" in run.answer
    assert bench.sent() == []


@pytest.mark.exhaustive
async def test_arguments_that_do_not_fit_the_tools_schema_go_back_to_the_model(
    bench: Bench, worker: Any
) -> None:
    def prepare() -> Run:
        server = add_server("echo", tool("echo", WORDS), env={"FAKE_JOURNAL": str(bench.journal)})
        wrong = calls(("echo__echo", {"text": 5}))
        right = calls(("echo__echo", {"text": "five"}))
        bench.expert(bench.model("m", wrong, right, ANSWER), uses=[server])
        return bench.start()

    run = await db_call(prepare)
    run = await (await worker()).drive(run)
    assert run.answer == "It said five."
    assert [p["arguments"] for p in bench.sent()] == [{"text": "five"}]
    refused, _ = await db_call(rows, ToolCall, run)
    assert (refused.state, '5 is not of type "string"' in refused.result) == ("refused", True)


@pytest.mark.exhaustive
async def test_a_call_that_timed_out_is_told_to_the_model_and_not_made_again(
    bench: Bench, worker: Any
) -> None:
    def prepare() -> Run:
        server = bench.server("slow", "count", request_timeout=2.0)
        asked = calls(("slow__count", {"steps": 1000, "pause": 0.1}))
        bench.expert(bench.model("m", asked, {"text": "{{ last.text }}"}), uses=[server])
        return bench.start()

    run = await db_call(prepare)
    here = await worker()
    # the time is the call's, not the start's
    await here.engine.pool.connect((await db_call(Server.objects.get)).pk)
    run = await here.drive(run)
    assert run.answer.startswith("Tool execution timed out. OUTCOME UNKNOWN")
    await until(lambda: len(bench.sent()) == 1)
    used = [
        entry for entry in await db_call(lambda: list(list_entries(run))) if entry["type"] == "tool"
    ]
    assert [(entry["status"], entry["command"]) for entry in used] == [("unknown", "count")]


@pytest.mark.exhaustive
async def test_the_last_step_offers_no_tools(bench: Bench, worker: Any) -> None:
    def prepare() -> Run:
        endless = bench.model("m", LOOK, repeat=True, final={"text": "as far as I came"})
        bench.expert(endless, uses=[bench.server()], max_steps=4)
        return bench.start()

    run = await db_call(prepare)
    run = await (await worker()).drive(run)
    assert (run.state, run.exit, run.answer) == (RunState.DONE, Exit.MAX_TURNS, "as far as I came")
    assert len(bench.models.journal) == 4
    assert [bool(e["tools"]) for e in bench.models.journal] == [True, True, True, False]
    assert len(bench.sent()) == 3


async def test_the_next_model_answers_when_the_first_cannot(bench: Bench, worker: Any) -> None:
    def prepare() -> Run:
        broke = bench.model(
            "broke", {"text": "never", "attempts": [{"status": 401, "message": "no"}]}
        )
        limited = bench.model(
            "limited", {"text": "never", "attempts": [{"status": 429, "retry_after": 60}] * 9}
        )
        good = bench.model("good", {"text": "here"})
        bench.expert(broke, limited, good)
        return bench.start()

    run = await db_call(prepare)
    run = await (await worker()).drive(run)
    assert (run.answer, run.exit) == ("here", Exit.ANSWER)
    tried = await db_call(rows, Attempt, run)
    assert [(a.model_name, a.trouble, a.retry_after) for a in tried] == [
        ("scripts/broke", "auth", None),
        ("scripts/limited", "rate_limited", 60.0),
    ]


async def test_without_any_model_the_run_says_so(bench: Bench, worker: Any) -> None:
    def prepare() -> Run:
        bench.expert(
            bench.model("broke", {"text": "x", "attempts": [{"status": 401, "message": "no"}]})
        )
        return bench.start()

    run = await db_call(prepare)
    run = await (await worker()).drive(run)
    assert (run.state, run.exit) == (RunState.FAILED, Exit.AUTH)
    assert "scripts/broke" in run.error


async def test_a_large_result_is_stored_and_read_page_by_page(bench: Bench, worker: Any) -> None:
    big = "\n".join(f"line {n}" for n in range(1, 5001))

    def prepare() -> Run:
        model = bench.model(
            "m",
            calls(("echo__echo", {"text": big})),
            calls(("tool_output", {"handle": "HANDLE", "find": "line 4321"})),
            {"text": "{{ last.text }}"},
        )
        bench.expert(model, uses=[bench.server()])
        return bench.start()

    run = await db_call(prepare)
    handle = handle_of(run.pk, "1/0")
    scenario = bench.models.script.scenarios["m"]
    scenario.turns[1]["calls"][0]["arguments"]["handle"] = handle
    run = await (await worker()).drive(run)
    assert "line 4321" in run.answer
    stored = await db_call(StoredOutput.objects.get, handle=handle)
    assert stored.bytes > 40_000
    first = (await db_call(rows, ToolCall, run))[0]
    assert len(first.result) < 5_000
    assert handle in first.result


async def test_what_the_window_cannot_hold_is_refused_and_the_model_concludes(
    bench: Bench, worker: Any
) -> None:
    def prepare() -> Run:
        model = bench.model(
            "m",
            calls(
                ("echo__echo", {"text": "x y " * 2_000}),
                ("echo__echo", {"text": "small"}),
                usage={"input": 300, "output": 4_000},
            ),
            final={"text": "concluded"},
            context_window=7_000,
            max_output=200,
        )
        bench.expert(model, uses=[bench.server()], max_result_bytes=1_000_000)
        return bench.start()

    run = await db_call(prepare)
    with logged(tool_calls) as said:
        run = await (await worker()).drive(run)
    assert (run.exit, run.answer) == (Exit.TOKEN_LIMIT, "concluded")
    asked = await db_call(rows, ToolCall, run)
    assert [c.result for c in asked] == [REFUSAL, REFUSAL]
    told = next(entry for entry in said if entry["event"] == "agent:context")
    for name in ("projected_tokens", "limit_tokens", "remaining_tokens"):
        assert asked[0].details[name] == told[name]
    labels = {
        "provider": "scripts",
        "model": "scripts/m",
        "trigger": "tool_preflight",
        "outcome": "final",
    }
    told = await db_call(served)
    assert told["ai_agent_context_guard_events_total", frozenset(labels.items())] == 1
    assert ("ai_agent_context_guard_remaining_tokens", frozenset(labels.items())) in told
    assert told["slipsnisse_turns_total", frozenset({("model", "scripts/m")})] == 2
    ends = {("expert", "expert"), ("exit", Exit.TOKEN_LIMIT.value)}
    assert told["slipsnisse_runs_total", frozenset(ends)] == 1


async def test_money_is_reserved_before_it_is_spent(bench: Bench, worker: Any) -> None:
    def prepare() -> Run:
        dear = bench.model(
            "m",
            LOOK,
            repeat=True,
            final={"text": "short of money"},
            input_price="100",
            output_price="1000",
            max_output=100,
        )
        bench.expert(dear, uses=[bench.server()], max_cost=Decimal("0.5"), max_steps=50)
        return bench.start()

    run = await db_call(prepare)
    run = await (await worker()).drive(run)
    assert run.exit == Exit.BUDGET
    assert run.cost is not None
    assert run.cost <= Decimal("0.5")


@pytest.mark.exhaustive
async def test_energy_adds_up_and_ends_a_run_in_time(bench: Bench, worker: Any) -> None:
    def prepare() -> Run:
        server = bench.server()
        Tool.objects.update(call_energy=2.5)
        model = bench.model("m", LOOK, repeat=True, final={"text": "out of energy"})
        bench.expert(model, uses=[server], max_energy=6, max_steps=50)
        return bench.start()

    run = await db_call(prepare)
    run = await (await worker()).drive(run)
    assert (run.exit, run.energy, len(bench.sent())) == (Exit.BUDGET, 7.5, 3)


async def test_what_a_server_tells_every_model_stands_once_in_the_prompt(
    bench: Bench, worker: Any
) -> None:
    prompts: list[str] = []

    async def listening(target: Any, messages: Any, tools: Any, **more: Any) -> Any:
        prompts.append(messages[0]["content"])
        return await complete(target, messages, tools, **more)

    def prepare() -> Run:
        server = bench.server("echo", "echo", "pid")
        listed = [tool("echo"), tool("pid")]
        observe.observe(server=server, listed=listed, instructions="Use short words.")
        decisions.approve_waiting(server=server, actor="test")
        bench.expert(bench.model("m", {"text": "hello"}), uses=[server])
        return bench.start()

    run = await db_call(prepare)
    await (await worker(complete=listening)).drive(run)
    (prompt,) = prompts
    assert prompt.count("## TOOL echo INSTRUCTIONS\nUse short words.") == 1


async def test_an_answer_that_fits_no_schema_gets_one_more_try(bench: Bench, worker: Any) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

    def prepare() -> Run:
        model = bench.model(
            "m", {"text": '{"n": "five"}'}, final={"text": '```json\n{"n": 5}\n```'}
        )
        bench.expert(model, output_schema=schema, uses=[bench.server()])
        return bench.start()

    run = await db_call(prepare)
    run = await (await worker()).drive(run)
    assert (run.state, json.loads(run.structured)) == (RunState.DONE, {"n": 5})
    assert len(bench.models.journal) == 2


@pytest.mark.exhaustive
async def test_an_answer_that_never_fits_ends_the_run(bench: Bench, worker: Any) -> None:
    def prepare() -> Run:
        bench.expert(
            bench.model("m", {"text": "no json"}, repeat=True), output_schema={"type": "object"}
        )
        return bench.start()

    run = await db_call(prepare)
    run = await (await worker()).drive(run)
    assert (run.state, run.exit) == (RunState.FAILED, Exit.INVALID_OUTPUT)
    assert len(bench.models.journal) == 2


@pytest.mark.exhaustive
async def test_reading_calls_go_together_and_a_writing_one_alone(bench: Bench, worker: Any) -> None:
    asked = calls(
        *(
            (f"slow__{name}", {"steps": 1, "pause": 0.3})
            for name in ("read", "read", "count", "read")
        )
    )

    def prepare() -> Run:
        server = bench.server("slow", "count", "read", read_only=["read"])
        bench.expert(bench.model("m", asked, {"text": "done"}), uses=[server])
        return bench.start()

    run = await db_call(prepare)
    run = await (await worker()).drive(run)
    records = sorted(
        await db_call(lambda: list(Invocation.objects.filter(request_id=run.pk))),
        key=lambda r: r.dispatched_at,
    )
    names = [r.tool_name for r in records]
    assert names == ["read", "read", "count", "read"]
    first, second, write, last = records
    assert second.dispatched_at < first.finished_at, "reading calls run at the same time"
    assert write.dispatched_at >= max(first.finished_at, second.finished_at)
    assert last.dispatched_at >= write.finished_at


async def start_long_call(bench: Bench, worker: Any) -> Run:
    """Start a run whose only call takes a hundred seconds; return it when the server has that
    call."""

    def prepare() -> Run:
        server = bench.server("slow", "count")
        bench.expert(
            bench.model("m", calls(("slow__count", {"steps": 1000, "pause": 0.1}))), uses=[server]
        )
        return bench.start()

    run = await db_call(prepare)
    here = await worker()
    here.runs.wake(run.pk)
    await until(lambda: bench.sent())
    return run


async def test_cancelling_reaches_the_tool_call(bench: Bench, worker: Any) -> None:
    run = await start_long_call(bench, worker)
    await db_call(runs.cancel, run_id=run.pk, actor="test")
    await until(lambda: db_call(Run.objects.exclude(finished_at=None).filter(pk=run.pk).exists))
    run = await db_call(Run.objects.get, pk=run.pk)
    assert (run.state, run.exit) == (RunState.CANCELLED, Exit.CANCELLED)
    assert await db_call(states, run) == [("slow__count", "unknown")]


@pytest.mark.exhaustive
async def test_a_cancelled_run_says_of_its_call_what_the_record_says_a_moment_later(
    bench: Bench, worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a call is recorded in the background, perhaps after the run was cancelled."""
    real = tool_calls.find_recorded_end
    looks = list[str]()

    def late(invocation: str) -> Any:
        looks.append(invocation)
        return InvocationState.DISPATCHED if len(looks) <= 3 else real(invocation)

    run = await start_long_call(bench, worker)
    monkeypatch.setattr(tool_calls, "find_recorded_end", late)
    await db_call(runs.cancel, run_id=run.pk, actor="test")
    await until(lambda: db_call(Run.objects.exclude(finished_at=None).filter(pk=run.pk).exists))
    call = await db_call(ToolCall.objects.get, run=run)
    assert len(looks) > 3
    assert call.result == (await db_call(real, call.invocation)).text


@pytest.mark.exhaustive
async def test_a_run_shows_what_it_saved(bench: Bench, worker: Any) -> None:
    def prepare() -> tuple[Run, Run]:
        server = bench.server()
        long = bench.model(
            "long", calls(("echo__echo", {"text": "word " * 1000})), {"text": "short"}
        )
        tiny = bench.model("tiny", {"text": "a long answer without any call " * 20})
        bench.expert(long, uses=[server], name="reads")
        bench.expert(tiny, name="talks")
        return bench.start(expert="reads"), bench.start(expert="talks")

    reads, talks = await db_call(prepare)
    here = await worker()
    assert (await here.drive(reads)).savings["context_saved"] > 1000
    assert (await here.drive(talks)).savings["context_saved"] < 0


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize(("price", "gain"), [("500", 1), ("0.001", -1)])
async def test_money_is_reckoned_against_the_callers_model(
    bench: Bench, worker: Any, price: str, gain: int
) -> None:
    def prepare() -> Run:
        bench.model(
            "theirs", {"text": "never asked"}, input_price=price, output_price=price, compared=True
        )
        bench.expert(bench.model("m", LOOK, ANSWER), uses=[bench.server()])
        return bench.start()

    run = await db_call(prepare)
    assert (await (await worker()).drive(run)).savings["money_saved"] * gain > 0


@pytest.mark.exhaustive
async def test_a_call_that_outlasts_the_runs_time_is_cancelled_and_the_model_concludes(
    bench: Bench, worker: Any
) -> None:
    def prepare() -> Run:
        server = bench.server("slow", "count", request_timeout=0)
        asked = calls(("slow__count", {"steps": 1000, "pause": 0.1}))
        # the test waits so long; the model must conclude in a fifth of it
        seconds = int(HANG_LIMIT / 6)
        bench.expert(
            bench.model("m", asked, final={"text": "as far as I came"}),
            uses=[server],
            max_seconds=seconds,
        )
        return bench.start()

    run = await db_call(prepare)
    here = await worker()
    # the time is the call's, not the start's
    await here.engine.pool.connect((await db_call(Server.objects.get)).pk)
    run = await here.drive(run)
    assert (run.state, run.exit, run.answer) == (RunState.DONE, Exit.TIME_LIMIT, "as far as I came")
    assert await db_call(states, run) == [("slow__count", "unknown")]
    await bench.until_told_to_stop()


@pytest.mark.exhaustive
async def test_a_model_that_stays_silent_is_left_for_the_next(bench: Bench, worker: Any) -> None:
    def prepare() -> Run:
        silent = bench.model("silent", {"text": "late", "attempts": [{"stall": True}] * 5})
        other = ready_provider("other", base_url=bench.provider.base_url)
        Provider.objects.filter(pk=bench.provider.pk).update(timeout=1)
        good = bench.model("good", {"text": "here"})
        LanguageModel.objects.filter(pk=good.pk).update(provider=other)
        bench.expert(silent, good)
        return bench.start()

    run = await db_call(prepare)
    run = await (await worker()).drive(run)
    assert (run.answer, run.exit) == ("here", Exit.ANSWER)
    assert [a.trouble for a in await db_call(rows, Attempt, run)] == ["timeout"]


@pytest.mark.parametrize("fields", [{"max_seconds": 1}])
async def test_time_that_is_over_ends_the_run(
    bench: Bench, worker: Any, fields: dict[str, Any]
) -> None:
    def prepare() -> Run:
        bench.expert(
            bench.model("m", {"text": "late", "attempts": [{"stall": True}] * 5}), **fields
        )
        return bench.start()

    run = await db_call(prepare)
    run = await (await worker()).drive(run)
    assert (run.state, run.exit) == (RunState.FAILED, Exit.TIME_LIMIT)
