"""What a test or a trial of a server may call: the rules decide about it as they decide about the
call of an agent.

Both have no agent and ask no person. So rules for all agents apply, and a call about which a rule
asks is not made. ``calls/server_test_dispatch.py`` makes and records the calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from django.utils import timezone

from mcpregistry.domain.calls.requester import NOBODY, Requester
from mcpregistry.domain.errors import Conflict, Denied
from mcpregistry.domain.offer_kinds import TOOL
from mcpregistry.domain.policy.decision import (
    CallPolicy,
    Decision,
    PolicyQuestion,
    RuleOutcome,
    decide,
)
from mcpregistry.domain.snapshot_specs import (
    AgentSpec,
    EndpointSpec,
    Grants,
    GrantSpec,
    ServerSpec,
    ToolSpec,
)
from mcpregistry.models import Server, ServerTest, Tool
from mcpregistry.services.configuration.snapshot import get_current_snapshot

# the origins of these calls
TEST = "test"
TRIAL = "trial"

# No slug may contain parentheses, so records never confuse these with an agent or an endpoint.
TESTER = AgentSpec(id=0, slug="(tests)", capabilities=frozenset(), calls_per_minute=None, grants=())
TESTS = EndpointSpec(
    slug="(tests)",
    title="Tests of servers",
    instructions="",
    naming_style="double",
    description_style="none",
    lists_only=False,
    hide_unavailable=False,
    grants=(),
)


@dataclass(frozen=True, slots=True)
class OrderedTestCall:
    """A call that a test or a trial is to make.

    ``vouched_by``: the person at the command line who is responsible for the call, so that no rule
    decides about it. ``request_id``: what the record of the call refers to.
    """

    origin: str
    server_id: int
    tool: str
    arguments: Mapping[str, Any]
    requester: Requester = NOBODY
    vouched_by: str = ""
    request_id: str = ""


def read_call_order(test: ServerTest, *, vouched_by: str = "") -> OrderedTestCall:
    """The call of a test, in the name of the person who asked for the test."""
    user = test.requested_by
    requester = Requester(user.pk, user.get_username()) if user else NOBODY
    return OrderedTestCall(
        TEST,
        test.server_id,
        test.call_tool,
        test.call_arguments,
        requester,
        vouched_by,
        request_id=f"test-{test.pk}",
    )


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """An ordered call with what was decided about it. ``refusal``: why it must not be made."""

    server: ServerSpec
    tool: ToolSpec
    decision: Decision
    refusal: Denied | None

    @property
    def agent(self) -> AgentSpec:
        """The caller of all tests, which may call this tool alone."""
        if self.tool.id:
            grant = GrantSpec(server_id=None, tool_id=self.tool.id, pins={}, expires_at=None)
        else:
            grant = GrantSpec(server_id=self.server.id, tool_id=None, pins={}, expires_at=None)
        return replace(TESTER, grants=Grants((grant,)))


def refuse_call(server: Server, name: str, arguments: Mapping[str, Any]) -> None:
    """Raises Denied for a tool that is not approved, does not only read, or that the rules let
    nobody call unasked."""
    refusal = prepare_call(OrderedTestCall(TEST, server.pk, name, arguments)).refusal
    if refusal is not None:
        raise refusal


def prepare_call(order: OrderedTestCall) -> PreparedCall:
    """Look up the tool and decide about the call. Raises Conflict if the server is not active."""
    snapshot = get_current_snapshot()
    server = snapshot.servers.get(order.server_id)
    if server is None:
        raise Conflict(
            "The server is no longer active.", remedy="Enable the server, then test it again."
        )
    tool = (
        Tool.objects.filter(server=order.server_id, name=order.tool, kind=TOOL)
        .select_related("pinned")
        .first()
    )
    if order.vouched_by:
        decision = Decision(RuleOutcome.ALLOW, f"{order.vouched_by} takes responsibility for it")
        return PreparedCall(server, _build_tried_tool_spec(order, tool), decision, None)
    if order.origin == TRIAL:
        return _prepare_trial(order, server, tool, snapshot.policy)
    offered = snapshot.find_offer(tool.pk) if tool else None
    decision = _decide(
        order, server, offered or _build_tried_tool_spec(order, tool), snapshot.policy
    )
    refusal = _refuse_untested(
        order, server, tool, offered=offered is not None
    ) or _refuse_undecided(order, decision)
    return PreparedCall(server, offered or _build_tried_tool_spec(order, tool), decision, refusal)


def _refuse_untested(
    order: OrderedTestCall, server: ServerSpec, tool: Tool | None, *, offered: bool
) -> Denied | None:
    annotations = tool.pinned.data.get("annotations") if tool and tool.pinned else None
    if not isinstance(annotations, dict) or annotations.get("readOnlyHint") is not True:
        return Denied(
            f"A test cannot call '{order.tool}'. Tests only call approved tools that their server declares as read-only.",
            remedy=f"Choose another tool. Or call this tool at your own risk with: manage.py mcptest {server.slug} --call {order.tool}",
        )
    if not offered:
        return Denied(
            f"A test cannot call '{order.tool}', because agents cannot call this tool now.",
            remedy="Enable the tool, and approve its latest definition.",
        )
    return None


def _refuse_undecided(order: OrderedTestCall, decision: Decision) -> Denied | None:
    if decision.outcome is RuleOutcome.ALLOW:
        return None
    return Denied(
        f"The rules do not allow a test to call '{order.tool}' ({decision.reason}).",
        remedy="To ask for an approval, open the page of the tool, press “Try tool”, and call the tool as an agent.",
    )


def _prepare_trial(
    order: OrderedTestCall, server: ServerSpec, tool: Tool | None, policy: CallPolicy
) -> PreparedCall:
    """Decide about a call of a trial.

    A trial calls tools that nobody has approved yet. If no rule fits and the site asks by default,
    the call is made: the person who orders the trial is responsible for it. If a rule asks or
    denies, the call is not made.
    """
    spec = _build_tried_tool_spec(order, tool)
    decision = _decide(order, server, spec, policy)
    if decision.outcome is RuleOutcome.ASK and decision.rule_id is None:
        decision = Decision(
            RuleOutcome.ALLOW,
            "no rule matches; the user who requested the trial takes responsibility for it",
        )
    refusal = None
    if tool is not None and not tool.enabled:
        refusal = Denied("an operator has disabled it")
    elif decision.outcome is not RuleOutcome.ALLOW:
        does = "require an approval" if decision.outcome is RuleOutcome.ASK else "deny it"
        refusal = Denied(f"the rules {does} ({decision.reason})")
    return PreparedCall(server, spec, decision, refusal)


def _decide(
    order: OrderedTestCall, server: ServerSpec, tool: ToolSpec, policy: CallPolicy
) -> Decision:
    now = timezone.now().timestamp()
    return decide(
        policy,
        PolicyQuestion(TESTER, TESTS, server, tool, order.arguments, now=now, origin=order.origin),
    )


def _build_tried_tool_spec(order: OrderedTestCall, tool: Tool | None) -> ToolSpec:
    """Return the tool as rules see it: with what a person has confirmed of it, without claims of
    its server."""
    return ToolSpec(
        id=tool.pk if tool else 0,
        server_id=order.server_id,
        name=order.tool,
        definition_hash="",
        data={},
        idempotent=bool(tool and tool.idempotent),
        read_only=tool.read_only if tool else None,
        destructive=tool.destructive if tool else None,
        open_world=tool.open_world if tool else None,
    )
