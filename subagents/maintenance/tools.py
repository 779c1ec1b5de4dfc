"""The four tools by which agents talk to the background sub-agent, on endpoints that have them.

They are our own: no grant is needed and no rule asked. They answer at once, whatever the sub-agent
is doing, and change nothing by themselves: an addition is proposed to people, and an agent sees
only its own requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any

from django.db import Error

from mcpregistry.calls import energy
from mcpregistry.calls.call import Call, OnProgress
from mcpregistry.calls.catalog import Catalogue, CatalogueEntry, ToolOffer, ToolSource
from mcpregistry.calls.engine import Engine
from mcpregistry.calls.execution import Dispatcher
from mcpregistry.calls.watch.changes import Feed
from mcpregistry.database_errors import is_outcome_unknown
from mcpregistry.db import db_call
from mcpregistry.domain.errors import NotFound, SlipsnisseError
from mcpregistry.domain.snapshot import Snapshot
from mcpregistry.domain.snapshot_specs import RUNS, AgentSpec, EndpointSpec
from mcpregistry.domain.text.canonical import clean_text
from mcpregistry.models import Agent
from subagents import own_tools
from subagents.domain.maintenance import Kind, Priority, ProposalState, State
from subagents.maintenance import queue, supervision
from subagents.maintenance.request_waiting import LONGEST, RequestWaiter
from subagents.models import MaintenanceRequest, Proposal, TrialReport
from subagents.own_tools import listing, make_result
from subagents.services.offers import speaks

KIND = "maintenance"
_SERVER = own_tools.server(-3, "sub-agent", "Sub-agent", LONGEST + 10.0)
_ID = {
    "type": "string",
    "minLength": 1,
    "maxLength": 36,
    "description": "requestId from the answer to your request",
}


LISTINGS: tuple[Mapping[str, Any], ...] = (
    listing(
        "mcp_request_server_addition",
        "Asks the background sub-agent for an MCP server that is missing here. The answer is a requestId and comes immediately. "
        "A user decides on what the sub-agent proposes, so do not wait for it.",
        ("serverName", "purpose"),
        title="Ask for a server",
        serverName={
            "type": "string",
            "pattern": "^[A-Za-z0-9][A-Za-z0-9.-]{0,62}$",
            "description": "Short name of the server.",
        },
        purpose={
            "type": "string",
            "minLength": 1,
            "maxLength": 500,
            "description": "What the server is needed for.",
        },
        registryName={
            "type": "string",
            "maxLength": 200,
            "description": "Name of the server in an MCP registry, if you know it.",
        },
        priority={"type": "string", "enum": ["low", "medium", "high"], "default": "medium"},
    ),
    listing(
        "mcp_check_subagent_status",
        "Returns the status of a request: its state, its progress from 0 to 100, the current step, and the result or error.",
        ("requestId",),
        title="Status of a request to the sub-agent",
        reads=True,
        requestId=_ID,
        waitSeconds={
            "type": "integer",
            "minimum": 0,
            "maximum": LONGEST,
            "default": 0,
            "description": "Maximum number of seconds to wait for the end of the request. Default 0: answer immediately.",
        },
    ),
    listing(
        "mcp_cancel_subagent_work",
        "Cancels a request that is no longer needed, and stops what it has started.",
        ("requestId",),
        title="Cancel a request to the sub-agent",
        requestId=_ID,
        reason={"type": "string", "maxLength": 500, "description": "Reason for the cancellation."},
    ),
    listing(
        "mcp_list_available_tools",
        "Lists all tools that you can call here, with their server, their description and the estimated energy cost of a call.",
        title="List the available tools",
        reads=True,
    ),
)


_OFFERS = tuple(
    own_tools.offer(
        KIND, _SERVER, -10 - number, listed, idempotent=listed["annotations"]["readOnlyHint"]
    )
    for number, listed in enumerate(LISTINGS)
)


class MaintenanceTools:
    """Both the source of the four tools and what serves them. ``feed``: tells of changes to callers
    that wait."""

    kind = KIND

    def __init__(self, feed: Feed) -> None:
        self._waiting = RequestWaiter(feed)

    def list_offers(
        self, snapshot: Snapshot, endpoint: EndpointSpec, agent: AgentSpec, now: float
    ) -> Iterable[ToolOffer]:
        """All four, on endpoints that have them, and in runs of hosted agents."""
        inner = endpoint.slug == RUNS.slug and speaks(snapshot, agent.slug)
        return _OFFERS if endpoint.maintenance_tools or inner else ()

    async def __call__(self, call: Call, *, on_sent: Callable[[], None]) -> dict[str, Any]:
        """Do it and say how it stands. A refusal is a result marked as an error, with its
        remedy."""
        name = call.entry.offer.tool.name
        arguments = call.request.arguments
        agent = call.request.catalogue.agent.slug
        try:
            match name:
                case "mcp_request_server_addition":
                    ask = partial(db_call, _ask, agent, arguments, call.request.conversation)
                    return make_result(await _write_and_report(ask, on_sent))
                case "mcp_check_subagent_status":
                    return make_result(
                        await self._describe_state(agent, arguments, call.request.on_progress)
                    )
                case "mcp_cancel_subagent_work":
                    key = arguments["requestId"]
                    reason = arguments.get("reason", "")
                    return make_result(
                        await _write_and_report(
                            partial(db_call, _cancel, agent, key, reason), on_sent
                        )
                    )
                case _:
                    return make_result({"tools": await _list_tools(call.request.catalogue)})
        except SlipsnisseError as error:
            return own_tools.make_refusal(error)

    async def _describe_state(
        self, agent: str, arguments: Mapping[str, Any], on_progress: OnProgress | None
    ) -> dict[str, Any]:
        found = await db_call(_status, agent, arguments["requestId"])
        seconds = arguments.get("waitSeconds", 0)
        if not seconds or found["state"] in (State.COMPLETED, State.FAILED):
            return found
        await self._waiting.wait_until_ended(found["requestId"], seconds, on_progress)
        return await db_call(_status, agent, found["requestId"])


async def _write_and_report(
    write: Callable[[], Awaitable[dict[str, Any]]], on_sent: Callable[[], None]
) -> dict[str, Any]:
    """What the write says. Where nobody hears whether it was committed, the call has been "sent":
    its end is unknown."""
    try:
        return await write()
    except asyncio.CancelledError:
        on_sent()
        raise
    except Error as error:
        if is_outcome_unknown(error):
            on_sent()
        raise


def maintenance_source(engine: Engine) -> tuple[ToolSource, Dispatcher]:
    """The source and its dispatcher for an engine; registered with
    ``subagents.extension``."""
    served = MaintenanceTools(engine.feed)
    return served, served


def status(row: MaintenanceRequest) -> dict[str, Any]:
    """The record of the sub-agent's design: ``SubAgentStatus``."""
    return {
        "requestId": row.pk,
        "state": row.state,
        "substate": row.substate,
        "progress": row.progress,
        "message": supervision.describe_status(row),
        "energyConsumed": round(row.energy_total, 3),
        "result": row.result,
        "error": row.error or None,
    }


def _ask(agent: str, arguments: Mapping[str, Any], conversation: str) -> dict[str, Any]:
    row = queue.ask(
        kind=Kind.ADD,
        actor=f"agent:{agent}",
        agent=Agent.objects.get(slug=agent),
        priority=Priority[arguments.get("priority", "medium").upper()],
        params={
            "server": arguments["serverName"],
            "purpose": arguments["purpose"],
            "fields": {},
            "registry_name": arguments.get("registryName", ""),
        },
        conversation=conversation,
    )
    return status(row)


def _status(agent: str, request_id: str) -> dict[str, Any]:
    row = _find_own_request(agent, request_id)
    return status(row) | _describe_trial(row)


def _describe_trial(row: MaintenanceRequest) -> dict[str, Any]:
    """How the server that was added at this request did when it was last tried; no more of it is
    told to an agent."""
    if row.kind != Kind.ADD:
        return {}
    added = Proposal.objects.filter(request=row, state=ProposalState.APPLIED)
    made = added.values_list("server_id", "install__server_id").first() or ()
    trial = TrialReport.objects.filter(server__in=[key for key in made if key]).first()
    return (
        {"trial": {"verdict": trial.verdict, "at": trial.created_at.isoformat()}} if trial else {}
    )


def _cancel(agent: str, request_id: str, reason: str) -> dict[str, Any]:
    row = _find_own_request(agent, request_id)
    return status(queue.cancel(request_id=row.pk, actor=f"agent:{agent}", reason=reason))


def _find_own_request(agent: str, request_id: str) -> MaintenanceRequest:
    row = MaintenanceRequest.objects.filter(agent=agent, pk=request_id.replace("-", "")).first()
    if row is None:
        raise NotFound(
            f'You have no request with the requestId "{clean_text(request_id, 40)}".',
            remedy="Use the requestId from the answer to your request.",
        )
    return row


async def _list_tools(catalogue: Catalogue) -> list[dict[str, Any]]:
    costs = await energy.estimate_costs(catalogue)
    return [_describe_tool(name, entry, costs) for name, entry in catalogue.entries.items()]


def _describe_tool(name: str, entry: CatalogueEntry, costs: Mapping[int, float]) -> dict[str, Any]:
    cost = costs.get(entry.offer.tool.id)
    return {
        "name": name,
        "server": entry.offer.server.slug,
        "description": str(entry.listing.get("description", ""))[:300],
    } | ({} if cost is None else {"estimatedEnergyCost": round(cost, 2)})
