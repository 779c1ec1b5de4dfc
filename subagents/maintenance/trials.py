"""A trial of a server before it goes live, step by step: started in its sandbox in both eras,
looked at, called, measured.

``try_server``: server, for_agent (who would be granted what is proposed; or nobody). A local server
runs confined, first without the network; only if it does not start so, or a tool gives no good
answer, once more with it. Only tools that claim to only read are called, with arguments made from
their schemas. The rules decide about each call (``make_call``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import msgspec
from django.utils import timezone

from mcpregistry.calls.engine import Engine
from mcpregistry.calls.server_test_dispatch import make_call
from mcpregistry.db import db_call, long_db_call
from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import Conflict, NotFound
from mcpregistry.domain.notifications.events import NotificationEvent
from mcpregistry.domain.servers.target import ProtocolMode, ServerTarget
from mcpregistry.domain.text.canonical import clean_text
from mcpregistry.domain.trials import advice
from mcpregistry.domain.trials import tools as looking
from mcpregistry.domain.trials import verdict as judging
from mcpregistry.domain.trials.differences import compare_reports
from mcpregistry.domain.trials.report import (
    Called,
    ProposedToolRule,
    Start,
    ToolSeen,
    TrialReportData,
)
from mcpregistry.downstream.pool.discovery import Discovery
from mcpregistry.downstream.pool.server_probe import MakeCall, Send
from mcpregistry.downstream.pool.trial_start import CallPlan, compare_two_sessions, try_start
from mcpregistry.models import Agent, Server, Tool
from mcpregistry.models.server import Transport
from mcpregistry.services.notifications import outbox
from mcpregistry.services.servers import lifecycle
from mcpregistry.services.servers.checks import compare_definitions
from mcpregistry.services.servers.notes import note_server_event
from mcpregistry.services.servers.sandbox import list_unreadable_for, select_allowable
from mcpregistry.services.servers.server_test_calls import TRIAL, OrderedTestCall
from mcpregistry.services.servers.targets import build_target, refuse_unless_runnable
from subagents.llm.tokens import REFERENCE, counter
from subagents.maintenance.plan_steps import find_requester, load_server
from subagents.maintenance.queue import CLOCK
from subagents.models import MaintenanceRequest, Proposal, TrialReport

MOST_ROWS = 500
MOST_TOLD = 20
# tools whose answers to two sessions are compared, and how often each is called
MOST_COMPARED = 5
ROUNDS = 2
_OTHER_NAMES = 20_000


@dataclass(frozen=True, slots=True)
class ObservedStart:
    """One start, and what was seen of the tools; none where that had been seen before."""

    start: Start
    tools: list[ToolSeen]
    definitions: dict[str, dict[str, Any]]  # by name: what a model has to know to call them


def look_at_server(request: MaintenanceRequest, _: Any) -> None:
    """Raises NotFound, Conflict and ConfigInvalid where the server may not run."""
    server = load_server(request)
    refuse_unless_runnable(server)
    if (slug := request.params.get("for_agent")) and not Agent.objects.filter(slug=slug).exists():
        raise NotFound(
            error_texts.say_not_found("agent", clean_text(slug, 63)),
            remedy="Choose another agent, or none.",
        )
    request.notes |= {"starts": [], "tools": [], "opened": [], "revision": server.revision}


async def start_legacy(engine: Engine, request: MaintenanceRequest) -> ObservedStart:
    """As hosts of MCP 2025-11-25 and older do; a local server without the network."""
    return await _start(engine, request, "legacy", network=False, look=True)


async def start_modern(engine: Engine, request: MaintenanceRequest) -> ObservedStart:
    """As hosts of MCP 2026-07-28 do; its tools are called only where the older protocol led to
    none."""
    return await _start(engine, request, "modern", network=False, look=not request.notes["tools"])


async def start_open(engine: Engine, request: MaintenanceRequest) -> ObservedStart | None:
    """Once more with the network, where it may have it and something did not work without."""
    notes = request.notes
    closed = [start for start in notes["starts"] if start["network"] == "closed"]
    works: ProtocolMode = next((start["era"] for start in closed if start["ok"]), "auto")
    answered = {tool["call"].get("outcome") for tool in notes["tools"]} <= {"ok", "skipped"}
    if not closed or (works != "auto" and answered):
        return None
    looked = await _start(engine, request, works, network=True, look=True)
    return looked if looked.start["network"] == "open" else None  # closed: its policy says so


async def compare_sessions(engine: Engine, request: MaintenanceRequest) -> list[str]:
    """Return the tools that answer two sessions differently. Only of a new server, and only if it
    could have a connection for each."""
    notes = request.notes
    answered = [
        tool for tool in notes["tools"] or notes["opened"] if tool["call"].get("outcome") == "ok"
    ][:MOST_COMPARED]
    start = next((start for start in notes["starts"] if start["ok"]), None)
    if start is None or not answered or not await db_call(_is_new_and_shared, notes["server_id"]):
        return []
    target, others = await db_call(_load_target, notes["server_id"])
    sandbox = target.sandbox and replace(target.sandbox, network=start["network"] == "open")
    target = replace(target, protocol=start["era"], connect="eager", sandbox=sandbox)
    hashes = {tool["name"]: tool["hash"] for tool in answered}

    def choose(discovery: Discovery) -> Mapping[str, bytes]:
        rows = looking.inspect_tools(
            discovery.tools,
            instructions=discovery.instructions,
            others=others,
            count=counter(REFERENCE),
        )
        chosen = looking.choose_test_calls(discovery.tools, rows)
        same = {row["name"]: row["hash"] for row in rows}
        return {
            name: given
            for name, given in chosen.items()
            if name in hashes and hashes[name] == same[name]
        }

    answers = await compare_two_sessions(target, _calling(engine, request, choose), ROUNDS)
    return [name for name, each in answers.items() if judging.is_by_session(each)]


def keep_sessions(request: MaintenanceRequest, by_session: list[str]) -> None:
    """Note which tools answer two sessions differently."""
    for tool in [*request.notes["tools"], *request.notes["opened"]]:
        if tool["name"] in by_session:
            tool["by_session"] = True


def _is_new_and_shared(server_id: int) -> bool:
    server = Server.objects.get(pk=server_id)
    return judging.can_be_shared_less(_now(server)) and not server.trials.exists()


def keep_start(request: MaintenanceRequest, looked: ObservedStart) -> None:
    """Note a start, and the tools if it is the first that had any."""
    request.notes["starts"].append(looked.start)
    if looked.start["ok"] and looked.tools:
        request.notes["tools"] = looked.tools
        if "model" in request.notes:
            request.notes["definitions"] = looked.definitions


def keep_open(request: MaintenanceRequest, looked: ObservedStart | None) -> None:
    """Note what was otherwise with the network."""
    if looked is not None:
        request.notes["starts"].append(looked.start)
        request.notes["opened"] = looked.tools


def keep_report(request: MaintenanceRequest, _: Any) -> None:
    """Write the report beside the one before, and the proposal."""
    server = load_server(request)
    report = _report(server, request.notes)
    before = server.trials.first()
    found = compare_reports(before.report(), report) if before else []
    row = TrialReport.objects.create(
        server=server,
        request=request,
        server_revision=request.notes["revision"],
        version=report["figures"]["version"],
        verdict=report["verdict"],
        findings=report["findings"],
        figures=report["figures"],
        starts=report["starts"],
        tools=report["tools"],
        unobserved=report["unobserved"],
        proposed=report["proposal"],
        differences=[each.text for each in found],
        behaves_otherwise=any(each.behaviour for each in found),
        created_at=timezone.now(),
    )
    if row.behaves_otherwise:
        told = " ".join(each.text for each in found if each.behaviour)
        note_server_event(
            server_id=server.pk,
            kind="trial",
            message=f"The server behaves differently from its last trial: {told}",
        )
        outbox.enqueue_server(
            NotificationEvent.TRIAL, server=server, reason=told, now=row.created_at
        )
    made = _propose(request, server, row)
    request.notes = {"server_id": server.pk}  # the report has it all
    request.result = {
        "report": row.pk,
        "verdict": row.verdict,
        "findings": [each["text"] for each in row.findings[:MOST_TOLD]],
        "figures": row.figures,
        "differences": row.differences,
        "proposal": made.pk if made else None,
        "waits_for": "a person" if made else "nobody",
    }


# Starting it


async def _start(
    engine: Engine, request: MaintenanceRequest, era: ProtocolMode, *, network: bool, look: bool
) -> ObservedStart:
    target, others = await db_call(_load_target, request.notes["server_id"])
    sandbox = target.sandbox and replace(target.sandbox, network=network and target.sandbox.network)
    rows: list[ToolSeen] = []
    definitions: dict[str, dict[str, Any]] = {}

    def choose(discovery: Discovery) -> Mapping[str, bytes]:
        definitions.update(looking.shorten_definitions(discovery.tools))
        rows.extend(
            looking.inspect_tools(
                discovery.tools,
                instructions=discovery.instructions,
                others=others,
                count=counter(REFERENCE),
            )
        )
        return looking.choose_test_calls(discovery.tools, rows)

    target = replace(
        target, protocol=era, connect="eager", sandbox=sandbox
    )  # not lazy: it is ended here, never by itself
    found = await try_start(target, _calling(engine, request, choose) if look else None)
    for row in rows:
        row["call"] = found.called.get(row["name"], row["call"])
    if found.discovery is not None:
        found.start["era"] = found.discovery.era
        await long_db_call(partial(learn_first, target.server_id, found.discovery))
    return ObservedStart(found.start, rows, definitions)


def learn_first(server_id: int, discovery: Discovery) -> None:
    """Take in the tools of a server that no check has read yet: what is proposed of them can then
    be applied at once.

    Nothing of them is served by that: somebody has to approve each.
    """
    server = Server.objects.active().filter(pk=server_id, refreshed_at=None).first()
    if server is not None:
        compare_definitions(server=server, discovery=discovery, process="worker")


async def call_once(
    engine: Engine, request: MaintenanceRequest, name: str, arguments: bytes
) -> Called:
    """One more start without the network, for one call of a tool that only reads, with arguments
    that a model has made.

    Raises Conflict of a server that no sandbox confines, and where it did not start without the
    network.
    """
    target, others = await db_call(_load_target, request.notes["server_id"])
    era: ProtocolMode | None = next(
        (
            start["era"]
            for start in request.notes["starts"]
            if start["ok"] and start["network"] == "closed"
        ),
        None,
    )
    if target.sandbox is None or era is None:
        raise Conflict(
            "Only servers that start in their sandbox without network access can be called here.",
            remedy="Leave this call to a user.",
        )
    hashed = next(tool["hash"] for tool in request.notes["tools"] if tool["name"] == name)

    def choose(discovery: Discovery) -> Mapping[str, bytes]:
        seen = looking.inspect_tools(
            discovery.tools,
            instructions=discovery.instructions,
            others=others,
            count=counter(REFERENCE),
        )
        same = any(tool["name"] == name and tool["hash"] == hashed for tool in seen)
        return {name: arguments} if same else {}

    target = replace(
        target, protocol=era, connect="eager", sandbox=replace(target.sandbox, network=False)
    )
    found = await try_start(target, _calling(engine, request, choose))
    why = found.start["error"] or "its definition was different in this start"
    return found.called.get(name) or Called(outcome="failed", why=why)


def _calling(
    engine: Engine, request: MaintenanceRequest, choose: Callable[[Discovery], Mapping[str, bytes]]
) -> CallPlan:
    return CallPlan(choose, call_maker(engine, request, TRIAL))


def call_maker(engine: Engine, request: MaintenanceRequest, origin: str) -> MakeCall:
    """What makes and records the calls of a test or trial that the request has asked for; see
    ``make_call``."""

    async def make(name: str, arguments: bytes, send: Send) -> dict[str, Any]:
        requester = await db_call(find_requester, request)
        given = msgspec.json.decode(arguments)
        order = OrderedTestCall(
            origin, request.notes["server_id"], name, given, requester, request_id=request.pk or ""
        )
        return await make_call(engine.recorder, order, send)

    return make


def _load_target(server_id: int) -> tuple[ServerTarget, frozenset[str]]:
    """How it is started in its sandbox, and the names of the tools of other servers."""
    others = Tool.objects.filter(present=True).exclude(server=server_id).order_by("id")
    return build_target(server_id, in_sandbox=True), frozenset(
        others.values_list("name", flat=True)[:_OTHER_NAMES]
    )


# The report


def _report(server: Server, notes: Mapping[str, Any]) -> TrialReportData:
    starts = notes["starts"]
    closed = notes["tools"]
    opened = notes["opened"]
    local = server.transport == Transport.STDIO
    needed = judging.is_network_needed(starts, closed, opened) if local else None
    tools = _best(closed, opened)
    model = notes.get("model") or {"rules": {}, "concerns": ()}
    unread = list_unreadable_for(server) if local else []
    found = judging.collect_findings(
        starts, tools, unread, advice.list_model_concerns(model["concerns"])
    )
    now = _now(server)
    confined = (
        judging.propose_sandbox_fields(starts, needed, now, select_allowable(unread))
        if local
        else {}
    )
    proposal = {
        "tools": _filter_undecided(
            server,
            advice.apply_stricter_rules(judging.propose_tool_rules(tools), model["rules"])[
                :MOST_ROWS
            ],
        ),
        "fields": confined | judging.propose_sharing_fields(tools, now),
    }
    return TrialReportData(
        verdict=judging.decide_verdict(found),
        starts=starts,
        tools=tools[:MOST_ROWS],
        findings=found[:MOST_ROWS],
        figures=_figures(starts, tools, needed),
        unobserved=_list_unobserved(local, starts, tools, needed),
        proposal=proposal,
    )


def _now(server: Server) -> dict[str, Any]:
    return {
        name: getattr(server, name) for name in (*lifecycle.SANDBOX, "shared_by", "connect_mode")
    }


def _best(closed: list[ToolSeen], opened: list[ToolSeen]) -> list[ToolSeen]:
    """Each tool as it answered best: without the network, or else with it."""
    better = {tool["name"]: tool["call"] for tool in opened if tool["call"].get("outcome") == "ok"}
    return [
        ToolSeen(**(tool | {"call": better.get(tool["name"], tool["call"])}))
        for tool in closed or opened
    ]


def _figures(
    starts: list[Start], tools: list[ToolSeen], network_needed: bool | None
) -> dict[str, Any]:
    working = [start for start in starts if start["ok"]]
    first = working[0] if working else Start()
    outcomes = [tool["call"].get("outcome") for tool in tools]
    return {
        "eras": sorted({start["era"] for start in working}),
        "name": first.get("server", {}).get("name", ""),
        "version": first.get("server", {}).get("version", ""),
        "connect_ms": first.get("connect_ms"),
        "list_ms": first.get("list_ms"),
        "tools": len(tools),
        "prompts": first.get("prompts"),
        "resources": first.get("resources"),
        "tokens": sum(tool["tokens"] for tool in tools),
        "memory_kb": judging.find_largest_figure(starts, "memory_kb"),
        "processes": judging.find_largest_figure(starts, "processes"),
        "written": _all(starts, "written"),
        "elsewhere": _all(starts, "elsewhere"),
        "network_needed": network_needed,
        "calls": {word: outcomes.count(word) for word in ("ok", "error", "failed", "skipped")},
        "slowest_call_ms": max((tool["call"].get("ms", 0.0) for tool in tools), default=0.0),
    }


def _all(starts: list[Start], name: Literal["written", "elsewhere"]) -> list[str] | None:
    seen = [paths for start in starts if (paths := start.get(name)) is not None]
    return sorted({clean_text(path, 500) for paths in seen for path in paths}) if seen else None


def _list_unobserved(
    local: bool, starts: list[Start], tools: list[ToolSeen], network_needed: bool | None
) -> list[str]:
    found = []
    if not local:
        found.append("Memory, processes and files: the server does not run on this machine.")
    else:
        found.append(
            "What the server tried to open outside of its own folder: the kernel refuses this without a report. The findings "
            "contain only what the server wrote to its log."
        )
        if judging.find_largest_figure(starts, "memory_kb") is None:
            found.append(
                "Memory, processes and open files: the server ended too soon, or this system has no /proc."
            )
        if any(start["ok"] and start.get("written") is None for start in starts):
            found.append("Files that the server wrote: there are too many in its own folder.")
        if network_needed is None:
            found.append(
                "Whether the server needs network access: not all tools could be called, so the proposal does not change this setting."
            )
    if more := len(tools) - MOST_ROWS:
        found += [f"More tools: {more}. Only the first {MOST_ROWS} are listed."] * (more > 0)
    return found


# What is proposed


def _filter_undecided(server: Server, rows: list[ProposedToolRule]) -> list[ProposedToolRule]:
    """Without the tools on which somebody has decided as they are defined now."""
    known = Tool.objects.filter(server=server).select_related("latest")
    decided = {
        tool.name: tool.latest.hash for tool in known if tool.latest and tool.latest.decided_at
    }
    return [row for row in rows if decided.get(row["tool"]) != row["hash"]]


def _propose(request: MaintenanceRequest, server: Server, row: TrialReport) -> Proposal | None:
    """Of a server that is to be refused only what may let it start; and by the clock nothing that
    waits already, or was declined."""
    proposed = row.proposed
    if _means_harm(row) or not (proposed["tools"] or proposed["fields"]):
        return None
    if request.requested_by == CLOCK and _was_asked_before(server, row):
        return None
    return Proposal.objects.create(
        request=request,
        server=server,
        server_revision=request.notes["revision"],
        server_saved_at=server.updated_at,
        fields=proposed["fields"],
        reason=_reason(row),
        created_at=row.created_at,
    )


def _means_harm(row: TrialReport) -> bool:
    return any(each["severity"] == "danger" and each["kind"] != "start" for each in row.findings)


def _reason(row: TrialReport) -> str:
    if row.verdict == TrialReport.Verdict.REFUSE:
        return (
            "The server did not start in its sandbox, because the sandbox does not let it read the paths in its command. "
            "Apply this proposal, then start a new trial."
        )
    return f"Verdict of the trial: {row.get_verdict_display()}."


def _was_asked_before(server: Server, row: TrialReport) -> bool:
    last = (
        Proposal.objects.filter(server=server, request__trial__isnull=False)
        .select_related("request__trial")
        .first()
    )
    return (
        last is not None and last.state != "applied" and last.request.trial.proposed == row.proposed
    )
