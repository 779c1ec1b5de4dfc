"""Requests on which a model works: by a run whose tools are the sub-agent's operations. The worst
it can do is be of no use."""

from __future__ import annotations

from typing import Any

import pytest

from mcpregistry.db import db_call
from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.models import Server
from subagents.domain.maintenance import Kind, State, Substate
from subagents.maintenance import proposals, queue, request_lease
from subagents.models import (
    ExpertTool,
    MaintenanceMessage,
    MaintenanceRequest,
    Run,
    ToolCall,
    TrialReport,
)
from tests.calls.conftest import add_server, tool
from tests.subagents.kit import Bench, calls
from tests.subagents.maintenance.conftest import ask, ended, now
from tests.subagents.maintenance.test_listed import listed
from tests.subagents.maintenance.test_manager import begun, children, mute
from tests.subagents.maintenance.test_trials import newcomer
from tests.subagents.runs.conftest import bench, worker, working
from tests.waiting import until

__all__ = ["bench", "worker", "working"]
FINISH = calls(("finish_request", {"summary": "All is well."}))
BYE = {"text": "Done."}


def works_on(
    bench: Bench, kind: Kind, *turns: Any, model: dict[str, Any] | None = None, **fields: Any
) -> ExpertTool:
    """An expert tool, with nothing granted, whose model works on requests of this kind."""
    asked = bench.model("keeper", *turns, **(model or {}))
    return bench.expert(asked, name="keeper", maintains=[kind], **fields)


def made() -> list[tuple[str, str, str]]:
    """What the model has called, how that ended, and what it was told."""
    return list(
        ToolCall.objects.order_by("turn_number", "index").values_list("name", "state", "result")
    )


@pytest.mark.exhaustive
async def test_a_model_tries_a_server_step_by_step_and_can_only_make_the_proposal_stricter(
    bench: Bench, manager: Any, working: Any
) -> None:
    stricter = [
        {"tool": "look", "rule": "hide", "why": "nobody needs it"},
        {"tool": "remove", "rule": "ask", "why": "x"},
    ]
    await db_call(
        works_on,
        bench,
        Kind.TRY,
        calls(("start_trial", {"protocol": "legacy"}), ("start_trial", {"protocol": "modern"})),
        calls(
            ("start_trial", {"protocol": "legacy"}),
            ("call_reading_tool", {"tool": "listing", "arguments": {"p": "/srv/list"}}),
            ("call_reading_tool", {"tool": "remove", "arguments": {}}),
            ("call_reading_tool", {"tool": "gone", "arguments": {}}),
        ),
        calls(
            ("propose_rules", {"rules": stricter}),
            ("propose_rules", {"rules": [{"tool": "gone", "rule": "hide", "why": ""}]}),
            ("propose_rules", {"rules": [{"tool": "look", "rule": "allow", "why": ""}]}),
            ("search_servers", {"query": "x"}),
        ),
        calls(("finish_request", {"summary": "Odd.", "concerns": ["look is odd"]})),
        BYE,
    )
    await db_call(newcomer, env={"NEWCOMER_WITHOUT": "fetch keys helper"})
    await working()
    done = await ended(await manager(), await db_call(ask, Kind.TRY, server="new"))
    assert done.state == State.COMPLETED, done.error
    told = [(name, state) for name, state, _ in await db_call(made)]
    assert told == [
        ("start_trial", "done"),
        ("start_trial", "done"),
        ("start_trial", "failed"),
        ("call_reading_tool", "done"),
        ("call_reading_tool", "failed"),
        ("call_reading_tool", "failed"),
        ("propose_rules", "done"),
        ("propose_rules", "failed"),
        ("propose_rules", "refused"),
        ("search_servers", "refused"),
        ("finish_request", "done"),
    ]
    run = await db_call(Run.objects.get)
    report = await db_call(TrialReport.objects.get)
    assert done.result["model"] == {
        "expert": "keeper",
        "run": run.pk,
        "said": "Odd.",
        "why": "",
        "concerns": ["look is odd"],
    }
    starts = [(start["era"], start["network"]) for start in report.starts]
    assert starts == [("legacy", "closed"), ("modern", "closed")], (
        "each once; the plan has nothing left to start"
    )
    rules = {row["tool"]: (row["rule"], row["why"]) for row in report.proposed["tools"]}
    assert rules["look"] == ("hide", "advised by a model: nobody needs it")
    assert (rules["remove"][0], rules["listing"][0], report.verdict) == (
        "ask",
        "allow",
        "attention",
    )
    assert {
        "severity": "alarm",
        "kind": "model",
        "tool": "",
        "text": "Concern of a model: look is odd",
    } in report.findings
    assert {tool["name"]: tool["call"]["outcome"] for tool in report.tools}["listing"] == "ok", (
        "with arguments of the model"
    )
    assert not any("was_called" in name for name in report.figures["written"])
    assert not children("newcomer.py")
    assert (run.origin, run.state) == ("sub-agent", "done")


@pytest.mark.exhaustive(one_in=6)
@pytest.mark.parametrize(
    ("turns", "options", "why"),
    [
        ([calls(("run_test", {}))], {"repeat": True}, ""),
        (
            [
                calls(
                    ("start_trial", {"protocol": "legacy"}),
                    ("echo__echo", {}),
                    ("finish_request", {}),
                )
            ]
            * 2,
            {"repeat": True},
            "",
        ),
        ([BYE], {}, ""),
        ([{"attempts": [{"status": 400}]}], {"repeat": True}, "400"),
        ([BYE], {"enabled": False}, "All models of the expert tool"),
    ],
    ids=[
        "it loops",
        "it asks for what is not there",
        "it does nothing",
        "its provider fails",
        "it is switched off",
    ],
)
async def test_whatever_the_model_does_the_fixed_plan_does_the_rest(
    bench: Bench, manager: Any, working: Any, turns: list[Any], options: dict[str, Any], why: str
) -> None:
    await db_call(
        lambda: works_on(bench, Kind.TEST, *turns, model=options, max_steps=3, max_calls=5)
    )
    await db_call(add_server, "echo", tool("echo"))
    await working()
    request = await db_call(ask, Kind.TEST, server="echo")
    done = await ended(await manager(), request)
    assert (done.state, done.result["ok"], done.result["tools"]) == (State.COMPLETED, True, 1)
    assert [step["step"] for step in done.result["steps"]] == [
        "config",
        "spawn",
        "handshake",
        "discover",
    ], "once"
    assert why in done.result["model"]["why"]
    assert await db_call(lambda: Run.objects.filter(finished_at=None).count()) == 0


@pytest.mark.exhaustive
async def test_pausing_stops_the_run_and_what_it_started_and_another_goes_on(
    bench: Bench, manager: Any, working: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_back = request_lease.pause_request
    left = list[Any]()

    def paused_while(*given: Any) -> None:
        left.append(children("mute.py"))
        given_back(*given)

    monkeypatch.setattr(request_lease, "pause_request", paused_while)
    await db_call(works_on, bench, Kind.TEST, calls(("run_test", {})), FINISH, BYE)
    await db_call(mute, env={"FAKE_LINGERS": "1"})
    await working()
    here = await manager()
    request = await db_call(ask, Kind.TEST, server="mute")
    await begun(here, request)
    await db_call(queue.pause, request_id=request.pk, actor="user:ann")
    paused = await until(lambda: _with_substate(request, Substate.PAUSED))
    assert left == [[]], "its server is gone before anybody else may start it"
    first = await db_call(Run.objects.get)
    assert (first.state, paused.notes["model"]["run"]) == ("cancelled", "")

    await db_call(Server.objects.update, connect_timeout=0.3)
    await db_call(queue.resume, request_id=request.pk, actor="user:ann")
    done = await ended(here, request)
    assert (done.state, done.result["ok"], done.result["model"]["said"]) == (
        State.COMPLETED,
        False,
        "All is well.",
    )
    assert await db_call(lambda: sorted(Run.objects.values_list("state", flat=True))) == [
        "cancelled",
        "done",
    ]
    steps = await db_call(
        lambda: [
            m.data.get("step")
            for m in MaintenanceMessage.objects.filter(request=request, kind="status_update")
        ]
    )
    assert steps.count("config") == 1


async def _with_substate(request: MaintenanceRequest, substate: str) -> MaintenanceRequest | None:
    found = await now(request)
    return found if found.substate == substate else None


@pytest.mark.exhaustive
async def test_a_model_finds_servers_and_cannot_invent_any(
    bench: Bench, manager: Any, working: Any
) -> None:
    best = await db_call(listed, "io.example/chronicle", description="History of repositories")
    await db_call(listed, "io.example/git")
    choose = {"entries": [{"registry": "official", "name": "io.example/chronicle"}]}
    invented = {"entries": [{"registry": "official", "name": "io.example/invented"}]}
    await db_call(
        works_on,
        bench,
        Kind.ADD,
        calls(("choose_entries", choose)),
        calls(("search_servers", {"query": "history"})),
        calls(("choose_entries", invented), ("choose_entries", choose)),
        FINISH,
        BYE,
    )
    await working()
    done = await ended(
        await manager(), await db_call(ask, Kind.ADD, server="git", purpose="history")
    )
    told = await db_call(made)
    assert [state for _, state, _ in told] == ["failed", "done", "failed", "done", "done"]
    assert "No search of this run has found these entries: io.example/invented" in told[2][2]
    assert [each["name"] for each in done.result["registry_entries"]] == [
        "io.example/chronicle",
        "io.example/git",
    ]
    assert (await db_call(proposals.registry_listings.find_proposed_entries, done.result))[
        0
    ] == best, "a person can take it"


async def test_a_run_that_works_on_no_request_reaches_none_and_each_kind_has_one_expert(
    bench: Bench, working: Any
) -> None:
    await db_call(
        works_on,
        bench,
        Kind.TEST,
        calls(("run_test", {}), ("finish_request", {"summary": "x"})),
        BYE,
    )
    await db_call(add_server, "echo", tool("echo"))
    await db_call(ask, Kind.TEST, server="echo")
    await working()
    run = await db_call(bench.start, "why?", "keeper")
    await until(lambda: db_call(Run.objects.exclude(finished_at=None).filter(pk=run.pk).exists))
    assert [
        (state, "does not work on one now" in text) for _, state, text in await db_call(made)
    ] == [("failed", True)] * 2
    assert (await db_call(MaintenanceRequest.objects.get)).notes == {}
    for wrong, says in (
        ([Kind.TEST], "already handles these maintenance requests: test_server"),
        (["modify_server"], "that expert tools cannot handle"),
    ):
        with pytest.raises(ConfigInvalid, match=says):
            await db_call(
                bench.expert,
                await db_call(lambda: run.version.expert.ordered_targets.get().model),
                name="other",
                maintains=wrong,
            )
