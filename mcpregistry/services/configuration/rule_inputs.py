"""Columns that conditions of policy rules read: changing one can make a rule start or stop
matching.

A person who may change a server, but not rules, must not decide what a rule matches. So while an
enabled rule reads such a column, changing the column needs the right to change rules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from django.db.models import Model, Q

from mcpregistry.domain.caller_rights import Rights
from mcpregistry.domain.errors import Denied
from mcpregistry.domain.policy.conditions import ConditionInvalid, compile_condition
from mcpregistry.domain.text.display import number_of, show_invisible_characters
from mcpregistry.extensions import list_extensions
from mcpregistry.models import Agent, Endpoint, PolicyRule, Server, Tool

MAY_CHANGE_RULES = "mcpregistry.change_policyrule"
_MAY_SEE_RULES = "mcpregistry.view_policyrule"
_NAMED = 5  # rules that a refusal names

# By model: its attributes that conditions can read, with what conditions call them.
_OWN_INPUTS: dict[type[Model], Mapping[str, tuple[str, ...]]] = {
    Server: {
        "slug": ("server.slug",),
        "title": ("server.title",),
        "transport": ("server.transport",),
    },
    Endpoint: {"slug": ("call.endpoint",)},
    Agent: {"slug": ("agent.slug",)},
    Tool: {"idempotent": ("tool.idempotent",)},
}


def list_rule_inputs() -> dict[type[Model], Mapping[str, tuple[str, ...]]]:
    """The columns that conditions can read, by model, with their names in conditions."""
    found = dict(_OWN_INPUTS)
    for extension in list_extensions():
        found |= extension.rule_inputs
    return found


def check_rule_inputs(row: Model, before: Model | None, *, rights: Rights) -> None:
    """Raises Denied when saving the row would change what an enabled rule reads, and ``rights``
    does not cover rules.

    ``before``: the row as it is stored, locked by ``take_current``. A new row, which has none, is
    never refused: nobody has granted anything of it yet.
    """
    if before is None:
        return
    changed = {
        name: fields
        for name, fields in list_rule_inputs()[type(row)].items()
        if getattr(before, name) != getattr(row, name)
    }
    if not changed or rights(MAY_CHANGE_RULES):
        return
    if readers := find_reading_rules(before, row, changed):
        raise _make_refusal(before, changed, readers, named=rights(_MAY_SEE_RULES))


def find_reading_rules(
    before: Any, after: Any, changed: Mapping[str, tuple[str, ...]]
) -> list[PolicyRule]:
    """The enabled rules that can concern the record and read one of the changed attributes."""
    fields = {field for each in changed.values() for field in each}
    rules = PolicyRule.objects.live().filter(_match_rules_about(before))
    return [
        rule
        for rule in rules
        if is_field_read(rule.condition, fields)
        or _is_limited_to_renamed_tool(rule, before, after, fields)
    ]


def is_field_read(condition: str, fields: Collection[str]) -> bool:
    """Whether a condition reads one of these fields, such as ``server.slug``. A condition that
    cannot be used reads none."""
    if not condition.strip():
        return False
    try:
        return not compile_condition(condition).fields.isdisjoint(fields)
    except ConditionInvalid:
        return False


def _is_limited_to_renamed_tool(
    rule: PolicyRule, before: Any, after: Any, fields: Collection[str]
) -> bool:
    """Whether the rule is limited to the expert tool whose name changes."""
    return "call.expert" in fields and rule.expert in (before.name, after.name)


def _match_rules_about(row: Any) -> Q:
    """Rules that are limited to another server, tool, agent or endpoint do not concern the
    record."""
    if isinstance(row, Server):
        return (Q(server=None) | Q(server=row)) & (Q(tool=None) | Q(tool__server=row))
    if isinstance(row, Tool):
        return (Q(server=None) | Q(server=row.server_id)) & (Q(tool=None) | Q(tool=row))
    if isinstance(row, Agent):
        return Q(agent=None) | Q(agent=row)
    return Q(endpoint=None) | Q(endpoint=row) if isinstance(row, Endpoint) else Q()


def _make_refusal(
    row: Any, changed: Iterable[str], rules: list[PolicyRule], *, named: bool
) -> Denied:
    names = [f"'{show_invisible_characters(rule.name, 100)}'" for rule in rules]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    noun = "rule" if len(names) == 1 else "rules"
    who = (
        f"the {noun} {', '.join(names[:_NAMED])}{more}" if named else number_of(len(rules), "rule")
    )
    return Denied(
        f"You do not have permission to change these fields of the {row._meta.verbose_name} "
        f"'{show_invisible_characters(str(row), 100)}': {', '.join(changed)}. After the change, {who} could match other calls.",
        remedy="Ask a user with permission to change rules to make this change.",
    )
