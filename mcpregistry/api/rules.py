"""Policy rules, permits, confirmed annotations and one-click auto-approval."""

from __future__ import annotations

from typing import Annotated, Any

from django.db.models import Q
from django.http import HttpRequest
from django.utils import timezone
from ninja import Query, Status

from mcpregistry.api import lookup
from mcpregistry.api.auth import actor
from mcpregistry.api.idempotent_operations import once
from mcpregistry.api.paging import Cursor, Limit, read_page
from mcpregistry.api.permission_router import PermissionRouter
from mcpregistry.api.schemas.basics import Page, Problem, Slug, Text
from mcpregistry.api.schemas.policy import (
    AnnotationsIn,
    AnnotationsOut,
    OutcomeWord,
    PermitOut,
    RuleChange,
    RuleNew,
    RuleOut,
    RuleTest,
    RuleTestOut,
    annotations_out,
    permit_out,
    rule_out,
    test_out,
)
from mcpregistry.api.tools import ToolName
from mcpregistry.models import Permit, PolicyRule
from mcpregistry.services.definitions import behaviour
from mcpregistry.services.policy import permits, rules
from mcpregistry.services.policy.drafts import fill_rule
from mcpregistry.services.policy.replay import replay

router = PermissionRouter(tags=["policy"])

_ROWS = PolicyRule.objects.select_related(
    "agent", "endpoint", "server", "tool__server", "approvers"
)
_PERMITS = Permit.objects.select_related("agent", "tool__server", "created_by")
_MOST = 20_000  # calls that one test over REST looks at; manage.py policy test has no bound


@router.get("/rules", response=Page[RuleOut])
def list_rules(
    request: HttpRequest,
    *,
    q: Annotated[
        Text | None,
        Query(max_length=200, description="Text that the name, condition or note contains."),
    ] = None,
    outcome: OutcomeWord | None = None,
    enabled: bool | None = None,
    draft: bool | None = None,
    server: Slug | None = None,
    agent: Slug | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[RuleOut]:
    """Rules by priority. The filter `server` returns the rules for the server or one of its
    tools."""
    rows = _ROWS.all()
    if q:
        rows = rows.filter(Q(name__icontains=q) | Q(condition__icontains=q) | Q(note__icontains=q))
    if outcome:
        rows = rows.filter(outcome=outcome)
    if enabled is not None:
        rows = rows.filter(enabled=enabled)
    if draft is not None:
        rows = rows.filter(draft=draft)
    if server:
        rows = rows.filter(Q(server__slug=server) | Q(tool__server__slug=server))
    if agent:
        rows = rows.filter(agent__slug=agent)
    return read_page(rows, order=("-priority", "name"), limit=limit, cursor=cursor, show=rule_out)


@router.post("/rules", response={201: RuleOut})
@once()
def create_rule(request: HttpRequest, payload: RuleNew) -> Status[RuleOut]:
    """Add a rule.

    A rule is refused if its condition is not valid, or if its approvals could never be given. The
    error states the reason.
    """
    rule = rules.save_rule(
        rule=fill_rule(PolicyRule(), payload.get_sent_values()), actor=actor(request)
    )
    return Status(201, rule_out(rule))


@router.post("/rules/starter", response=list[RuleOut])
def add_starter_rules(request: HttpRequest) -> list[RuleOut]:
    """Add the starter rules: they allow tools that are read-only and closed-world, and ask for
    destructive or open-world ones.

    Starter rules that already exist stay as they are.
    """
    return [rule_out(rule) for rule in rules.add_starter_rules(actor=actor(request))]


@router.post("/rules/test", response={200: RuleTestOut, 404: Problem})
def test_rule(request: HttpRequest, payload: RuleTest) -> RuleTestOut:
    """Test a rule on the newest real calls: which ones it would have held, denied and allowed.
    Nothing is saved."""
    rule = (
        lookup.one(_ROWS.all(), "rule", pk=payload.id) if payload.id else PolicyRule(name="draft")
    )
    draft = fill_rule(rule, payload.rule.get_sent_values())
    rules.check_rule(draft)
    return test_out(replay(drafts=[draft], days=payload.days, now=timezone.now(), most=_MOST))


@router.get("/rules/{rule_id}", response=RuleOut)
def get_rule(request: HttpRequest, rule_id: lookup.Id) -> RuleOut:
    """One rule."""
    return rule_out(_rule(rule_id))


@router.patch("/rules/{rule_id}", response=RuleOut)
def change_rule(request: HttpRequest, rule_id: lookup.Id, payload: RuleChange) -> RuleOut:
    """Change the fields that are sent. Calls that the old version of the rule holds become void
    when they would run."""
    rule = fill_rule(_rule(rule_id), payload.get_sent_values())
    return rule_out(rules.save_rule(rule=rule, actor=actor(request)))


@router.post("/rules/{rule_id}/live", response=RuleOut)
def make_rule_live(request: HttpRequest, rule_id: lookup.Id) -> RuleOut:
    """Make a draft take effect. The answer is 409 if the rule is no longer a draft."""
    return rule_out(rules.make_live(rule=_rule(rule_id), actor=actor(request)))


@router.delete("/rules/{rule_id}", response={204: None})
def delete_rule(request: HttpRequest, rule_id: lookup.Id) -> Status[None]:
    """Delete a rule. Calls that it holds become void when they would run."""
    rules.delete_rule(rule=_rule(rule_id), actor=actor(request))
    return Status(204, None)


def _rule(rule_id: int) -> PolicyRule:
    return lookup.one(_ROWS.all(), "rule", pk=rule_id)


# Auto-approval


@router.post("/tools/{name}/auto-approval", response=RuleOut)
def auto_approve_tool(request: HttpRequest, name: ToolName) -> RuleOut:
    """Allow all granted calls of the tool without an approval, unless a rule that a user wrote
    decides otherwise."""
    return rule_out(rules.auto_approve(tool=lookup.tool(name), actor=actor(request)))


@router.delete("/tools/{name}/auto-approval", response={204: None})
def withdraw_auto_approval_of_tool(request: HttpRequest, name: ToolName) -> Status[None]:
    """Revoke the automatic approval of a tool."""
    rules.withdraw_auto_approval(tool=lookup.tool(name), actor=actor(request))
    return Status(204, None)


@router.post("/servers/{slug}/auto-approval", response=RuleOut)
def auto_approve_server(request: HttpRequest, slug: Slug) -> RuleOut:
    """Allow all granted calls of the server's tools without an approval, unless a rule that a user
    wrote decides otherwise."""
    return rule_out(rules.auto_approve(server=lookup.find_server(slug), actor=actor(request)))


@router.delete("/servers/{slug}/auto-approval", response={204: None})
def withdraw_auto_approval_of_server(request: HttpRequest, slug: Slug) -> Status[None]:
    """Revoke the automatic approval of a server."""
    rules.withdraw_auto_approval(server=lookup.find_server(slug), actor=actor(request))
    return Status(204, None)


# What a tool does


@router.get("/tools/{name}/annotations", response=AnnotationsOut)
def get_annotations(request: HttpRequest, name: ToolName) -> AnnotationsOut:
    """The annotations that the server claims for the tool, and those that an approver has
    confirmed."""
    return annotations_out(lookup.tool(name))


@router.put("/tools/{name}/annotations", response={200: AnnotationsOut, 409: Problem})
def confirm_annotations(
    request: HttpRequest, name: ToolName, payload: AnnotationsIn
) -> AnnotationsOut:
    """Confirm what the tool does. Rules use only confirmed annotations."""
    facts: dict[str, Any] = {key: getattr(payload, key) for key in behaviour.HINTS}
    tool = behaviour.confirm_annotations(
        tool=lookup.tool(name), actor=actor(request), seen=payload.seen, **facts
    )
    return annotations_out(tool)


# Permits


@router.get("/permits", response=Page[PermitOut])
def list_permits(
    request: HttpRequest,
    *,
    agent: Slug | None = None,
    live: Annotated[
        bool | None,
        Query(description="`true`: only permits that can still be used. `false`: only the others."),
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[PermitOut]:
    """Permits, newest first."""
    rows = _PERMITS.filter(agent__slug=agent) if agent else _PERMITS.all()
    if live is not None:
        usable = Q(revoked_at=None, expires_at__gt=timezone.now()) & ~Q(uses_left=0)
        rows = rows.filter(usable) if live else rows.exclude(usable)
    return read_page(rows, order=("-id",), limit=limit, cursor=cursor, show=permit_out)


@router.delete("/permits/{permit_id}", response={204: None})
def revoke_permit(request: HttpRequest, permit_id: lookup.Id) -> Status[None]:
    """Revoke a permit. The next call that it covered needs an approval again."""
    permits.revoke(permit=lookup.one(_PERMITS.all(), "permit", pk=permit_id), actor=actor(request))
    return Status(204, None)
