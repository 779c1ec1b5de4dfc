"""What each kind of request does, step by step. The parameters of each kind stand at its plan.

A step first looks outside (``act``: it may be begun again and changes nothing there), then writes
down what it found (``keep``: in the same transaction as that the step is done, so it happens once,
whoever dies when).
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from functools import partial
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone

from mcpregistry.calls.engine import Engine
from mcpregistry.db import long_db_call
from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import (
    AuthFailed,
    ConfigInvalid,
    Conflict,
    ProtocolError,
    ResourceLimit,
    TimedOut,
)
from mcpregistry.domain.text.canonical import encode_canonical_json
from mcpregistry.downstream.pool.events import TestReport
from mcpregistry.models import Agent, Configuration, Server, ServerTest, Tool
from mcpregistry.services.configuration.saving import check_fields
from mcpregistry.services.servers import prober, trials
from mcpregistry.services.servers.lifecycle import check_server
from mcpregistry.services.servers.server_test_calls import TEST, refuse_call
from mcpregistry.services.servers.targets import refuse_unless_runnable
from subagents.domain.maintenance import SWITCH, Kind, Known, search
from subagents.maintenance import registry_listings
from subagents.maintenance import trials as trying
from subagents.maintenance.plan_steps import PlanStep, load_server
from subagents.maintenance.queue import servers_of
from subagents.maintenance.trials import call_maker
from subagents.models import MaintenanceRequest, Proposal

# What may be proposed of a server. Values of env and headers are secrets: people enter these
# themselves.
FIELDS = (
    "name",
    "description",
    "transport",
    "command",
    "cwd",
    "url",
    "connect_mode",
    "protocol_mode",
    "connect_timeout",
    "request_timeout",
    "idle_timeout",
    "max_concurrency",
    "shared_by",
    "check_interval",
)
_NO_REGISTRIES = "; the registries were not searched, because “automatic registry search” is disabled in the configuration of the site"
MOST_FOUND = 50
MOST_PROPOSED = 5  # entries of registries for one new server
# Errors of a server that was there, before it had introduced itself.
_SPAWNED = {error.code for error in (TimedOut, ProtocolError, AuthFailed, ResourceLimit)}


# test_server: server, call_tool and call_arguments (a read-only tool, or none), in_sandbox


def _look_at_server(request: MaintenanceRequest, _: Any) -> None:
    server = load_server(request)
    refuse_unless_runnable(server)
    if tool := request.params.get("call_tool"):
        refuse_call(server, tool, request.params.get("call_arguments") or {})
    request.notes["steps"] = [{"step": "config", "ok": True}]


async def _probe(engine: Engine, request: MaintenanceRequest) -> TestReport:
    params = request.params
    tool = params.get("call_tool")
    call = (
        (tool, encode_canonical_json(params.get("call_arguments") or {}).encode()) if tool else None
    )
    report = await prober.probe_server(
        request.notes["server_id"],
        call,
        bool(params.get("in_sandbox")),
        make=call_maker(engine, request, TEST),
    )
    if not params.get("in_sandbox"):  # what it does where it does not run says nothing of how it is
        await long_db_call(partial(_learn, request.notes["server_id"], report))
    return report


def _learn(server_id: int, report: TestReport) -> None:
    """Before the step's transaction: a server's definitions are scanned outside of any."""
    if (server := Server.objects.filter(pk=server_id).first()) is not None:
        trials.learn_from(server=server, report=report, process="worker")


def _keep_test(request: MaintenanceRequest, report: TestReport) -> None:
    params = request.params
    now = timezone.now()
    test = ServerTest.objects.create(
        server=load_server(request),
        requested_at=request.created_at,
        started_at=now,
        verdict=ServerTest.Verdict.RUNNING,
        call_tool=params.get("call_tool") or "",
        call_arguments=params.get("call_arguments") or {},
        in_sandbox=bool(params.get("in_sandbox")),
    )
    test = trials.record_verdict(test=test, report=report)
    request.notes |= {"test": test.pk, "ok": test.verdict == ServerTest.Verdict.PASSED}
    request.notes["steps"] += _steps_of(test, report)


def _steps_of(test: ServerTest, report: TestReport) -> list[dict[str, Any]]:
    """The five steps of a test as its report tells them; after one that failed there are no
    more."""
    found = report.discovery
    spawned = bool(found) or test.error_code in _SPAWNED
    reached = {
        "spawn": spawned,
        "handshake": bool(found),
        "discover": bool(found and report.listed),
    }
    if test.call_tool:
        reached["call"] = report.result is not None and not report.result.get("isError")
    steps: list[dict[str, Any]] = []
    for name, ok in reached.items():
        steps.append(
            {"step": name, "ok": ok}
            | ({} if ok else {"code": test.error_code, "error": test.error})
        )
        if not ok:
            break
    return steps


def _report_test(request: MaintenanceRequest, _: Any) -> None:
    test = ServerTest.objects.filter(pk=request.notes["test"]).select_related("server").first()
    facts = (
        {}
        if test is None
        else {
            "protocol": test.protocol_era,
            "tools": test.tool_count,
            "timings_ms": test.timings,
            "left_out": test.server.left_out,
        }
    )
    waiting = Tool.objects.filter(server__slug=request.server_slug, pinned=None).count()
    request.result = {
        "ok": request.notes["ok"],
        "steps": request.notes["steps"],
        "test": request.notes["test"],
        "tools_waiting_for_approval": waiting,
        **facts,
    }


# search_servers: query, limit


def search_for_request(request: MaintenanceRequest, query: str, limit: int) -> dict[str, Any]:
    """The servers of this site that whoever asked knows of, and what registries list, best
    first."""
    servers = _query_visible_servers(request)
    tools: dict[int, list[str]] = {}
    for key, name in Tool.objects.filter(server__in=servers, pinned__isnull=False).values_list(
        "server_id", "name"
    ):
        tools.setdefault(key, []).append(name)
    known = [
        Known(row.slug, row.name, row.description, tuple(tools.get(row.pk, ()))) for row in servers
    ]
    found = search(query, known, limit)
    return {
        "servers": [
            {"server": match.slug, "score": match.score, "reasons": list(match.reasons)}
            for match in found
        ],
        "registry_entries": registry_listings.search_entries(query, limit)
        if _may_search(request)
        else [],
    }


def _may_search(request: MaintenanceRequest) -> bool:
    """People search registries whenever they ask for it; for agents only where a person has
    switched that on."""
    return not request.agent or Configuration.load().discovers


def _search(request: MaintenanceRequest, _: Any) -> None:
    query = str(request.params["query"])
    limit = min(int(request.params.get("limit") or 10), MOST_FOUND)
    found = search_for_request(request, query, limit)
    found["registry_entries"] = _put_chosen_first(request, found["registry_entries"])
    registries = " and its copies of registries" if _may_search(request) else _NO_REGISTRIES
    request.result = found | {"searched": f"the servers of this site{registries}"}


def _put_chosen_first(
    request: MaintenanceRequest, entries: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """What a model has chosen, as registries list it now, before the others; it chooses only where
    it may search."""
    picked = (request.notes.get("model") or {}).get("chosen", ()) if _may_search(request) else ()
    chosen = registry_listings.describe_proposed_entries(picked)
    return [*chosen, *(each for each in entries if each not in chosen)]


# add_server: server (its slug), purpose, fields, registry_name


def _look_for_namesake(request: MaintenanceRequest, _: Any) -> None:
    """An agent is not told of servers that it may not use: whoever decides on its proposal sees
    that there is one."""
    if not request.agent and Server.objects.filter(slug=request.server_slug).exists():
        raise Conflict(
            error_texts.say_already_exists("server", request.server_slug),
            remedy=error_texts.CHOOSE_ANOTHER_NAME,
        )
    fields = request.params.get("fields") or {}
    if name := request.params.get("registry_name"):
        registry_listings.find_by_name(name)
    if fields:
        check_server(_with(Server(slug=request.server_slug), fields))


def _propose_new(request: MaintenanceRequest, _: Any) -> None:
    """Where nobody says how it is started, what registries list is proposed to choose from: named,
    or searched for."""
    fields = request.params.get("fields") or {}
    name = request.params.get("registry_name")
    _propose(request, None, fields, request.params.get("purpose", ""))
    if name:
        entries = registry_listings.find_by_name(name)
    elif fields or not _may_search(request):
        return
    else:
        entries = registry_listings.fitting(
            request.server_slug, request.params.get("purpose", ""), MOST_PROPOSED
        )
    request.result = {
        **(request.result or {}),
        "registry_entries": _put_chosen_first(request, entries),
    }


# modify_server: server, fields, reason; remove_server: server, reason


def _check_change(request: MaintenanceRequest, _: Any) -> None:
    fields = {name: value for name, value in request.params["fields"].items() if name != SWITCH}
    changed = _with(copy(load_server(request)), fields)
    check_server(changed)
    check_fields(changed)


def _propose_change(request: MaintenanceRequest, _: Any) -> None:
    """Of an agent everything is proposed as it came: it must not find out by asking what a server's
    fields hold."""
    server = load_server(request)
    fields = request.params["fields"]
    same = {
        name
        for name, value in fields.items()
        if getattr(server, name) == value and not request.agent
    }
    if len(same) == len(fields):
        raise Conflict(
            "The server already has these values.", remedy="Nothing needs to be changed."
        )
    _propose(
        request,
        server,
        {name: fields[name] for name in fields if name not in same},
        request.params["reason"],
    )


def _propose_removal(request: MaintenanceRequest, _: Any) -> None:
    _propose(request, load_server(request), {}, request.params["reason"])


def _propose(
    request: MaintenanceRequest, server: Server | None, fields: Mapping[str, Any], reason: str
) -> None:
    as_it_is = (
        {"server_revision": server.revision, "server_saved_at": server.updated_at} if server else {}
    )
    made = Proposal.objects.create(
        request=request,
        server=server,
        fields=dict(fields),
        reason=reason,
        created_at=timezone.now(),
        **as_it_is,
    )
    request.result = {"proposal": made.pk, "waits_for": "a person", "fields": dict(fields)}


PLANS: Mapping[Kind, tuple[PlanStep, ...]] = {
    Kind.TEST: (
        PlanStep("config", "Checking the configuration of the server.", 10, _look_at_server),
        PlanStep("probe", "Starting the server and reading its tools.", 70, _keep_test, _probe),
        PlanStep("report", "Writing the report.", 100, _report_test),
    ),
    Kind.TRY: (
        PlanStep("config", "Checking the configuration of the server.", 5, trying.look_at_server),
        PlanStep(
            "legacy",
            "Starting the server in its sandbox with the session-based protocol.",
            35,
            trying.keep_start,
            trying.start_legacy,
        ),
        PlanStep(
            "modern",
            "Starting the server in its sandbox with the stateless protocol.",
            65,
            trying.keep_start,
            trying.start_modern,
        ),
        PlanStep(
            "open",
            "Checking whether the server needs network access.",
            80,
            trying.keep_open,
            trying.start_open,
        ),
        PlanStep(
            "sessions",
            "Comparing the answers of the server in two sessions.",
            95,
            trying.keep_sessions,
            trying.compare_sessions,
        ),
        PlanStep("report", "Writing the report.", 100, trying.keep_report),
    ),
    Kind.SEARCH: (
        PlanStep("search", "Searching the servers of this site and its registries.", 100, _search),
    ),
    Kind.ADD: (
        PlanStep("look", "Checking whether the server exists.", 40, _look_for_namesake),
        PlanStep("propose", "Writing the proposal.", 100, _propose_new),
    ),
    Kind.MODIFY: (
        PlanStep("check", "Checking whether the change can work.", 40, _check_change),
        PlanStep("propose", "Writing the proposal.", 100, _propose_change),
    ),
    Kind.REMOVE: (PlanStep("propose", "Writing the proposal.", 100, _propose_removal),),
}


def _with(server: Server, fields: Mapping[str, Any]) -> Server:
    if odd := sorted(set(fields) - set(FIELDS)):
        raise ConfigInvalid(
            f"A proposal cannot change these fields: {', '.join(odd)}.",
            remedy=f"Use only {', '.join(FIELDS)}.",
        )
    for name, value in fields.items():
        setattr(server, name, value)
    return server


def _query_visible_servers(request: MaintenanceRequest) -> QuerySet[Server]:
    """The servers that the one who asked knows of: an agent those that it may use, a person all."""
    if not request.agent:
        return Server.objects.all()
    agent = Agent.objects.filter(slug=request.agent).first()
    return Server.objects.filter(pk__in=servers_of(agent) if agent else ())
