"""Trials of real servers: both eras, the sandbox, what they use, what is proposed, and that nothing
of them is left."""

from __future__ import annotations

import json
import socket
import sys
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.db import OperationalError
from django.utils import timezone

from mcpregistry.calls import server_test_dispatch
from mcpregistry.db import db_call
from mcpregistry.domain.errors import Conflict, Denied
from mcpregistry.models import Agent, Configuration, Grant, Invocation, PolicyRule, Server, Tool
from mcpregistry.services.access import agents, grants
from mcpregistry.services.definitions import observe
from mcpregistry.services.servers import lifecycle
from mcpregistry.services.servers.server_test_calls import (
    OrderedTestCall,
    PreparedCall,
    prepare_call,
)
from subagents.domain.maintenance import Kind, State, Substate
from subagents.maintenance import proposals, queue, tools, trials
from subagents.models import MaintenanceMessage, MaintenanceRequest, Proposal, TrialReport
from subagents.services import retention
from tests.calls.conftest import journal, site
from tests.fakes.http import Echo, fake_http
from tests.fakes.targets import LOOPBACK, SERVERS, stdio_target
from tests.subagents.maintenance.conftest import FOREVER, ask, ended, now
from tests.subagents.maintenance.test_manager import _finished, ann, begun, children
from tests.subagents.maintenance.test_tools import call, furnished, said
from tests.subagents.test_api import agent, person
from tests.waiting import until

__all__ = ["journal", "site"]


def newcomer(**fields: Any) -> Server:
    """A confirmed server of which nobody has approved anything."""
    fields = {
        "slug": "new",
        "command": [*stdio_target("newcomer").argv],
        "sandbox_read": [str(SERVERS)],
    } | fields
    server = lifecycle.save_server(server=Server(**fields), actor="user:maker")
    return lifecycle.confirm_launch(
        server=server, actor="user:other", launch_hash=server.launch_hash()
    )


async def tried(
    here: Any, server: str = "new", **params: Any
) -> tuple[MaintenanceRequest, TrialReport]:
    done = await ended(here, await db_call(ask, Kind.TRY, server=server, **params))
    assert done.state == State.COMPLETED, done.error
    assert done.result is not None
    return done, await db_call(TrialReport.objects.get, pk=done.result["report"])


async def test_a_newcomer_is_measured_in_its_sandbox_and_leaves_nothing(manager: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        env = {
            "NEWCOMER_PORT": str(listening.getsockname()[1]),
            "NEWCOMER_TOKEN": "s3cret-of-the-newcomer",
        }
        await db_call(newcomer, env=env)
        done, report = await tried(await manager())
    assert not children("newcomer.py")
    figures = report.figures
    assert (figures["eras"], figures["tools"], figures["version"]) == (["legacy", "modern"], 6, "1")
    assert [(start["era"], start["network"], start["ok"]) for start in report.starts] == [
        ("legacy", "closed", True),
        ("modern", "closed", True),
        ("legacy", "open", True),
    ]
    assert all(start["connect_ms"] > 0 and start["list_ms"] > 0 for start in report.starts)
    assert all(24 * 1024 < start["memory_kb"] < 500 * 1024 for start in report.starts)
    assert set(figures["elsewhere"]) <= {str(SERVERS)}, "of the paths that it was given"
    assert figures["processes"] >= 2
    assert "kept" in figures["written"]
    assert not {name for name in figures["written"] if "was_called" in name}, (
        "what does not read alone is not called"
    )
    assert figures["tokens"] > 100
    calls = {tool["name"]: tool["call"]["outcome"] for tool in report.tools}
    assert calls == {
        "look": "ok",
        "fetch": "ok",
        "keys": "error",
        "listing": "skipped",
        "remove": "skipped",
        "helper": "skipped",
    }
    why = next(tool["call"]["why"] for tool in report.tools if tool["name"] == "keys")
    assert why.startswith("not with ")
    assert "s3cret" not in json.dumps(
        [done.result, report.tools, report.starts, report.findings, report.figures]
    )
    assert figures["network_needed"] is True, "fetch answers with the network open only"
    assert report.verdict == "refuse", "a definition of it gives orders to models"
    kinds = {(each["kind"], each["tool"]) for each in report.findings}
    assert {("definition", "helper"), ("denied", "")} <= kinds
    assert any("/etc/shadow" in each["text"] for each in report.findings)
    assert any("kernel refuses" in each for each in report.unobserved)
    rules = {row["tool"]: row["rule"] for row in report.proposed["tools"]}
    assert rules == {
        "look": "allow",
        "fetch": "allow",
        "keys": "allow",
        "listing": "allow",
        "remove": "ask",
        "helper": "hide",
    }
    assert report.proposed["fields"] == {"sandbox": "enforce"}
    assert not await db_call(Proposal.objects.exists), (
        "of a server that is to be refused nothing is proposed"
    )
    assert done.result["verdict"] == "refuse"


@pytest.fixture
def proposed(live_db: None) -> Any:
    """A finished trial with a proposal, as the manager writes it, without starting anything."""

    def make(**params: Any) -> Proposal:
        server = newcomer()
        listed = [
            {
                "name": name,
                "inputSchema": {"type": "object"},
                "annotations": {"readOnlyHint": name == "look"},
            }
            for name in ("look", "write", "odd")
        ]
        observe.observe(server=server, listed=listed)
        hashes = {
            tool.name: tool.latest.hash
            for tool in Tool.objects.select_related("latest")
            if tool.latest
        }
        request = ask(Kind.TRY, server="new", **params)
        rows = [
            {"tool": name, "hash": hashes[name], "rule": rule, "why": ""}
            for name, rule in (("look", "allow"), ("write", "ask"), ("odd", "hide"))
        ]
        TrialReport.objects.create(
            server=server,
            request=request,
            verdict="attention",
            created_at=timezone.now(),
            proposed={"tools": rows, "fields": {"sandbox": "enforce"}},
        )
        return Proposal.objects.create(
            request=request,
            server=server,
            server_revision=server.revision,
            server_saved_at=server.updated_at,
            fields={"sandbox": "enforce"},
            created_at=timezone.now(),
        )

    return make


def test_one_click_approves_allows_asks_hides_grants_and_tells(proposed: Any) -> None:
    agents.save_agent(agent=Agent(slug="robot"), actor="test")
    row = proposed(for_agent="robot")
    proposals.apply(proposal_id=row.pk, user=ann(), actor="user:ann")
    found = {tool.name: (tool.status, tool.enabled) for tool in Tool.objects.all()}
    assert found == {
        "look": ("approved", True),
        "write": ("approved", True),
        "odd": ("quarantined", False),
    }
    assert {(rule.tool.name, rule.outcome) for rule in PolicyRule.objects.exclude(tool=None)} == {
        ("look", "allow"),
        ("write", "ask"),
    }
    assert {grant.tool.name for grant in Grant.objects.filter(agent__slug="robot")} == {
        "look",
        "write",
    }
    server = Server.objects.get()
    assert (server.sandbox, server.lifecycle) == ("enforce", "active"), (
        "narrower: it stays confirmed"
    )
    told = MaintenanceMessage.objects.get(kind="tool_available")
    assert told.data == {"server": "new", "tools": ["look", "write"]}


def test_an_agent_that_asked_for_the_server_hears_of_its_tools_and_of_the_verdict(
    proposed: Any,
) -> None:
    for slug in ("robot", "other"):
        agents.save_agent(agent=Agent(slug=slug), actor="test")
    row = proposed(for_agent="robot")
    asked = {}
    for slug in ("robot", "other"):
        theirs = Agent.objects.get(slug=slug)
        asked[slug] = queue.ask(
            kind=Kind.ADD, params={"server": "new"}, actor=f"agent:{slug}", agent=theirs
        )
        Proposal.objects.create(
            request=asked[slug],
            server=row.server,
            state="applied",
            created_at=timezone.now(),
            fields={"command": ["x"]},
        )
    proposals.apply(proposal_id=row.pk, user=ann(), actor="user:ann")
    told = MaintenanceMessage.objects.filter(kind="tool_available").values_list(
        "request", flat=True
    )
    assert set(told) == {row.request_id, asked["robot"].pk}, (
        "whom it serves nothing is told nothing"
    )
    said = tools._status("robot", asked["robot"].pk)
    assert (said["trial"]["verdict"], set(said["trial"])) == ("attention", {"verdict", "at"})


@pytest.mark.exhaustive
def test_reports_are_read_over_rest_and_agents_try_nothing(proposed: Any) -> None:
    row = proposed()
    viewer = person("viewer")
    listed = viewer.get("/maintenance/trials?server=new").json()["items"]
    assert [(each["verdict"], each["requestId"], each["proposal"]) for each in listed] == [
        ("attention", row.request_id, row.pk)
    ]
    assert viewer.get("/maintenance/trials?verdict=ok").json()["items"] == []
    whole = viewer.get(f"/maintenance/trials/{listed[0]['id']}").json()
    assert [each["rule"] for each in whole["proposed"]["tools"]] == ["allow", "ask", "hide"]
    assert viewer.get("/maintenance/trials/999").status_code == 404
    order = {"type": "try_server", "params": {"server": "new"}}
    robot = agent("robot")
    grants.grant_access(
        agent=Agent.objects.get(slug="robot"), server=Server.objects.get(), actor="test"
    )
    assert robot.post("/maintenance/requests", order).status_code == 403
    asked = person("operator").post("/maintenance/requests", order)
    assert (asked.status_code, asked.json()["params"]) == (202, {"server": "new", "for_agent": ""})


def test_old_reports_go_but_the_newest_of_each_server(proposed: Any) -> None:
    row = proposed()
    now = timezone.now()
    TrialReport.objects.all().delete()
    for days in (800, 700, 600):
        TrialReport.objects.create(
            server=row.server, verdict="ok", created_at=now - timedelta(days=days)
        )
    retention.prune(now)
    assert [(now - each.created_at).days for each in TrialReport.objects.all()] == [600]


def test_whoever_applies_it_needs_the_rights_to_do_it_by_hand(proposed: Any) -> None:
    row = proposed()
    bob = User.objects.create(username="bob")
    for right in ("change_server", "approve_definition", "add_policyrule", "change_tool"):
        with pytest.raises(Denied, match=right):
            proposals.apply(proposal_id=row.pk, user=User.objects.get(pk=bob.pk), actor="user:bob")
        bob.user_permissions.add(
            Permission.objects.get(codename=right, content_type__app_label="mcpregistry")
        )
    proposals.apply(proposal_id=row.pk, user=User.objects.get(pk=bob.pk), actor="user:bob")


def test_what_has_changed_since_is_refused_whole(proposed: Any) -> None:
    row = proposed()
    listed = [
        {"name": name, "inputSchema": {"type": "object", "title": "other"}}
        for name in ("look", "write", "odd")
    ]
    observe.observe(server=Server.objects.get(), listed=listed)
    with pytest.raises(Conflict, match="has changed since the trial"):
        proposals.apply(proposal_id=row.pk, user=ann(), actor="user:ann")
    server = Server.objects.get()
    server.idle_timeout = 7
    lifecycle.save_server(server=server, actor="user:bob")
    with pytest.raises(Conflict, match="changed or deleted"):
        proposals.apply(proposal_id=row.pk, user=ann(), actor="user:ann")
    assert not PolicyRule.objects.exclude(tool=None).exists()
    assert not Tool.objects.exclude(pinned=None).exists()


@pytest.mark.exhaustive
async def test_others_are_answered_while_a_server_hangs_in_its_trial_and_cancelling_ends_its_tree(
    site: Any, manager: Any
) -> None:
    await db_call(furnished)
    await db_call(newcomer, command=[*stdio_target("mute").argv], connect_timeout=FOREVER)
    here = await site()
    sub_agent = await manager()
    request = await db_call(ask, Kind.TRY, server="new")
    tree = await begun(sub_agent, request)
    assert (await call(here, "echo__echo")).state == "succeeded"
    asked = await said(here, "mcp_request_server_addition", serverName="git", purpose="history")
    assert (await said(here, "mcp_check_subagent_status", requestId=asked["requestId"]))[
        "state"
    ] == "queued"
    assert (await said(here, "mcp_cancel_subagent_work", requestId=asked["requestId"]))[
        "substate"
    ] == "cancelled"
    assert "tools" in await said(here, "mcp_list_available_tools")
    meanwhile = await now(request)
    assert (meanwhile.state, meanwhile.step) == (State.IN_PROGRESS, 1)
    assert set(tree) <= set(children("mute.py")), "the very start that they were answered beside"
    await db_call(queue.cancel, request_id=request.pk, actor="user:bob", reason="enough")
    done = await until(lambda: _finished(request))
    assert (done.state, done.substate) == (State.FAILED, Substate.CANCELLED)
    await until(lambda: not children("mute.py"))
    assert not await db_call(TrialReport.objects.exists)


async def test_one_that_nobody_has_confirmed_is_not_tried(manager: Any) -> None:
    draft = Server(
        slug="new", command=[*stdio_target("newcomer").argv], sandbox_read=[str(SERVERS)]
    )
    await db_call(lambda: lifecycle.save_server(server=draft, actor="user:maker"))
    done = await ended(await manager(), await db_call(ask, Kind.TRY, server="new"))
    assert (done.state, "draft" in done.error) == (State.FAILED, True)
    assert not await db_call(TrialReport.objects.exists)


@pytest.mark.exhaustive
async def test_a_server_that_does_not_start_is_to_be_refused(manager: Any) -> None:
    await db_call(newcomer, command=["/nowhere/server"])
    _, report = await tried(await manager())
    assert (report.verdict, report.tools, report.proposed) == (
        "refuse",
        [],
        {"tools": [], "fields": {}},
    )
    assert "/nowhere/server" in report.findings[0]["text"]


@pytest.mark.exhaustive
async def test_what_a_servers_command_names_is_proposed_to_be_read_and_then_its_sandbox(
    manager: Any,
) -> None:
    """One that ran without a sandbox until now, and goes on so until both were applied: a click
    each."""
    argv = stdio_target("newcomer").argv
    named = [str(SERVERS / "newcomer.py"), str(SERVERS)]
    given = {
        "command": [*argv, str(SERVERS)],
        "env": {"NEWCOMER_WITHOUT": "look fetch keys listing remove helper"},
    }
    server = await db_call(newcomer, sandbox_read=[], sandbox="off", **given)
    here = await manager()
    for name, value in (("sandbox_read", named), ("sandbox", "enforce")):
        _, report = await tried(here)
        assert report.proposed["fields"][name] == value
        proposal = await db_call(Proposal.objects.get, request=report.request_id)
        await db_call(
            proposals.apply, proposal_id=proposal.pk, user=await db_call(ann), actor="user:ann"
        )
        await db_call(server.refresh_from_db)
        assert server.lifecycle == "active", "nothing became wider"
    first = await db_call(TrialReport.objects.order_by("pk").first)
    assert (first.verdict, [each["kind"] for each in first.findings]) == (
        "refuse",
        ["start", "unread", "unread"],
    )
    assert named[0] in first.findings[1]["text"]
    assert first.proposed["fields"] == {"sandbox_read": named}
    assert (server.sandbox, server.sandbox_read) == ("enforce", named)


async def test_site_data_that_a_command_names_is_never_proposed(manager: Any) -> None:
    inside = settings.VAR_DIR / "notes.py"
    inside.write_text("")
    await db_call(newcomer, sandbox_read=[], command=[sys.executable, str(inside)])
    _, report = await tried(await manager())
    assert (report.verdict, report.proposed["fields"]) == ("refuse", {})
    assert not await db_call(Proposal.objects.exists)


@pytest.mark.exhaustive
async def test_a_remote_server_is_tried_without_figures_of_its_machine_and_beside_its_last_trial(
    manager: Any,
) -> None:
    reads = {"annotations": {"readOnlyHint": True}, "inputSchema": {"type": "object"}}
    here = await manager()
    async with fake_http(Echo(tools=[{"name": "echo", **reads}])) as remote:
        await db_call(
            newcomer,
            transport="http",
            command=[],
            sandbox_read=[],
            url=remote.url,
            allowed_networks=[*LOOPBACK],
        )
        _, first = await tried(here)
        remote.tools = [{"name": "echo", **reads}, {"name": "more", **reads}]
        _, second = await tried(here)
    assert (first.verdict, first.figures["memory_kb"], first.figures["written"]) == (
        "ok",
        None,
        None,
    )
    assert first.figures["eras"] == ["legacy", "modern"]
    assert first.unobserved == [
        "Memory, processes and files: the server does not run on this machine."
    ]
    assert (first.differences, first.behaves_otherwise) == ([], False)
    assert (second.differences, second.behaves_otherwise) == (["New tools: more."], True)
    assert len(remote.calls()) == 3 + 4, (
        "each tool once in each trial, and two sessions compared in the first"
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("shared_by", ["everybody", "agent"])
async def test_a_server_that_answers_two_sessions_differently_is_proposed_to_be_shared_by_session(
    manager: Any, shared_by: str
) -> None:
    listed = [
        {"name": "pid", "annotations": {"readOnlyHint": True}, "inputSchema": {"type": "object"}}
    ]
    command = [*stdio_target("crash").argv]
    env = {"FAKE_LISTED": json.dumps(listed)}
    await db_call(newcomer, command=command, env=env, shared_by=shared_by)
    done, report = await tried(await manager())
    is_everybodys = shared_by == "everybody"
    assert done.result is not None
    assert (report.proposed["fields"].get("shared_by") == "session") is is_everybodys
    assert (
        any("Two sessions got different answers" in each["text"] for each in report.findings)
        is is_everybodys
    )
    assert not children("crash.py")


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize("default", ["ask", "deny"])
async def test_rules_decide_about_each_call_of_a_trial(manager: Any, default: str) -> None:
    listed = [
        {"name": name, "annotations": {"readOnlyHint": True}, "inputSchema": {"type": "object"}}
        for name in ("denied", "asked", "allowed", "disabled", "plain")
    ]
    async with fake_http(Echo(tools=listed)) as remote:
        await db_call(
            newcomer,
            transport="http",
            command=[],
            sandbox_read=[],
            url=remote.url,
            allowed_networks=[*LOOPBACK],
        )
        await db_call(_ruled, listed, default)
        _, report = await tried(await manager())
        called = [each["params"]["name"] for each in remote.calls()]
    by_default = [] if default == "deny" else ["plain"]
    assert [*dict.fromkeys(called)] == ["allowed", *by_default]
    why = {tool["name"]: tool["call"].get("why", "") for tool in report.tools}
    assert why["denied"] == "the rules deny it (rule 'no denied')"
    assert why["asked"] == "the rules require an approval (rule 'ask first')"
    assert why["disabled"] == "an operator has disabled it"
    assert why["plain"] == ("" if by_default else "the rules deny it (no rule matches)")
    assert report.figures["calls"]["skipped"] == 5 - len(set(called))
    recorded = await db_call(
        lambda: [*Invocation.objects.filter(origin="trial").order_by("received_at", "id")]
    )
    made = [call for call in recorded if call.state == "succeeded"]
    assert [call.tool_name for call in made] == called
    assert {(call.agent_slug, call.requester) for call in recorded} == {("(tests)", "ann")}
    assert {call.tool_name for call in recorded if call.state == "denied"} == set(why) - set(called)


async def test_proposal_of_a_trial_is_applied_at_once(manager: Any) -> None:
    """A trial may end before the first check has read the tools of a new server."""
    listed = [
        {"name": "look", "annotations": {"readOnlyHint": True}, "inputSchema": {"type": "object"}}
    ]
    async with fake_http(Echo(tools=listed)) as remote:
        where = {"url": remote.url, "allowed_networks": [*LOOPBACK]}
        await db_call(newcomer, transport="http", command=[], sandbox_read=[], **where)
        done, _ = await tried(await manager())
    assert done.result is not None
    boss = await db_call(User.objects.create_superuser, "boss")
    await db_call(
        proposals.apply, proposal_id=done.result["proposal"], user=boss, actor="user:boss"
    )
    assert (await db_call(Tool.objects.get)).status == "approved"


@pytest.mark.exhaustive
async def test_a_trial_whose_database_fails_before_a_call_is_tried_again(
    manager: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()

    def fails_once(order: OrderedTestCall) -> PreparedCall:
        asked.append(order.tool)
        if len(asked) == 1:
            raise OperationalError("database is locked")
        return prepare_call(order)

    monkeypatch.setattr(server_test_dispatch, "prepare_call", fails_once)
    listed = [
        {"name": "look", "annotations": {"readOnlyHint": True}, "inputSchema": {"type": "object"}}
    ]
    async with fake_http(Echo(tools=listed)) as remote:
        where = {"url": remote.url, "allowed_networks": [*LOOPBACK]}
        await db_call(
            newcomer, transport="http", command=[], sandbox_read=[], shared_by="agent", **where
        )
        _, report = await tried(await manager())
        called = [each["params"]["name"] for each in remote.calls()]
    assert asked == ["look", "look"]
    assert called == ["look"]
    assert [tool["call"]["outcome"] for tool in report.tools] == ["ok"]


def _ruled(listed: list[dict[str, Any]], default: str) -> None:
    server = Server.objects.get()
    observe.observe(server=server, listed=listed)
    Tool.objects.filter(name="disabled").update(enabled=False)
    Configuration.objects.update(default_outcome=default)
    User.objects.create_user("ann")
    for name, outcome, condition in (
        ("no denied", "deny", 'tool.name == "denied"'),
        ("ask first", "ask", 'call.origin == "trial" && tool.name == "asked"'),
    ):
        PolicyRule.objects.create(name=name, outcome=outcome, condition=condition)
    allowed = Tool.objects.get(name="allowed")
    PolicyRule.objects.create(name="runs", outcome="allow", server=server, tool=allowed)


@pytest.mark.exhaustive
async def test_rules_decide_about_a_call_that_a_model_asks_for(manager: Any) -> None:
    server = await db_call(newcomer, env={"NEWCOMER_WITHOUT": "fetch keys helper remove"})
    await db_call(
        PolicyRule.objects.create,
        name="no words",
        outcome="deny",
        condition='args.word == "secret"',
    )
    request = MaintenanceRequest(notes={"server_id": server.pk, "starts": [], "tools": []})
    engine = (await manager())._engine
    looked = await trials.start_legacy(engine, request)
    trials.keep_start(request, looked)
    words = {
        word: await trials.call_once(engine, request, "look", json.dumps({"word": word}).encode())
        for word in ("secret", "other")
    }
    assert words["secret"] == {"outcome": "skipped", "why": "the rules deny it (rule 'no words')"}
    assert words["other"]["outcome"] == "ok"
