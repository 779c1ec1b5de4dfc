"""The check just before the claim: is what was approved still exactly what would run?"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from mcpregistry.calls.call import Call, CallRequest, Host
from mcpregistry.calls.catalog import Catalogue, Entry
from mcpregistry.domain.calls.forwarding import AS_TASK, NOTHING, Forwarding
from mcpregistry.domain.calls.requester import Requester
from mcpregistry.domain.errors import Conflict, NotFound
from mcpregistry.domain.kinds import read
from mcpregistry.domain.policy.access import may_call
from mcpregistry.domain.policy.decision import Decision, Outcome, Policy, Question, decide
from mcpregistry.models import ApprovalRequest
from mcpregistry.services.approvals.edits import find_objection
from mcpregistry.services.approvals.requests import binding_for, current_arguments

CatalogueOf = Callable[[str, str], Catalogue]


class GroundLost(Conflict):
    """What was approved is no longer what would run; the message says what has changed."""

    code = "VOID"


def resume(
    request: ApprovalRequest,
    *,
    catalogue_of: CatalogueOf,
    policy: Policy,
    now: datetime,
    call: Call | None = None,
) -> Call:
    """The approved call as it would run now. ``call``: as its caller made it, if the caller is
    here.

    Raises GroundLost.
    """
    row = request.call
    try:
        catalogue = catalogue_of(row.endpoint_slug, row.agent_slug)
    except NotFound as error:
        raise GroundLost("the agent or the endpoint was disabled") from error
    kind, name = read(row.tool_name)
    catalogue = catalogue.of_kind(kind)
    entry = catalogue.find(f"{row.server_slug}::{name}")
    if entry is None:
        raise GroundLost("the tool no longer exists or is no longer granted")
    _check_same(request, entry)
    arguments = json.loads(current_arguments(request))
    if not may_call(
        catalogue.agent, catalogue.endpoint, entry.offer.tool, arguments, now.timestamp()
    ):
        raise GroundLost("the agent's grants no longer allow these arguments")
    decision = _check_rules(request, catalogue, entry, policy=policy, now=now, arguments=arguments)
    asked = call.request if call else _request(request, catalogue, entry)
    return Call(
        id=row.pk,
        request=asked,
        entry=entry,
        arguments_json=current_arguments(request),
        binding=row.binding,
        decision=decision,
        received_at=row.received_at,
        started=time.monotonic() - (now - row.received_at).total_seconds(),
        fence=row.fence,
    )


def _check_same(request: ApprovalRequest, entry: Entry) -> None:
    row = request.call
    server = entry.offer.server
    tool = entry.offer.tool
    if server.revision != row.server_revision:
        raise GroundLost(f"the settings of the server {server.slug} were changed")
    if tool.definition_hash != row.definition_hash:
        raise GroundLost("the tool's definition was changed")
    if binding_for(request) != row.binding:
        raise GroundLost("the recorded call differs from the call that was approved")


def _check_rules(
    request: ApprovalRequest,
    catalogue: Catalogue,
    entry: Entry,
    *,
    policy: Policy,
    now: datetime,
    arguments: Mapping[str, Any],
) -> Decision:
    """The rule that asked must still ask, as it was. Rules may not deny what would run at this
    moment, and of edited arguments they may not ask more than was asked.
    """
    row = request.call

    def decided(on: Mapping[str, Any], at: datetime) -> Decision:
        question = Question(
            catalogue.agent,
            catalogue.endpoint,
            entry.offer.server,
            entry.offer.tool,
            on,
            expert=request.expert,
            now=at.timestamp(),
            origin=row.origin,
            host=request.host,
        )
        return decide(policy, question)

    asked = decided(json.loads(row.arguments), request.asked_at)
    if asked.terms is None or asked.terms.fingerprint != request.rule_fingerprint:
        raise GroundLost(
            f"the rule that held the call ({request.rule_name}) was changed, or another rule applies now"
        )
    if decided(arguments, now).outcome is Outcome.DENY:
        raise GroundLost("a rule now denies the call")
    if request.edited and (
        objection := find_objection(request, decided(arguments, request.asked_at).terms)
    ):
        raise GroundLost(f"{objection} for the edited arguments")
    return asked


def _request(request: ApprovalRequest, catalogue: Catalogue, entry: Entry) -> CallRequest:
    """Of a caller that is not here: nobody hears of progress."""
    row = request.call
    return CallRequest(
        catalogue,
        entry.name,
        json.loads(row.arguments),
        row.origin,
        host_name=row.host_name,
        request_id=row.request_id,
        host=Host(name=request.host, forwarding=_forwarding(request)),
        expert=request.expert,
        requester=Requester(row.requester_id, row.requester),
        conversation=row.conversation_id or "",
    )


def _forwarding(request: ApprovalRequest) -> Forwarding:
    """A host that holds a task of ours can bear that the server makes one, too."""
    return AS_TASK if request.waiting_as == ApprovalRequest.Waiting.TASK else NOTHING
