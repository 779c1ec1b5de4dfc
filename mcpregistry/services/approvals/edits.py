"""What an approver may change of a held call: arguments that fit the pinned schema, and that the
agent may use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from mcpregistry.domain.errors import ArgumentsInvalid, Conflict, Denied, SlipsnisseError
from mcpregistry.domain.host_definitions import check_call, repair_definition
from mcpregistry.domain.policy.access import may_call
from mcpregistry.domain.policy.decision import PolicyQuestion, RuleOutcome, Terms, decide
from mcpregistry.domain.text.canonical import encode_canonical_json
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import ApprovalRequest, Definition, Tool
from mcpregistry.services.approvals.requests import name_approvers
from mcpregistry.services.configuration.snapshot import load_snapshot


def find_misfit(request_id: str, arguments: Mapping[str, Any]) -> SlipsnisseError | None:
    """Why an edit does not fit the pinned schema. Found out before the transaction, which the
    schema's server could otherwise make long; a call's definition never changes, so the answer
    stays right.
    """
    request = ApprovalRequest.objects.filter(pk=request_id).select_related("call").first()
    pinned = _find_pinned_definition(request) if request is not None else None
    if pinned is None:
        return None
    try:
        kind = pinned.tool.kind
        check_call(
            kind,
            repair_definition(kind, pinned.data).definition,
            json.loads(canonicalize_arguments(arguments)),
        )
    except SlipsnisseError as error:
        return error
    return None


def _find_pinned_definition(request: ApprovalRequest) -> Definition | None:
    tools = Tool.offers.of_record(request.call.server_slug, request.call.tool_name)
    found = Definition.objects.filter(hash=request.call.definition_hash, tool__in=tools)
    return found.select_related("tool").first()


def canonicalize_arguments(arguments: Mapping[str, Any]) -> str:
    """The text in which they are stored. Raises ArgumentsInvalid."""
    try:
        return encode_canonical_json(arguments)
    except ValueError as error:
        raise ArgumentsInvalid(
            "The arguments contain a number that JSON cannot represent, or are nested too deeply.",
            remedy="Correct the arguments.",
        ) from error


def check(
    request: ApprovalRequest,
    arguments: dict[str, Any],
    misfit: SlipsnisseError | None,
    now: datetime,
) -> None:
    """Raise for an edit that does not fit the pinned schema, or reaches what the agent is not
    granted, or what the rules deny or ask more about.

    ``misfit``: what ``find_misfit`` has found.
    """
    call = request.call
    pinned = _find_pinned_definition(request)
    if pinned is None:
        raise Conflict("The tool does not exist any more.", remedy="Reject the call.")
    if misfit is not None:
        raise misfit
    snapshot = load_snapshot()
    tool = snapshot.find_offer(pinned.tool_id)
    agent = snapshot.agents.get(call.agent_slug)
    endpoint = snapshot.find_recorded_endpoint(call.endpoint_slug)
    server = snapshot.servers.get(tool.server_id) if tool else None
    if tool is None or server is None or agent is None or endpoint is None:
        raise Conflict("The tool or the agent is disabled.", remedy="Reject the call.")
    if not may_call(agent, endpoint, tool, arguments, now.timestamp()):
        raise Denied(
            f"The grants of the agent '{agent.slug}' do not allow this tool with these arguments.",
            remedy="Enter arguments that the grants allow, or reject the call.",
        )
    question = PolicyQuestion(
        agent,
        endpoint,
        server,
        tool,
        arguments,
        expert=request.expert,
        now=now.timestamp(),
        origin=call.origin,
        host=request.host,
    )
    decision = decide(snapshot.policy, question)
    if decision.outcome is RuleOutcome.DENY:
        raise Denied(
            "A rule denies the call with these arguments.",
            remedy="Enter other arguments, or reject the call.",
        )
    if objection := find_objection(request, decision.terms):
        raise Denied(
            f"{objection[0].upper()}{objection[1:]} for a call with these arguments.",
            remedy="Enter other arguments. Or reject the call, and ask the agent to make a new call with the arguments that you entered.",
        )


def find_objection(request: ApprovalRequest, terms: Terms | None) -> str:
    """Why the approval that was asked for is not enough for edited arguments; empty if it is.

    ``terms``: on which people would be asked about these arguments, if they would. It may be
    another rule that asks, but it must not need more people, another group, or somebody other than
    the requester.
    """
    if terms is None:
        return ""
    rule = (
        f"the rule '{show_invisible_characters(terms.rule, 100)}'"
        if terms.rule_id is not None
        else "the site's default"
    )
    if terms.quorum > request.quorum or terms.group_id not in (None, request.group_id):
        return f"{rule} requires {name_approvers(terms.group, terms.quorum)}"
    if request.requester_may_confirm and not terms.requester_may_confirm:
        return f"{rule} requires an approver other than the requester"
    return ""
