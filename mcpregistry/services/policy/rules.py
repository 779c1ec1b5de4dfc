"""Policy rules, what operators confirm of tools, and auto-approval; the same checks for every face.

A rule is refused when its condition is broken, when it can fit nothing, or when it would ask for
ever because too few people could answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import transaction
from django.db.models import QuerySet

from mcpregistry.domain.errors import ConfigInvalid, Conflict
from mcpregistry.domain.policy.conditions import compile_condition
from mcpregistry.domain.policy.decision import RuleOutcome
from mcpregistry.domain.text.display import number_of, show_invisible_characters
from mcpregistry.models import Agent, AuditEntry, PolicyRule, Server, Tool
from mcpregistry.services.access.roles import find_approvers
from mcpregistry.services.configuration.dependents import switch_off_channels
from mcpregistry.services.configuration.saving import save_checked, take_current
from mcpregistry.services.records import audit

CONDITION_FAILED = "policy.condition_failed"  # kind of the audit entry of an alarm
# priorities; a rule that a person writes has 100 unless told otherwise
STARTER = 10
AUTO = 50

STARTER_RULES: tuple[dict[str, Any], ...] = (
    {
        "name": "Read-only closed-world tools run",
        "outcome": "allow",
        "priority": STARTER,
        "condition": "tool.read_only && !tool.open_world",
        "note": "Starter rule: it allows tools that are confirmed to change nothing and to stay inside of their server.",
    },
    {
        "name": "Destructive and open-world tools ask",
        "outcome": "ask",
        "priority": STARTER,
        "condition": "tool.destructive || tool.open_world",
        "note": "Starter rule: it also matches every tool without confirmed annotations.",
    },
    {
        "name": "Prompts run",
        "outcome": "allow",
        "priority": STARTER + 1,
        "condition": 'tool.kind == "prompt"',
        "note": "Starter rule: it allows every prompt, because users choose prompts themselves, and their texts are approved on this site.",
    },
)


# Rules


def check_rule(rule: PolicyRule, *, unanswered: bool = False) -> None:
    """Raise ConfigInvalid with what is wrong; ConditionInvalid names the column. ``unanswered`` as
    in save_rule."""
    if rule.condition.strip():
        compile_condition(rule.condition)
    if rule.tool and rule.server and rule.tool.server_id != rule.server_id:
        raise ConfigInvalid(
            f"The tool {show_invisible_characters(str(rule.tool), 200)} does not belong to the server '{rule.server}', so the rule would "
            "never match.",
            remedy="Clear the field “Server”, and choose only the tool.",
        )
    if rule.live and rule.outcome == RuleOutcome.ASK and not unanswered:
        _check_somebody_can_answer(rule)


def _check_somebody_can_answer(rule: PolicyRule) -> None:
    """The requester's own word counts only where the rule says so."""
    people = {user.pk: user for user in find_approvers(rule.approvers)}
    agents = [rule.agent] if rule.agent else list(Agent.objects.filter(enabled=True))
    alone = 1 if rule.requester_may_confirm else 0
    short = [
        a
        for a in agents
        if _count_possible_approvers(people, a, confirming=rule.requester_may_confirm) < rule.quorum
    ]
    if (short and len(short) == len(agents)) or len(people) + alone < rule.quorum:
        raise ConfigInvalid(
            _explain_unanswerable_rule(rule, len(people), short), remedy=_ASK_REMEDY
        )


_ASK_REMEDY = "Give more users the role approver, choose another group, or require fewer approvals."


def _count_possible_approvers(people: dict[int, Any], agent: Agent, *, confirming: bool) -> int:
    others = len(people) - (agent.owner_id in people)
    return others + 1 if confirming else others


def _explain_unanswerable_rule(rule: PolicyRule, people: int, short: Sequence[Agent]) -> str:
    who = f"in the group '{rule.approvers}' " if rule.approvers else ""
    if not people:
        why = f"no active user {who}can approve calls"
    elif people < rule.quorum:
        why = f"it requires {rule.quorum} approvals, but only {number_of(people, 'user')} {who}can approve calls"
    else:
        names = ", ".join(f"'{agent}'" for agent in short[:3])
        why = f"owners cannot approve calls of their own agents, and too few other users {who}can approve the calls of {names}"
    return f"The calls of the rule '{rule.name}' could never be approved: {why}."


@transaction.atomic
def save_rule(*, rule: PolicyRule, actor: str, unanswered: bool = False) -> PolicyRule:
    """Create or change a rule; it counts in every process within a second. Raises as
    ``check_rule``.

    ``unanswered``: also one that nobody could answer yet, as on a site whose people come after its
    rules. A call that it asks about is refused until then, which is stricter than no rule at all.
    """
    take_current(rule)
    rule.enabled = rule.live  # a draft decides nothing
    check_rule(rule, unanswered=unanswered)
    kind = "rule.created" if rule._state.adding else "rule.changed"
    save_checked(rule)
    audit.record_entry(kind=kind, actor=actor, subject=f"rule:{rule.pk}", **_describe_rule(rule))
    return rule


@transaction.atomic
def delete_rule(*, rule: PolicyRule, actor: str) -> None:
    """Delete a rule; what it held and nobody has decided yet becomes void when it would run."""
    audit.record_entry(kind="rule.deleted", actor=actor, subject=f"rule:{rule.pk}", name=rule.name)
    switch_off_channels(rules=[rule.pk], actor=actor)
    rule.delete()


@transaction.atomic
def switch_rule(*, rule: PolicyRule, enabled: bool, actor: str) -> PolicyRule:
    """Switch a rule on or off; it is checked as if it were new before it counts again. Raises
    Conflict for a draft."""
    take_current(rule)
    if rule.draft:
        raise Conflict(
            f"The rule '{show_invisible_characters(rule.name, 200)}' is still a draft, so this action is not available.",
            remedy="Open the page of the rule. There, first try the rule on past calls, then enable the rule.",
        )
    return save_rule(rule=rule.change(enabled=enabled), actor=actor)


@transaction.atomic
def make_live(*, rule: PolicyRule, actor: str) -> PolicyRule:
    """Let a draft count, in every process within a second. Raises as ``check_rule``; Conflict if it
    is no draft any more."""
    locked = PolicyRule.objects.select_for_update(of=("self",)).get(pk=rule.pk)
    if not locked.draft:
        raise Conflict(
            f"The rule '{locked}' is no longer a draft.", remedy="Open the page of the rule again."
        )
    locked.draft = False
    locked.enabled = True
    return save_rule(rule=locked, actor=actor)


def _describe_rule(rule: PolicyRule) -> dict[str, Any]:
    scope = {
        name: str(getattr(rule, name))
        for name in ("agent", "endpoint", "server", "tool")
        if getattr(rule, name)
    }
    return {
        "name": rule.name,
        "enabled": rule.enabled,
        "draft": rule.draft,
        "priority": rule.priority,
        "outcome": rule.outcome,
        "condition": rule.condition,
        "quorum": rule.quorum,
        "approvers": rule.approvers.name if rule.approvers else "",
        **scope,
    }


@transaction.atomic
def add_starter_rules(*, actor: str) -> list[PolicyRule]:
    """The template's rules that are not there yet. Returns the new ones."""
    there = set(PolicyRule.objects.values_list("name", flat=True))
    missing = [facts for facts in STARTER_RULES if facts["name"] not in there]
    return [save_rule(rule=PolicyRule(**facts), actor=actor) for facts in missing]


def select_failures(rule: PolicyRule) -> QuerySet[AuditEntry]:
    """When its condition gave no answer, newest first; each process notes it at most once a
    minute."""
    return AuditEntry.objects.filter(kind=CONDITION_FAILED, subject=f"rule:{rule.pk}").order_by(
        "-id"
    )


# Auto-approval in one click


def list_auto_rules(*, server: Server | None = None, tool: Tool | None = None) -> list[PolicyRule]:
    """The enabled rules that let every call of exactly this tool, or server, run at once."""
    rules = PolicyRule.objects.live().filter(
        server=server,
        tool=tool,
        agent=None,
        endpoint=None,
        expert="",
        condition="",
        outcome=RuleOutcome.ALLOW,
        priority=AUTO,
    )
    return list(rules)


@transaction.atomic
def auto_approve(
    *, actor: str, server: Server | None = None, tool: Tool | None = None
) -> PolicyRule:
    """Let every granted call of the tool, or of the whole server, run at once; rules that people
    wrote go first."""
    there = list_auto_rules(server=server, tool=tool)
    if there:
        return there[0]
    name = find_free_rule_name(
        f"Auto-approved: {show_invisible_characters(str(tool or server), 150)}"
    )
    rule = PolicyRule(name=name, outcome=RuleOutcome.ALLOW, priority=AUTO, server=server, tool=tool)
    return save_rule(rule=rule, actor=actor)


@transaction.atomic
def withdraw_auto_approval(
    *, actor: str, server: Server | None = None, tool: Tool | None = None
) -> int:
    """Delete the one-click rules of the tool or server. Returns how many there were."""
    rules = list_auto_rules(server=server, tool=tool)
    for rule in rules:
        delete_rule(rule=rule, actor=actor)
    return len(rules)


def find_free_rule_name(name: str) -> str:
    """The name, or with a number behind it that no rule has yet."""
    taken = set(PolicyRule.objects.values_list("name", flat=True))
    free = name
    number = 2
    while free in taken:
        free = f"{name} ({number})"
        number = number + 1
    return free


# What a tool does
