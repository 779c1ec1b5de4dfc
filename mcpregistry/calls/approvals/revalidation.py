"""The check just before the claim: is what was approved still exactly what would run?"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from mcpregistry.calls.call import Call, CallHost, CallRequest
from mcpregistry.calls.catalog import Catalogue, CatalogueEntry
from mcpregistry.domain.calls.forwarding import AS_TASK, NOTHING, Forwarding
from mcpregistry.domain.calls.requester import Requester
from mcpregistry.domain.errors import Conflict, NotFound
from mcpregistry.domain.offer_kinds import parse_offer_key
from mcpregistry.domain.policy.access import may_call
from mcpregistry.domain.policy.decision import (
    CallPolicy,
    Decision,
    PolicyQuestion,
    RuleOutcome,
    decide,
)
from mcpregistry.models import ApprovalRequest
from mcpregistry.services.approvals.edits import find_objection
from mcpregistry.services.approvals.requests import get_current_arguments, recompute_binding

CatalogueOf = Callable[[str, str], Catalogue]


class ApprovalVoidError(Conflict):
    """What was approved is no longer what would run; the message says what has changed."""

    code = "VOID"


def revalidate_call(
    request: ApprovalRequest,
    *,
    catalogue_of: CatalogueOf,
    policy: CallPolicy,
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
        raise ApprovalVoidError("the agent or the endpoint was disabled") from error
    kind, name = parse_offer_key(row.tool_name)
    catalogue = catalogue.get_kind(kind)
    entry = catalogue.find(f"{row.server_slug}::{name}")
    if entry is None:
        raise ApprovalVoidError("the tool no longer exists or is no longer granted")
    _check_same(request, entry)
    arguments = json.loads(get_current_arguments(request))
    if not may_call(
        catalogue.agent, catalogue.endpoint, entry.offer.tool, arguments, now.timestamp()
    ):
        raise ApprovalVoidError("the agent's grants no longer allow these arguments")
    decision = _check_rules(request, catalogue, entry, policy=policy, now=now, arguments=arguments)
    asked = call.request if call else _build_request(request, catalogue, entry)
    return Call(
        id=row.pk,
        request=asked,
        entry=entry,
        arguments_json=get_current_arguments(request),
        binding=row.binding,
        decision=decision,
        received_at=row.received_at,
        started=time.monotonic() - (now - row.received_at).total_seconds(),
        fence=row.fence,
    )


def _check_same(request: ApprovalRequest, entry: CatalogueEntry) -> None:
    row = request.call
    server = entry.offer.server
    tool = entry.offer.tool
    if server.revision != row.server_revision:
        raise ApprovalVoidError(f"the settings of the server {server.slug} were changed")
    if tool.definition_hash != row.definition_hash:
        raise ApprovalVoidError("the tool's definition was changed")
    if recompute_binding(request) != row.binding:
        raise ApprovalVoidError("the recorded call differs from the call that was approved")


def _check_rules(
    request: ApprovalRequest,
    catalogue: Catalogue,
    entry: CatalogueEntry,
    *,
    policy: CallPolicy,
    now: datetime,
    arguments: Mapping[str, Any],
) -> Decision:
    """The rule that asked must still ask, as it was. Rules may not deny what would run at this
    moment, and of edited arguments they may not ask more than was asked.
    """
    row = request.call

    def decide_at(on: Mapping[str, Any], at: datetime) -> Decision:
        question = PolicyQuestion(
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

    asked = decide_at(json.loads(row.arguments), request.asked_at)
    if asked.terms is None or asked.terms.fingerprint != request.rule_fingerprint:
        raise ApprovalVoidError(
            f"the rule that held the call ({request.rule_name}) was changed, or another rule applies now"
        )
    if decide_at(arguments, now).outcome is RuleOutcome.DENY:
        raise ApprovalVoidError("a rule now denies the call")
    if request.edited and (
        objection := find_objection(request, decide_at(arguments, request.asked_at).terms)
    ):
        raise ApprovalVoidError(f"{objection} for the edited arguments")
    return asked


def _build_request(
    request: ApprovalRequest, catalogue: Catalogue, entry: CatalogueEntry
) -> CallRequest:
    """Of a caller that is not here: nobody hears of progress."""
    row = request.call
    return CallRequest(
        catalogue,
        entry.name,
        json.loads(row.arguments),
        row.origin,
        host_name=row.host_name,
        request_id=row.request_id,
        host=CallHost(name=request.host, forwarding=_choose_forwarding(request)),
        expert=request.expert,
        requester=Requester(row.requester_id, row.requester),
        conversation=row.conversation_id or "",
    )


def _choose_forwarding(request: ApprovalRequest) -> Forwarding:
    """A host that holds a task of ours can bear that the server makes one, too."""
    return AS_TASK if request.waiting_as == ApprovalRequest.Waiting.TASK else NOTHING
