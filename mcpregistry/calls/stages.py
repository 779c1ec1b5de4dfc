"""The pipeline's first stages, which need nothing but their arguments: resolve, authorise,
validate, decide, bind.

Each raises a SlipsnisseError when it refuses; ``calls/pipeline.py`` says in which order they come.
"""

from __future__ import annotations

import time
from typing import Any

from mcpregistry.calls.call import CallRequest
from mcpregistry.calls.catalog import CatalogueEntry
from mcpregistry.domain.apps import is_app
from mcpregistry.domain.calls.binding import compute_binding
from mcpregistry.domain.errors import ArgumentsInvalid, Denied, NotFound
from mcpregistry.domain.host_definitions import check_call
from mcpregistry.domain.policy.access import may_begin, may_call
from mcpregistry.domain.policy.decision import (
    CallPolicy,
    Decision,
    PolicyQuestion,
    RuleOutcome,
    decide,
)
from mcpregistry.domain.text.canonical import clean_text, encode_canonical_json

NO_ENTRY: Any = None  # of a call whose tool was not found: only its refusal is recorded
UNDECIDED = Decision(RuleOutcome.DENY, "")
_OWN = Decision(
    RuleOutcome.ALLOW,
    "a tool of this site: it only reports on calls, or the rules apply to each call that it makes",
)


def make_unlisted_remedy(kind: str) -> str:
    """What to do about a name that is absent or not granted; the same words for both."""
    return f"Use a name from this agent's list of {kind}s. If the {kind} is missing there, ask an administrator for a grant."


def resolve(request: CallRequest) -> CatalogueEntry:
    """The entry with exactly this name.

    Raises ``NotFound``, the same for an absent tool and one that is not granted.
    """
    entry = request.catalogue.find(request.name)
    if entry is None:
        kind = request.catalogue.kind
        raise NotFound(
            f"Unknown {kind}: {clean_text(request.name, 200)}", remedy=make_unlisted_remedy(kind)
        )
    return entry


def authorise(request: CallRequest, entry: CatalogueEntry) -> None:
    """Check the grants once more, with the arguments: the list may be older than a grant's end, and
    pins show only now."""
    catalogue = request.catalogue
    if entry.offer.own:
        return
    agent = catalogue.agent
    endpoint = catalogue.endpoint
    by = entry.offer.by
    # With which arguments the tool was called that grants it was looked at then.
    granted = may_call if by is None else may_begin
    if not granted(
        agent,
        endpoint,
        by or entry.offer.tool,
        request.arguments if by is None else {},
        time.time(),
    ):
        raise Denied(
            f"The agent '{catalogue.agent.slug}' has no grant for '{entry.name}' with these arguments.",
            remedy="Use arguments that a grant of the agent allows, or ask the operator for another grant.",
        )


def validate(request: CallRequest, entry: CatalogueEntry) -> str:
    """The canonical JSON of the arguments, checked against the approved input schema."""
    tool = entry.offer.tool
    check_call(tool.kind, tool.data, request.arguments)
    try:
        return encode_canonical_json(request.arguments)
    except ValueError as error:
        raise ArgumentsInvalid(
            "The arguments contain a number that is not valid in JSON (NaN or infinity), or are nested too deeply.",
            remedy="Correct the arguments and call again.",
        ) from error


def bind(
    request: CallRequest, entry: CatalogueEntry, arguments_json: str, decision: Decision
) -> str:
    """The hash over everything that was decided on; any change of it gives another one."""
    server = entry.offer.server
    tool = entry.offer.tool
    catalogue = request.catalogue
    return compute_binding(
        agent=catalogue.agent.slug,
        endpoint=catalogue.endpoint.slug,
        server=server.slug,
        revision=server.revision,
        tool=clean_text(tool.key, 500),
        definition=tool.definition_hash,
        arguments=arguments_json,
        fingerprint=decision.terms.fingerprint if decision.terms else "",
        requester=request.requester.id,
        conversation=request.conversation,
    )


def decide_call(request: CallRequest, entry: CatalogueEntry, policy: CallPolicy) -> Decision:
    """What the rules say; of our own tools, that they run."""
    if entry.offer.own:
        return _OWN
    decision = decide(policy, _build_question(request, entry))
    return (
        decision
        if entry.offer.by is None or decision.outcome is not RuleOutcome.ASK
        else _decide_without_approval(entry, decision)
    )


def _decide_without_approval(entry: CatalogueEntry, decision: Decision) -> Decision:
    """People are not asked about what no list has. A page belongs to what was approved of its tool,
    so it is read unless a rule speaks of it.
    """
    if is_app(entry.offer.tool.name) and decision.rule_id is None:
        return Decision(RuleOutcome.ALLOW, "the page of an approved tool")
    said = "this resource needs an approval, but only listed resources can be approved; add a rule that allows it"
    return Decision(RuleOutcome.DENY, f"{decision.reason}: {said}", rule_id=decision.rule_id)


def _build_question(request: CallRequest, entry: CatalogueEntry) -> PolicyQuestion:
    catalogue = request.catalogue
    offer = entry.offer
    return PolicyQuestion(
        catalogue.agent,
        catalogue.endpoint,
        offer.server,
        offer.tool,
        request.arguments,
        expert=request.expert,
        now=time.time(),
        origin=request.origin,
        host=request.host.name or request.host_name,
    )


def refuse_denied(decision: Decision) -> None:
    """A call that a rule denies goes no further."""
    if decision.outcome is RuleOutcome.DENY:
        denies = "The site does not allow" if decision.rule_id is None else "A rule denies"
        raise Denied(
            f"{denies} this call: {decision.reason}.",
            remedy="Do not repeat the call. If you need it, ask the operator to change the rules.",
        )
