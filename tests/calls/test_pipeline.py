"""One call through a real engine to a real fake server: its answer, its record, its audit, what was
sent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from django.db import OperationalError, connection
from django.utils import timezone
from structlog.processors import format_exc_info
from structlog.testing import LogCapture

from mcpregistry.api.call_answers import failure
from mcpregistry.calls import engine, pipeline
from mcpregistry.calls.call import Call, CallOutcome
from mcpregistry.calls.recording import ledger, recorder
from mcpregistry.db import db_call
from mcpregistry.domain.calls.outcome_texts import LOOK_FIRST, NOT_SENT, RECORD_LATE
from mcpregistry.domain.error_texts import TRY_AGAIN_SOON
from mcpregistry.domain.errors import DownstreamError, NotFound, QueueFullError
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.policy.decision import Decision, RuleOutcome
from mcpregistry.gateway.host_answers import RECORD_KEY, build_tool_result
from mcpregistry.models import Agent, AuditEntry, Configuration, Grant, Invocation, Server, Tool
from mcpregistry.services.access import grants
from mcpregistry.services.definitions import decisions
from mcpregistry.services.servers import lifecycle
from mcpregistry.services.upkeep.reaping import reap_calls
from tests.calls.conftest import ACTOR, Site, add_server, only_call, told, tool
from tests.waiting import HANG_LIMIT, until

Make = Callable[..., Any]
STRICT = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
ECHO = (tool("echo"), tool("refuse"), tool("pid"), tool("strict", STRICT))


def journal_env(path: Path) -> dict[str, dict[str, str]]:
    return {"env": {"FAKE_JOURNAL": str(path)}}


@pytest.fixture
def echo(live_db: None, journal: Path) -> Server:
    return add_server("echo", *ECHO, **journal_env(journal))


async def recorded(outcome: CallOutcome | None = None) -> tuple[Invocation, list[str]]:
    """The only call's row and audit entries; the row says what the caller was told."""
    row = await db_call(only_call)
    if outcome is not None:
        assert (row.id, row.state, row.error_code) == (
            outcome.invocation_id,
            outcome.state,
            outcome.error_code,
        )
    return row, await db_call(told, row.id)


async def ended() -> tuple[Invocation, list[str]]:
    """The only call once it has ended, for callers who did not wait."""
    await until(lambda: db_call(Invocation.objects.exclude(finished_at=None).exists))
    return await recorded()


# -- answers ---------------------------------------------------------------------------------------


async def test_a_call_is_answered_untouched_and_recorded_from_intent_to_end(
    site: Make, echo: Server
):
    here: Site = await site()
    outcome = await here.call(
        "echo__echo", {"b": 1, "a": "é"}, meta={"vendor/x": 1}, host_name="h", request_id="7"
    )
    assert outcome.state == InvocationState.SUCCEEDED
    assert outcome.result is not None
    assert outcome.result["structuredContent"]["arguments"] == {"a": "é", "b": 1}
    assert (outcome.result["_meta"], outcome.result["unknownKey"]) == ({"kept": True}, [1])
    row, kinds = await recorded(outcome)
    assert kinds == ["call.dispatched", "call.succeeded"]
    assert row.arguments == '{"a":"é","b":1}'
    assert (row.agent_slug, row.endpoint_slug, row.server_slug, row.tool_name) == (
        "ann",
        "default",
        "echo",
        "echo",
    )
    assert (row.host_name, row.request_id, row.origin, row.outcome) == ("h", "7", "http", "allow")
    assert row.received_at <= row.dispatched_at <= row.finished_at
    assert row.lease_until is None
    assert [sent["arguments"] for sent in here.sent()] == [{"a": "é", "b": 1}]


@pytest.mark.one_database
async def test_a_tool_may_be_called_by_its_own_name_too(site: Make, echo: Server):
    here = await site()
    assert (await here.call("echo::echo")).state == InvocationState.SUCCEEDED


@pytest.mark.one_database
async def test_a_tools_own_error_is_the_answer(site: Make, live_db: None, journal: Path):
    await db_call(add_server, "hostile", tool("shapeless"))
    here = await site()
    result = {"content": [], "isError": True}
    outcome = await here.call("hostile__shapeless", {"result": result})
    assert (outcome.state, outcome.result) == (InvocationState.TOOL_ERROR, result)
    assert (await recorded(outcome))[1] == ["call.dispatched", "call.tool_error"]


@pytest.mark.one_database
async def test_a_json_rpc_error_is_a_tool_error_with_the_servers_words(site: Make, echo: Server):
    here = await site()
    outcome = await here.call("echo__refuse")
    assert (outcome.state, outcome.error_code) == (InvocationState.TOOL_ERROR, "TOOL_CALL_FAILED")
    assert "no such thing" in outcome.message
    assert "Correct the call as described in the server's message" in outcome.remedy
    assert (await recorded(outcome))[1] == ["call.dispatched", "call.tool_error"]


@pytest.mark.exhaustive(one_in=4)
@pytest.mark.one_database
@pytest.mark.parametrize("result", [[1, 2], None, "text"])
async def test_an_answer_that_is_no_object_is_unknown_never_success(
    site: Make, live_db: None, result: Any
):
    await db_call(add_server, "hostile", tool("shapeless"))
    here = await site()
    outcome = await here.call("hostile__shapeless", {"result": result})
    assert (outcome.state, outcome.error_code, outcome.result) == (
        InvocationState.UNKNOWN,
        "PROTOCOL_ERROR",
        None,
    )
    assert (await recorded(outcome))[1] == ["call.dispatched", "call.unknown"]


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("sent", "remedy"), [(True, LOOK_FIRST), (False, f"{TRY_AGAIN_SOON} {NOT_SENT}")]
)
async def test_database_outage_during_a_call_asks_for_a_repetition_only_if_nothing_was_sent(
    site: Make, echo: Server, sent: bool, remedy: str
):
    here = await site()

    async def fail(call: Call, *, on_sent: Callable[[], None]) -> dict[str, Any]:
        if sent:
            on_sent()
        raise OperationalError("away")

    here.engine.pipeline.execution.dispatchers = {"downstream": fail}
    outcome = await here.call("echo__echo")
    assert (outcome.error_code, outcome.remedy) == ("UNAVAILABLE", remedy)


# -- refusals --------------------------------------------------------------------------------------


async def refused(here: Site, name: str, arguments: dict[str, Any], code: str) -> CallOutcome:
    outcome = await here.call(name, arguments)
    assert (outcome.state, outcome.error_code) == (InvocationState.DENIED, code)
    row, kinds = await recorded(outcome)
    assert kinds == ["call.denied"]
    assert row.dispatched_at is None
    assert here.sent() == []
    return outcome


async def test_absent_and_ungranted_tools_look_the_same(site: Make, echo: Server, journal: Path):
    def other() -> None:
        add_server("echo", tool("echo"), slug="secret", **journal_env(journal))
        Grant.objects.filter(server__slug="secret").delete()

    await db_call(other)
    here = await site()
    absent = await here.call("echo__absent")
    ungranted = await here.call("secret__echo")
    assert absent.error_code == ungranted.error_code == "NOT_FOUND"
    assert absent.message.replace("echo__absent", "X") == ungranted.message.replace(
        "secret__echo", "X"
    )
    assert await db_call(lambda: set(Invocation.objects.values_list("state", "server_slug"))) == {
        ("denied", "")
    }
    assert here.sent() == []


@pytest.mark.exhaustive(one_in=4)
@pytest.mark.one_database
@pytest.mark.parametrize(
    "name", ["echo_echo", "echo__ech", "echo__echo ", "ECHO__echo", "", "echo::", "echo__echo\x00"]
)
async def test_a_name_must_be_exact(site: Make, echo: Server, name: str):
    await refused(await site(), name, {}, "NOT_FOUND")


@pytest.mark.one_database
async def test_arguments_beside_the_pins_are_denied_and_those_within_run(site: Make, echo: Server):
    def pin() -> None:
        Grant.objects.all().delete()
        grant = Grant(
            agent=Agent.objects.get(),
            tool=Tool.objects.get(name="echo"),
            argument_pins={"repo": "docs"},
        )
        grants.save_grant(grant=grant, actor=ACTOR)

    await db_call(pin)
    here = await site()
    await refused(here, "echo__echo", {"repo": "main"}, "DENIED")
    assert (
        await here.call("echo__echo", {"repo": "docs", "more": 1})
    ).state == InvocationState.SUCCEEDED
    assert (await here.call("echo__pid", {})).error_code == "NOT_FOUND"


async def test_a_grant_that_ran_out_after_the_list_was_made_no_longer_counts(
    site: Make, echo: Server
):
    here: Site = await site()
    catalogue = here.engine.get_catalogue("default", "ann")
    past = tuple(replace(grant, expires_at=1.0) for grant in catalogue.agent.grants)
    stale = replace(catalogue, agent=replace(catalogue.agent, grants=past))
    here.engine.get_catalogue = lambda *_: stale  # type: ignore[method-assign]
    await refused(here, "echo__echo", {}, "DENIED")


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.one_database
@pytest.mark.parametrize("arguments", [{}, {"n": "1"}, {"n": 1, "m": 2}, {"n": 1.5}, {"n": None}])
async def test_arguments_that_do_not_fit_the_schema_are_refused(
    site: Make, echo: Server, arguments: dict[str, Any]
):
    outcome = await refused(await site(), "echo__strict", arguments, "ARGUMENTS_INVALID")
    assert outcome.remedy


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.attack
@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), -float("inf"), nested(5000), 10**5000],
    ids=["nan", "inf", "-inf", "deep5000", "int5000"],
)
async def test_values_that_json_does_not_have_are_refused_and_still_recorded(
    site: Make, echo: Server, value: Any
):
    await refused(await site(), "echo__echo", {"v": value}, "ARGUMENTS_INVALID")


@pytest.mark.exhaustive(one_in=6)
@pytest.mark.attack
@pytest.mark.parametrize(
    "value",
    [
        "a\x00b",
        10**400,
        -(10**30),
        1e308,
        5e-324,
        "\u202e",
        "",
        "\u2028",
        {"\x00": {"": None}},
        nested(60),
        "ü" * 9000,
    ],
    ids=lambda value: type(value).__name__,
)
async def test_odd_but_honest_values_pass_exactly(site: Make, echo: Server, value: Any):
    here: Site = await site()
    outcome = await here.call("echo__echo", {"v": value})
    assert outcome.state == InvocationState.SUCCEEDED
    assert here.sent()[0]["arguments"] == {"v": value}
    assert outcome.result is not None
    assert outcome.result["structuredContent"]["arguments"] == {"v": value}


@pytest.mark.attack
async def test_a_lone_surrogate_is_refused_or_sent_but_never_lost(site: Make, echo: Server):
    here: Site = await site()
    outcome = await here.call("echo__echo", {"v": "\ud800"})
    row, _ = await recorded(outcome)
    assert outcome.state in (InvocationState.DENIED, InvocationState.NOT_SENT)
    assert here.sent() == []
    assert row.arguments == '{"v":"\\ud800"}'


@pytest.mark.exhaustive(one_in=6)
@pytest.mark.one_database
@pytest.mark.attack
@pytest.mark.parametrize(
    "kind", ["nan", "infinity", "overflow", "absurd_int", "bottomless", "deep"]
)
async def test_an_answer_that_cannot_be_read_is_unknown(site: Make, live_db: None, kind: str):
    await db_call(add_server, "hostile", tool("poison"))
    here = await site()
    outcome = await here.call("hostile__poison", {"kind": kind})
    assert outcome.state == InvocationState.UNKNOWN
    await recorded(outcome)


@pytest.mark.one_database
async def test_half_a_character_in_an_answer_costs_that_character_only(site: Make, live_db: None):
    await db_call(add_server, "hostile", tool("poison"))
    here = await site()
    outcome = await here.call("hostile__poison", {"kind": "surrogate"})
    assert outcome.state == InvocationState.SUCCEEDED
    assert "\N{REPLACEMENT CHARACTER}" in str(outcome.result)
    await recorded(outcome)


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.attack
@pytest.mark.parametrize("kind", ["nul", "huge_int", "big_int", "duplicate_key"])
async def test_an_odd_answer_is_recorded(site: Make, live_db: None, kind: str):
    await db_call(add_server, "hostile", tool("poison"))
    here = await site()
    outcome = await here.call("hostile__poison", {"kind": kind})
    assert outcome.state == InvocationState.SUCCEEDED
    row, _ = await recorded(outcome)
    assert row.result_bytes == len(row.result) > 10


# -- policy ----------------------------------------------------------------------------------------


def policy(outcome: Any) -> Callable[[Any], Decision]:
    return lambda question: Decision(outcome, "because")


@pytest.mark.one_database
async def test_a_rule_that_denies_is_told_with_its_reason(site: Make, echo: Server):
    outcome = await refused(await site(policy=policy(RuleOutcome.DENY)), "echo__echo", {}, "DENIED")
    assert "because" in outcome.message


@pytest.mark.one_database
async def test_a_rule_that_fails_denies_and_its_text_stays_inside(site: Make, echo: Server):
    def broken(question: Any) -> Decision:
        raise ValueError("hunter2")

    outcome = await refused(await site(policy=broken), "echo__echo", {}, "DENIED")
    assert "hunter2" not in outcome.message
    assert "hunter2" not in (await recorded(outcome))[0].reason


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.one_database
@pytest.mark.parametrize("answer", [None, "allow", Decision("maybe", ""), True])  # type: ignore[arg-type]
async def test_a_rule_that_answers_nonsense_denies(site: Make, echo: Server, answer: Any):
    await refused(await site(policy=lambda question: answer), "echo__echo", {}, "DENIED")


@pytest.mark.one_database
async def test_a_fault_of_our_own_refuses_the_call_and_tells_no_secret(
    site: Make, echo: Server, monkeypatch: pytest.MonkeyPatch
):
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("hunter2")

    monkeypatch.setattr("mcpregistry.calls.stages.check_call", broken)
    log = LogCapture()
    monkeypatch.setattr(
        pipeline, "log", structlog.wrap_logger(None, processors=[format_exc_info, log])
    )
    outcome = await refused(await site(), "echo__echo", {}, "DENIED")
    assert "hunter2" not in outcome.message + outcome.remedy
    (entry,) = [each for each in log.entries if each["event"] == "call.crashed"]
    assert (entry["call"], entry["log_level"]) == (outcome.invocation_id, "error")
    assert entry["exception"].endswith("ZeroDivisionError: hunter2")


# -- budgets and limits ----------------------------------------------------------------------------


@pytest.mark.one_database
async def test_calls_beyond_the_rate_are_refused_with_the_time_to_wait(site: Make, echo: Server):
    await db_call(lambda: Agent.objects.update(calls_per_minute=2))
    here: Site = await site()
    outcomes = [await here.call("echo__echo") for _ in range(3)]
    assert [outcome.state for outcome in outcomes] == ["succeeded", "succeeded", "denied"]
    assert outcomes[2].error_code == "RATE_LIMITED"
    assert " s." in outcomes[2].remedy
    assert len(here.sent()) == 2


async def test_a_flood_of_refusals_fills_no_disk_and_is_counted(site: Make, echo: Server):
    """A token that leaked may not write a row for each call of a name that does not exist."""
    await db_call(lambda: Agent.objects.update(calls_per_minute=2))
    here: Site = await site()
    outcomes = [await here.call("echo__absent") for _ in range(100)]
    assert [outcome.error_code for outcome in outcomes] == ["NOT_FOUND"] * 2 + ["RATE_LIMITED"] * 98
    ids = await db_call(lambda: set(Invocation.objects.values_list("pk", flat=True)))
    assert len(ids) == 3
    assert {outcome.invocation_id for outcome in outcomes} == ids, (
        "whoever was refused finds a record of it"
    )
    here.engine.refusals.close()
    await until(lambda: db_call(Invocation.objects.exclude(pk__in=ids).exists))
    last = await db_call(lambda: Invocation.objects.exclude(pk__in=ids).get())
    assert (last.state, last.error_code) == ("denied", "RATE_LIMITED")
    assert "97 more calls" in last.reason


@pytest.mark.one_database
async def test_an_oversize_answer_is_a_typed_error(site: Make, live_db: None):
    await db_call(add_server, "hostile", tool("big"), max_message_bytes=10_000)
    here = await site()
    outcome = await here.call("hostile__big", {"size": 50_000})
    assert (outcome.state, outcome.error_code) == (InvocationState.UNKNOWN, "RESOURCE_LIMIT")
    await recorded(outcome)


async def test_a_long_result_is_kept_in_part_and_its_size_in_full(site: Make, live_db: None):
    await db_call(add_server, "hostile", tool("big"))
    here = await site()
    outcome = await here.call("hostile__big", {"size": 300_000})
    row, _ = await recorded(outcome)
    assert row.result_bytes > 300_000 > len(row.result)


@pytest.mark.one_database
async def test_a_timeout_after_sending_is_unknown(site: Make, live_db: None, journal: Path):
    limit = HANG_LIMIT / 40  # longer on a slow machine, which has to send the call within it
    server = await db_call(
        lambda: add_server("slow", tool("count"), request_timeout=limit, **journal_env(journal))
    )
    here: Site = await site()
    await here.engine.pool.connect(server.pk)  # the time of a call is that of the start as well
    outcome = await here.call("slow__count", {"steps": 1000, "pause": 0.1})
    assert (outcome.state, outcome.error_code) == (InvocationState.UNKNOWN, "TIMEOUT")
    await here.until_sent()
    assert len(here.sent()) == 1


@pytest.mark.one_database
async def test_a_server_that_cannot_start_means_not_sent(site: Make, live_db: None):
    await db_call(lambda: add_server("crash", tool("pid"), env={"FAKE_CRASH": "start"}))
    here = await site()
    outcome = await here.call("crash__pid")
    assert (outcome.state, outcome.error_code) == (InvocationState.NOT_SENT, "CONNECTION_FAILED")
    row, kinds = await recorded(outcome)
    assert kinds == ["call.dispatched", "call.not_sent"]
    text = build_tool_result(outcome, legacy=False)["content"][0]["text"]
    assert text.startswith("NOT SENT (CONNECTION_FAILED): ")
    for said in (text, failure(outcome), row.reason):
        assert NOT_SENT in said


@pytest.mark.one_database
async def test_a_server_that_dies_in_the_call_leaves_it_unknown_and_the_next_call_works(
    site: Make, live_db: None, journal: Path
):
    await db_call(lambda: add_server("crash", tool("crash"), tool("pid"), **journal_env(journal)))
    here: Site = await site()
    assert (await here.call("crash__pid")).state == InvocationState.SUCCEEDED
    outcome = await here.call("crash__crash")
    assert (outcome.state, outcome.error_code) == (InvocationState.UNKNOWN, "CONNECTION_FAILED")
    assert [sent["name"] for sent in here.sent()] == ["pid", "crash"]
    told_so = build_tool_result(outcome, legacy=False)
    for said in (
        told_so["content"][0]["text"],
        told_so["structuredContent"]["remedy"],
        failure(outcome),
        (await db_call(lambda: Invocation.objects.get(pk=outcome.invocation_id))).reason,
    ):
        assert LOOK_FIRST in said, "a model repeats what it does not know to be unknown"
    assert told_so["content"][0]["text"].startswith("OUTCOME UNKNOWN (CONNECTION_FAILED): ")

    async def works() -> bool:
        return (await here.call("crash__pid")).state == InvocationState.SUCCEEDED

    await until(works)


@pytest.mark.one_database
async def test_of_a_tool_that_is_confirmed_to_only_read_an_unknown_call_may_be_repeated(
    site: Make, live_db: None
):
    def prepare() -> None:
        add_server("crash", tool("crash"))
        Tool.objects.filter(name="crash").update(read_only=True)

    await db_call(prepare)
    outcome = await (await site()).call("crash__crash")
    assert outcome.state == InvocationState.UNKNOWN
    assert "only reads" in outcome.remedy
    assert "Do not repeat" not in outcome.remedy


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.one_database
@pytest.mark.parametrize(("idempotent", "times"), [(False, 1), (True, 2)])
async def test_only_a_tool_marked_idempotent_is_ever_sent_again(
    site: Make, live_db: None, journal: Path, idempotent: bool, times: int
):
    def prepare() -> None:
        add_server("crash", tool("crash"), tool("pid"), resend="always", **journal_env(journal))
        Tool.objects.filter(name="crash").update(idempotent=idempotent)

    await db_call(prepare)
    here: Site = await site()
    assert (await here.call("crash__pid")).state == InvocationState.SUCCEEDED
    outcome = await here.call("crash__crash")
    assert outcome.state == InvocationState.UNKNOWN
    assert [sent["name"] for sent in here.sent()].count("crash") == times


# -- cancelling and stopping -----------------------------------------------------------------------


async def test_a_caller_that_leaves_at_once_leaves_one_record_and_nothing_is_sent(
    site: Make, echo: Server
):
    here: Site = await site()
    caller = asyncio.create_task(here.call("echo__echo"))
    await asyncio.sleep(0)  # the caller waits, the pipeline has not taken its first step
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    row, kinds = await ended()
    assert (row.state, row.error_code) == ("not_sent", "CANCELLED")
    assert kinds == ["call.dispatched", "call.not_sent"]
    assert here.sent() == []


async def test_a_caller_that_leaves_after_sending_leaves_the_end_unknown(
    site: Make, live_db: None, journal: Path
):
    await db_call(lambda: add_server("slow", tool("count"), **journal_env(journal)))
    here: Site = await site()
    caller = asyncio.create_task(here.call("slow__count", {"steps": 1000, "pause": 0.1}))
    await here.until_sent()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    row, kinds = await ended()
    assert (row.state, row.error_code) == ("unknown", "CANCELLED")
    assert kinds == ["call.dispatched", "call.unknown"]


@pytest.mark.fault
async def test_whenever_callers_leave_each_call_ends_exactly_once(site: Make, echo: Server):
    """Cancel after 0, 1, 2, … turns of the loop: at every stage of the pipeline, on the way in and
    out."""
    here: Site = await site()
    await here.call("echo__echo", {"warm": 1})

    async def leave_after(turns: int) -> None:
        caller = asyncio.create_task(here.call("echo__echo", {"turns": turns}))
        for _ in range(turns):
            await asyncio.sleep(0.0001 * (turns % 7))
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)

    await asyncio.gather(*(leave_after(turns) for turns in range(80)))
    await here.engine.stop()
    rows = await db_call(lambda: list(Invocation.objects.values_list("id", "state", "arguments")))
    assert len(rows) == 80  # one of the 80 left before it had called at all, and one was to warm up
    assert {state for _, state, _ in rows} <= {"succeeded", "not_sent", "unknown"}
    sent = [str(params["arguments"].get("turns")) for params in here.sent()]
    assert len(sent) == len(set(sent))
    never = {arguments for _, state, arguments in rows if state == "not_sent"}
    assert not never & {f'{{"turns":{turns}}}' for turns in sent}


async def test_a_stopping_engine_refuses_new_calls_and_lets_running_ones_end(
    site: Make, live_db: None, journal: Path
):
    await db_call(lambda: add_server("slow", tool("count"), **journal_env(journal)))
    here: Site = await site()
    running = asyncio.create_task(here.call("slow__count", {"steps": 10, "pause": 0.05}))
    await here.until_sent()
    stopping = asyncio.create_task(here.engine.stop())
    await asyncio.sleep(0)
    with pytest.raises(QueueFullError):
        await here.call("slow__count")
    assert (await running).state == InvocationState.SUCCEEDED
    await stopping
    await recorded(await running)


async def test_a_call_that_outlasts_the_drain_is_unknown_and_its_caller_hears_of_it(
    site: Make, live_db: None, journal: Path
):
    await db_call(lambda: add_server("slow", tool("count"), **journal_env(journal)))
    here: Site = await site()
    running = asyncio.create_task(here.call("slow__count", {"steps": 1000, "pause": 0.1}))
    await here.until_sent()
    here.engine.begin_stop(0.1)
    await here.engine.stop()
    with pytest.raises(DownstreamError, match="stopped") as caught:
        await running
    assert caught.value.sent
    row, kinds = await recorded()
    assert (row.state, kinds) == ("unknown", ["call.dispatched", "call.unknown"])


# -- evidence --------------------------------------------------------------------------------------


@pytest.mark.one_database
async def test_the_binding_changes_with_everything_that_is_decided_on(site: Make, echo: Server):
    bindings: list[str] = []

    async def binding(here: Site, name: str, arguments: dict[str, Any]) -> str:
        outcome = await here.call(name, arguments)
        return await db_call(lambda: Invocation.objects.get(id=outcome.invocation_id).binding)

    here = await site()
    bindings.append(await binding(here, "echo__echo", {"a": 1}))
    assert await binding(here, "echo__echo", {"a": 1}) == bindings[0]
    bindings.append(await binding(here, "echo__echo", {"a": 2}))
    bindings.append(await binding(here, "echo__pid", {"a": 1}))
    await db_call(lambda: Server.objects.update(revision=2))
    await db_call(here.engine.live.refresh)
    bindings.append(await binding(here, "echo__echo", {"a": 1}))
    assert len(set(bindings)) == 4


@pytest.mark.one_database
async def test_no_secret_of_a_server_reaches_a_record(site: Make, live_db: None, journal: Path):
    env = {"FAKE_JOURNAL": str(journal), "API_TOKEN": "canary-7e1f"}
    await db_call(lambda: add_server("echo", *ECHO, env=env))
    here: Site = await site()
    await here.call("echo__echo", {"a": 1})
    await here.engine.stop()

    def everything() -> str:
        return repr(
            [*Invocation.objects.values(), *AuditEntry.objects.values(), *Server.objects.values()]
        )

    assert "canary-7e1f" not in await db_call(everything)


async def test_an_expired_grant_disappears_from_the_list_in_time(
    site: Make, echo: Server, monkeypatch: pytest.MonkeyPatch
):
    def expire() -> None:
        Grant.objects.update(expires_at=timezone.now() + timedelta(hours=1))

    await db_call(expire)
    here: Site = await site()
    assert here.engine.get_catalogue("default", "ann").entries
    now = time.time()
    # and nothing has changed
    monkeypatch.setattr(engine, "time", SimpleNamespace(time=lambda: now + 3_600))
    assert not here.engine.get_catalogue("default", "ann").entries


# -- the database fails ----------------------------------------------------------------------------


async def begun(site: Make) -> Site:
    """A site whose recorder has written that it began: the next commit is that of the next call."""
    here: Site = await site()
    started = AuditEntry.objects.filter(kind="writer.started", writer=here.engine.recorder.writer)
    await until(lambda: db_call(started.all().exists))
    return here


class Outage:
    """Commits fail while ``on``; ``after`` lets so many through first. ``written``: they say so
    after writing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, written: bool = False) -> None:
        self.on = False
        self.after = 0
        self.tries = 0
        self._written = written
        self._real = ledger.BACKENDS[connection.vendor]
        monkeypatch.setitem(ledger.BACKENDS, connection.vendor, self._commit)

    def _commit(self, work: ledger.Work, *claims: Any) -> ledger.Changed:
        if self.on and self.after <= 0:
            self.tries += 1
            if self._written and work:
                self._real(work, *claims)
            raise OperationalError("no space left on device: hunter2")
        self.after -= 1
        return self._real(work, *claims)


@pytest.mark.fault
async def test_what_cannot_be_recorded_is_not_sent_and_when_it_can_it_is(
    site: Make, echo: Server, monkeypatch: pytest.MonkeyPatch
):
    outage = Outage(monkeypatch)
    here: Site = await site()
    await here.call("echo__echo", {"n": 1})
    outage.on = True
    outcomes = await asyncio.gather(*(here.call("echo__echo", {"n": n}) for n in range(10, 30)))
    assert {(outcome.state, outcome.error_code) for outcome in outcomes} == {
        (InvocationState.NOT_SENT, "NOT_RECORDED")
    }
    refusal = await here.call("echo__absent")
    assert (refusal.state, refusal.error_code) == (InvocationState.DENIED, "NOT_RECORDED")
    assert not any("hunter2" in outcome.message for outcome in outcomes)
    outage.on = False
    assert (await here.call("echo__echo", {"n": 2})).state == InvocationState.SUCCEEDED
    assert [sent["arguments"]["n"] for sent in here.sent()] == [1, 2]


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.fault
@pytest.mark.parametrize(
    "written", [False, True], ids=["nothing was written", "it was written after all"]
)
async def test_an_end_that_cannot_be_recorded_is_told_to_be_late_and_recorded_once_as_soon_as_it_can_be(
    site: Make, echo: Server, monkeypatch: pytest.MonkeyPatch, written: bool
):
    here: Site = await site()
    await here.call("echo__echo", {"n": 1})
    outage = Outage(monkeypatch, written=written)
    # the intent passes, the end does not
    outage.on = True
    outage.after = 1
    outcome = await here.call("echo__echo", {"n": 2})
    assert (outcome.state, bool(outcome.result), outcome.late) == (
        InvocationState.SUCCEEDED,
        True,
        True,
    )
    assert build_tool_result(outcome, legacy=False)["_meta"][RECORD_KEY] == RECORD_LATE
    outage.on = False

    def read() -> Invocation:
        return Invocation.objects.get(id=outcome.invocation_id)

    async def is_written() -> bool:
        return (await db_call(read)).state == "succeeded" and not here.engine.recorder.late

    await until(is_written)
    row = await db_call(read)
    assert (row.result_bytes > 0, row.lease_until) == (True, None)
    assert await db_call(told, row.id) == ["call.dispatched", "call.succeeded"]
    assert len(here.sent()) == 2


@pytest.mark.fault
async def test_an_end_that_is_late_when_the_process_ends_is_tried_for_a_while(
    site: Make, echo: Server, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(recorder, "FLUSH_SECONDS", HANG_LIMIT)
    here = await begun(site)
    outage = Outage(monkeypatch)
    outage.on = True
    outage.after = 1
    outcome = await here.call("echo__echo", {"n": 2})
    assert outcome.late
    closing = asyncio.get_running_loop().run_in_executor(None, here.engine.recorder.close)
    failed = outage.tries
    await until(lambda: outage.tries != failed)
    outage.on = False
    await closing
    assert (await recorded())[0].state == "succeeded"


@pytest.mark.fault
async def test_a_process_that_cannot_write_its_last_ends_stops_all_the_same_and_the_reaper_does_not_guess_why(
    site: Make, echo: Server, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(recorder, "FLUSH_SECONDS", 0.3)
    here = await begun(site)
    outage = Outage(monkeypatch)
    outage.on = True
    outage.after = 1
    assert (await here.call("echo__echo", {"n": 2})).late
    await asyncio.wait_for(
        asyncio.get_running_loop().run_in_executor(None, here.engine.recorder.close), HANG_LIMIT
    )
    outage.on = False
    row, _ = await recorded()
    assert row.state == "dispatched"
    assert await db_call(reap_calls, row.lease_until + timedelta(seconds=1)) == 1
    row, _ = await recorded()
    assert row.state == "unknown"
    assert row.reason == f"No outcome of this call was recorded in time. {LOOK_FIRST}"


# -- changes under way -----------------------------------------------------------------------------


@pytest.mark.exhaustive(one_in=6)
@pytest.mark.fault
@pytest.mark.parametrize("how", ["disable", "withdraw", "reject", "switch off", "disable agent"])
async def test_soon_after_a_change_no_call_gets_through_whatever_runs_meanwhile(
    site: Make, echo: Server, how: str
):
    here: Site = await site()
    stop = asyncio.Event()
    sent_at: list[tuple[float, str]] = []

    async def caller() -> None:
        while not stop.is_set():
            began = time.monotonic()
            try:
                sent_at.append((began, (await here.call("echo__echo", {"at": began})).state))
            except NotFound:
                sent_at.append((began, "refused"))
            await asyncio.sleep(0.01)

    callers = [asyncio.create_task(caller()) for _ in range(3)]
    await here.until_sent(5)
    await db_call(_withdraw, how)
    revision = await db_call(lambda: Configuration.objects.get().revision)
    # how soon: test_live_configuration
    await until(lambda: here.engine.live.current.revision >= revision)
    heard = time.monotonic()
    await until(lambda: sum(at > heard for at, _ in sent_at) >= 9)
    stop.set()
    await asyncio.gather(*callers)
    assert {state for at, state in sent_at if at > heard} <= {"denied", "refused"}
    assert not [sent for sent in here.sent() if sent["arguments"]["at"] > heard]


def _withdraw(how: str) -> None:
    tool_row = Tool.objects.get(name="echo")
    if how == "disable":
        lifecycle.disable_server(server=Server.objects.get(), actor=ACTOR)
    elif how == "withdraw":
        grants.withdraw_grant(grant=Grant.objects.get(), actor=ACTOR)
    elif how == "reject":
        assert tool_row.pinned is not None
        decisions.reject(definition=tool_row.pinned, actor=ACTOR)
    elif how == "switch off":
        tool_row.enabled = False
        decisions.save_tool(tool=tool_row, actor=ACTOR)
    else:
        Agent.objects.update(enabled=False)
