"""The operations of the sub-agent as tools of a run that works on a request: they look and propose,
and change nothing.

A run reaches its own request alone, and only while a worker holds that: paused, cancelled, ended or
taken away, all of them refuse. What starts a server is a step of the request's own plan, done at
most once, or one call of a tool that only reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any
from weakref import WeakValueDictionary

from django.db import transaction

from mcpregistry.calls.call import Call
from mcpregistry.calls.catalog import ToolOffer, ToolSource
from mcpregistry.calls.engine import Engine
from mcpregistry.calls.execution import Dispatcher
from mcpregistry.db import db_call, read_database_now
from mcpregistry.domain.errors import ArgumentsInvalid, Conflict, DownstreamError, SlipsnisseError
from mcpregistry.domain.snapshot import Snapshot
from mcpregistry.domain.snapshot_specs import RUNS, AgentSpec, EndpointSpec
from mcpregistry.domain.text.canonical import clean_text, encode_canonical_json
from mcpregistry.domain.trials.report import Called, ToolSeen
from mcpregistry.domain.trials.tools import MOST_CALLS, explain_skipped_call
from mcpregistry.services.tasks import long_calls
from subagents import own_tools
from subagents.domain.maintenance import ControlRequest, Kind, RequestMessageKind
from subagents.maintenance import queue, trials
from subagents.maintenance.plans import MOST_FOUND, MOST_PROPOSED, PLANS, search_for_request
from subagents.models import MaintenanceRequest
from subagents.own_tools import listing
from subagents.services.offers import SECTION

KIND = "operations"
# seconds between signs that this process works on the call still, see ``long_calls.KEEP``
_ALIVE_EVERY = 20.0
_MOST_SHOWN = 50  # tools of a server that the model is shown at a time
_SERVER = own_tools.server(-5, "sub-agent-work", "Work of the sub-agent", 60.0)
_SHORT = {"type": "string", "maxLength": 300}
_NAME = {"type": "string", "minLength": 1, "maxLength": 500}


_FINISH = listing(
    "finish_request",
    "Reports what you have found, and what users should be concerned about. Call it once, at the end.",
    ("summary",),
    summary={"type": "string", "minLength": 1, "maxLength": 2000},
    concerns={"type": "array", "maxItems": 10, "items": _SHORT},
)
_SEARCH = listing(
    "search_servers",
    "Searches the servers of this site and the entries of registries.",
    ("query",),
    query={"type": "string", "minLength": 1, "maxLength": 200},
    limit={"type": "integer", "minimum": 1, "maximum": MOST_FOUND},
)
_CHOOSE = listing(
    "choose_entries",
    "Names the best entries of registries. They must be results of a search.",
    ("entries",),
    entries={
        "type": "array",
        "maxItems": MOST_PROPOSED,
        "items": {
            "type": "object",
            "properties": {"registry": _NAME, "name": _NAME},
            "required": ["registry", "name"],
        },
    },
)
LISTINGS: Mapping[Kind, tuple[dict[str, Any], ...]] = {
    Kind.TRY: (
        listing(
            "start_trial",
            "Starts the server in its sandbox, reads its lists, and calls tools that only read. Each kind of start is done "
            "once. A start with network access is done only after a start without it, and only if network access can make a difference.",
            ("protocol",),
            protocol={"type": "string", "enum": ["legacy", "modern"]},
            network={"type": "boolean", "default": False},
        ),
        listing(
            "call_reading_tool",
            "Calls a tool that only reads, in the sandbox without network access, with your arguments. The "
            "result shows whether the tool answered, but not its answer.",
            ("tool", "arguments"),
            tool=_NAME,
            arguments={"type": "object"},
        ),
        listing(
            "propose_rules",
            "Proposes stricter rules for tools of the server: ask a user about each call, or hide the tool.",
            ("rules",),
            rules={
                "type": "array",
                "maxItems": 100,
                "items": {
                    "type": "object",
                    "required": ["tool", "rule", "why"],
                    "properties": {
                        "tool": _NAME,
                        "rule": {"type": "string", "enum": ["ask", "hide"]},
                        "why": _SHORT,
                    },
                },
            },
        ),
        _FINISH,
    ),
    Kind.TEST: (
        listing("run_test", "Starts the server, reads its lists, and stops it. This is done once."),
        _FINISH,
    ),
    Kind.SEARCH: (_SEARCH, _CHOOSE, _FINISH),
    Kind.ADD: (_SEARCH, _CHOOSE, _FINISH),
}


_NAMES = {listed["name"]: listed for listings in LISTINGS.values() for listed in listings}
_OFFERS = {
    name: own_tools.offer(KIND, _SERVER, -60 - number, listed, idempotent=True)
    for number, (name, listed) in enumerate(_NAMES.items())
}


class Operations:
    """Both the source of the operations and what serves them."""

    kind = KIND

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._one_at_a_time: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def list_offers(
        self, snapshot: Snapshot, endpoint: EndpointSpec, agent: AgentSpec, now: float
    ) -> Iterable[ToolOffer]:
        """Those of the requests that the expert tool of this agent works on, in its runs."""
        if endpoint.slug != RUNS.slug:
            return ()
        experts = [each for each in snapshot.sections.get(SECTION, ()) if each.agent == agent.slug]
        kinds = [kind for each in experts for kind in each.maintains]
        names = dict.fromkeys(
            listed["name"] for kind in kinds for listed in LISTINGS.get(Kind(kind), ())
        )
        return [_OFFERS[name] for name in names]

    async def __call__(self, call: Call, *, on_sent: Callable[[], None]) -> dict[str, Any]:
        """Do it and say what was seen. A refusal is a result marked as an error, with its
        remedy."""
        run = call.request.request_id
        lock = self._one_at_a_time.setdefault(run, asyncio.Lock())
        try:
            async with lock:
                name = call.entry.offer.tool.name
                arguments = call.request.arguments
                return own_tools.make_result(
                    await _keep_alive(call, self._run_operation(name, run, arguments))
                )
        except SlipsnisseError as error:
            return own_tools.make_refusal(error)

    async def _run_operation(
        self, name: str, run: str, arguments: Mapping[str, Any]
    ) -> dict[str, Any]:
        match name:
            case "start_trial":
                return await self._run_step(
                    run, "open" if arguments.get("network") else arguments["protocol"]
                )
            case "run_test":
                return await self._run_step(run, "probe")
            case "call_reading_tool":
                return await self._call(run, arguments["tool"], arguments["arguments"])
            case _:
                return await db_call(_apply_note, run, name, dict(arguments))

    async def _run_step(self, run: str, name: str) -> dict[str, Any]:
        request = await db_call(_claim_step, run, name)
        step = next(step for step in PLANS[Kind(request.kind)] if step.name == name)
        outcome = await step.act(self._engine, request)
        return await db_call(_keep_outcome, run, name, outcome)

    async def _call(self, run: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        request = await db_call(_about_to_call, run, tool)
        called = await trials.call_once(
            self._engine, request, tool, encode_canonical_json(arguments).encode()
        )
        return await db_call(_record_call, run, tool, called)


def operations_source(engine: Engine) -> tuple[ToolSource, Dispatcher]:
    """The source and its dispatcher for an engine; registered with
    ``subagents.extension``."""
    served = Operations(engine)
    return served, served


async def _keep_alive(call: Call, work: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    """What ``work`` comes to, however long that takes; it ends with whoever waits for it."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=_ALIVE_EVERY))[0]:
            if not await db_call(long_calls.renew_call_lease, call_id=call.id, fence=call.fence):
                raise DownstreamError(
                    "The outcome is unknown: the process did not report in time, so the call was ended. The call may have taken "
                    "effect.",
                    remedy="Check what the call has done before you repeat it.",
                    sent=True,
                )
        return task.result()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task


def _load_claimed_request(run: str, *, locked: bool = False) -> MaintenanceRequest:
    """The request that this run works on, while a worker holds it. Raises Conflict."""
    rows = MaintenanceRequest.objects.open().filter(
        notes__model__run=run, wish=ControlRequest.NONE, lease_until__gte=read_database_now()
    )
    if locked:
        rows = rows.select_for_update()
    found = rows.first() if run else None
    if found is None or found.notes["model"]["ended"]:
        raise Conflict(
            "This tool works only while the run works on a maintenance request. This run does not work on one now.",
            remedy="Answer without this tool.",
        )
    return found


def _check_offered(request: MaintenanceRequest, name: str) -> None:
    if name not in {listed["name"] for listed in LISTINGS[Kind(request.kind)]}:
        raise Conflict(
            f"{name} cannot be used for a request of type {request.kind}.",
            remedy="Use another tool, or call finish_request.",
        )


@transaction.atomic
def _claim_step(run: str, name: str) -> MaintenanceRequest:
    """The request, once its step ``name`` may be done. Raises Conflict where it has none, was done,
    or is too early."""
    request = _load_claimed_request(run)
    step = next((step for step in PLANS[Kind(request.kind)] if step.name == name), None)
    if step is None:
        raise Conflict(
            f"This tool cannot be used for a request of type {request.kind}.",
            remedy="Use another tool, or call finish_request.",
        )
    if name in request.notes.get("done", ()):
        raise Conflict(
            "This step is already done.", remedy="Continue with the results of the step."
        )
    if name == "open" and not request.notes["starts"]:
        raise Conflict(
            "The server was not started without network access yet.",
            remedy="Call start_trial without network access first.",
        )
    MaintenanceRequest.objects.filter(pk=request.pk).update(message=step.says)
    queue.tell(
        request, RequestMessageKind.STATUS, progress=request.progress, step=name, message=step.says
    )
    return request


@transaction.atomic
def _keep_outcome(run: str, name: str, outcome: Any) -> dict[str, Any]:
    request = _load_claimed_request(run, locked=True)
    step = next(step for step in PLANS[Kind(request.kind)] if step.name == name)
    step.keep(request, outcome)
    request.notes["done"] = [*request.notes.get("done", ()), name]
    _save(request, progress=max(request.progress, step.progress))
    return _describe_progress(request)


def _save(request: MaintenanceRequest, **values: Any) -> None:
    MaintenanceRequest.objects.filter(pk=request.pk).update(notes=request.notes, **values)


def _describe_progress(request: MaintenanceRequest) -> dict[str, Any]:
    """What was seen so far, as the model reads it."""
    notes = request.notes
    if request.kind == Kind.TEST:
        return {"steps": notes["steps"], "ok": notes["ok"]}
    start = notes["starts"][-1] if notes["starts"] else {}
    listed = notes.get("definitions", {})
    tools = [
        {name: tool[name] for name in ("name", "reads", "destroys", "found", "schema", "call")}
        | listed.get(tool["name"], {})
        for tool in (notes["opened"] or notes["tools"])[:_MOST_SHOWN]
    ]
    return {
        "start": {
            name: start.get(name) for name in ("era", "network", "ok", "error", "tools", "denied")
        },
        "tools": tools,
    }


def _tool(request: MaintenanceRequest, name: str) -> ToolSeen:
    seen: list[ToolSeen] = request.notes.get("tools", [])
    if (found := next((tool for tool in seen if tool["name"] == name), None)) is None:
        raise ArgumentsInvalid(
            f'The server has never listed a tool named "{clean_text(name, 80)}".',
            remedy="Start the server first, and use the name of a listed tool.",
        )
    return found


def _about_to_call(run: str, name: str) -> MaintenanceRequest:
    request = _load_claimed_request(run)
    _check_offered(request, "call_reading_tool")
    if why := explain_skipped_call(_tool(request, name), request.notes["model"].get("calls", 0)):
        raise Conflict(
            f"The tool cannot be called here: {why}.", remedy="Leave this call to a user."
        )
    return request


@transaction.atomic
def _record_call(run: str, name: str, called: Called) -> dict[str, Any]:
    request = _load_claimed_request(run, locked=True)
    model = request.notes["model"]
    tool = _tool(request, name)
    model["calls"] = model.get("calls", 0) + 1
    if called.get("outcome") == "ok" or tool["call"].get("outcome") == "skipped":
        tool["call"] = called
    _save(request)
    return {"call": called, "calls left": MOST_CALLS - model["calls"]}


@transaction.atomic
def _apply_note(run: str, name: str, given: dict[str, Any]) -> dict[str, Any]:
    """What only reads or writes the request's notes."""
    request = _load_claimed_request(run, locked=True)
    _check_offered(request, name)
    model = request.notes["model"]
    match name:
        case "search_servers":
            said = search_for_request(request, given["query"], given.get("limit", 10))
            model["seen"] = [
                *model["seen"],
                *([each["registry"], each["name"]] for each in said["registry_entries"]),
            ][-500:]
        case "choose_entries":
            said = {"chosen": _choose_entries(model, given["entries"])}
        case "propose_rules":
            said = {"proposed": _propose_rules(request, model, given["rules"])}
        case _:
            model |= {
                "said": clean_text(given["summary"], 2_000),
                "concerns": [clean_text(each, 300) for each in given.get("concerns", ())],
            }
            said = {"written": True}
    _save(request)
    return said


def _choose_entries(model: dict[str, Any], entries: list[dict[str, str]]) -> int:
    wanted = [[each["registry"], each["name"]] for each in entries]
    if unknown := [name for registry, name in wanted if [registry, name] not in model["seen"]]:
        raise ArgumentsInvalid(
            f"No search of this run has found these entries: {clean_text(', '.join(unknown), 200)}.",
            remedy="Choose entries from the results of search_servers.",
        )
    model["chosen"] = wanted
    return len(wanted)


def _propose_rules(
    request: MaintenanceRequest, model: dict[str, Any], rules: list[dict[str, str]]
) -> int:
    for each in rules:
        _tool(request, each["tool"])
    model["rules"] |= {
        each["tool"]: {"rule": each["rule"], "why": clean_text(each["why"], 300)} for each in rules
    }
    return len(rules)
