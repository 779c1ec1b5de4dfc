"""``autoApprove``, ``toolApprovalRequired`` and ``autoDiscoveryEnabled`` of configuration files, as
rules and settings and back.

A file may only loosen what people are asked about when whoever imports it may change rules. For
anybody else the rule is made switched off, so that one click is enough for somebody who may.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import replace

from django.db.models import QuerySet

from mcpregistry.domain.formats.document import ServerEntry
from mcpregistry.domain.policy.conditions import LONGEST
from mcpregistry.domain.policy.decision import RuleOutcome
from mcpregistry.models import Configuration, PolicyRule, Server
from mcpregistry.services.configuration.site import save_configuration
from mcpregistry.services.exchange.rows import build_server_entry
from mcpregistry.services.policy.rules import (
    AUTO,
    delete_rule,
    find_free_rule_name,
    list_auto_rules,
    save_rule,
)

FLAG = "toolApprovalRequired"
DISCOVERY = "autoDiscoveryEnabled"
SUB_AGENT = "subAgentEnabled"
_OURS = "autoApprove of "
# What a person needs so that a file changes rules and settings of the site at once.
MAY_RULE = (
    *(f"mcpregistry.{verb}_policyrule" for verb in ("add", "change", "delete")),
    "mcpregistry.change_configuration",
)
_NAMES = re.compile(r"tool\.name in (\[.*\])", re.DOTALL)

APPLIED = "A rule now allows these tools without an approval."
WAITS = "A disabled rule was added that allows these tools. A user with permission to change rules can enable it."
TOO_LONG = "The list is stored, but has no effect, because one rule cannot contain so many names. Press “Auto-approve” on the page of the server, or on the page of each tool."
_NEEDS_RIGHT = (
    "The setting is stored, but has no effect: only a user with permission to change rules can"
)
DISCOVERY_WAITS = f"{_NEEDS_RIGHT} let the sub-agent search registries automatically."
FLAG_WAITS = f"{_NEEDS_RIGHT} decide what happens if no rule matches."
SWITCH_WAITS = f"{_NEEDS_RIGHT} enable or disable the sub-agent."


def export_server_entry(server: Server, ruled: Collection[int] | None = None) -> ServerEntry:
    """The server as a file may say it, with what is auto-approved now. ``ruled``: see there; for
    who asks about many."""
    entry = build_server_entry(server)
    if not server.pk:
        return entry
    approved = _find_auto_approved(
        server, entry.auto_approve, about=ruled is None or server.pk in ruled
    )
    return replace(entry, auto_approve=approved)


def list_servers_with_rules() -> set[int]:
    """The servers that any rule names, or one of whose tools: of all others nothing can be
    auto-approved."""
    named = PolicyRule.objects.order_by().values_list("server_id", "tool__server_id").distinct()
    keys = {key for pair in named for key in pair}
    return {key for key in keys if key is not None}


def _find_auto_approved(
    server: Server, stated: bool | tuple[str, ...], *, about: bool
) -> bool | tuple[str, ...]:
    """As a file last put it where that is still true, so that an export gives back what was
    imported. ``about``: there may be rules about the server."""
    ours = _find_file_rule(server) if about else None
    if (about and list_auto_rules(server=server)) or (ours and not ours.condition):
        return True
    names = {*_list_names_in_condition(ours), *(_find_single_tool_rules(server) if about else ())}
    if not isinstance(stated, bool) and set(stated) == names:
        return stated
    return tuple(sorted(names)) if names else False


def _select_file_rules(server: Server) -> QuerySet[PolicyRule]:
    """The rules that files have made of the server: one that counts, and perhaps some that wait."""
    rules = PolicyRule.objects.filter(
        name__startswith=_OURS, server=server, outcome=RuleOutcome.ALLOW, draft=False
    )
    return rules.order_by("-enabled", "pk")


def _find_file_rule(server: Server) -> PolicyRule | None:
    return _select_file_rules(server).first()


def _name_file_rule(server: Server) -> str:
    return f"{_OURS}{server.slug}"


def _list_names_in_condition(rule: PolicyRule | None) -> list[str]:
    found = _NAMES.fullmatch(rule.condition) if rule else None
    try:
        names = json.loads(found[1]) if found else []
    except ValueError:  # somebody has rewritten the condition: it is no list of a file any more
        return []
    return [name for name in names if isinstance(name, str)]


def _find_single_tool_rules(server: Server) -> dict[str, PolicyRule]:
    rules = PolicyRule.objects.live().filter(
        tool__server=server,
        server=None,
        agent=None,
        endpoint=None,
        expert="",
        condition="",
        outcome=RuleOutcome.ALLOW,
        priority=AUTO,
    )
    return {rule.tool.name: rule for rule in rules.select_related("tool") if rule.tool}


def follow_file(
    *, server: Server, approved: bool | tuple[str, ...], actor: str, may_rule: bool
) -> str:
    """Make the auto-approval rule of the server say what the file says; False is silence.

    Without ``may_rule`` no rule is changed that is there: a new one is made, switched off.
    Returns a sentence for the import's notes, or "".
    """
    if approved is False:
        return ""
    condition = (
        "" if approved is True else f"tool.name in {json.dumps(list(approved), ensure_ascii=False)}"
    )
    if len(condition) > LONGEST:
        return TOO_LONG
    if may_rule and approved is not True:
        _withdraw_others(server, approved, actor)
    if not approved:
        return ""
    rule = (
        _find_file_rule(server)
        if may_rule
        else _select_file_rules(server).filter(condition=condition).first()
    )
    if rule is None or rule.condition != condition or (may_rule and not rule.enabled):
        rule = rule or PolicyRule(
            name=find_free_rule_name(_name_file_rule(server)),
            server=server,
            outcome=RuleOutcome.ALLOW,
            priority=AUTO,
        )
        rule.condition = condition
        rule.enabled = may_rule
        save_rule(rule=rule, actor=actor)
    return APPLIED if rule.enabled else WAITS


def _withdraw_others(server: Server, approved: tuple[str, ...], actor: str) -> None:
    """Delete the rules that let more tools run than the file says: single ones, and with no tool
    the server's."""
    for name, single in _find_single_tool_rules(server).items():
        if name not in approved:
            delete_rule(rule=single, actor=actor)
    whole = _find_file_rule(server)
    if not approved and whole is not None:
        delete_rule(rule=whole, actor=actor)


def _follow_flag(*, wanted: bool, actor: str, may_rule: bool) -> str:
    """Take ``toolApprovalRequired`` as what happens when no rule fits. A default of deny stays."""
    told = (
        f"a call that matches no rule {'waits for an approval' if wanted else 'runs immediately'}"
    )
    outcome = RuleOutcome.ASK if wanted else RuleOutcome.ALLOW
    return _set(
        default_outcome=outcome,
        unless=RuleOutcome.DENY,
        told=told,
        waits=FLAG_WAITS,
        may=may_rule,
        actor=actor,
    )


def _follow_discovery(*, wanted: bool, actor: str, may_rule: bool) -> str:
    """Take ``autoDiscoveryEnabled`` as whether the sub-agent searches registries without being
    asked."""
    told = f"the sub-agent {'searches' if wanted else 'does not search'} registries automatically"
    return _set(auto_discovery=wanted, told=told, waits=DISCOVERY_WAITS, may=may_rule, actor=actor)


def _follow_switch(*, wanted: bool, actor: str, may_rule: bool) -> str:
    """Switch the background sub-agent as ``subAgentEnabled`` says."""
    told = f"the sub-agent is {'enabled' if wanted else 'disabled'}"
    return _set(sub_agent_enabled=wanted, told=told, waits=SWITCH_WAITS, may=may_rule, actor=actor)


def _set(
    *, told: str, waits: str, may: bool, actor: str, unless: object = None, **column: object
) -> str:
    """Set the site's column, which stays where it is ``unless``; a sentence for the import's notes,
    or "" if nothing changes."""
    ((name, value),) = column.items()
    configuration = Configuration.load_for_update()
    if getattr(configuration, name) in (value, unless):
        return ""
    if not may:
        return waits
    setattr(configuration, name, value)
    save_configuration(configuration=configuration, actor=actor)
    return f"Applied: {told}."


# By the flag's name in a file: what takes it, and says in a sentence what became of it.
FOLLOWED = {FLAG: _follow_flag, DISCOVERY: _follow_discovery, SUB_AGENT: _follow_switch}
# what is said of a flag that somebody else has to take
WAITING = (FLAG_WAITS, DISCOVERY_WAITS, SWITCH_WAITS)


def read_current_flags(flags: dict[str, bool]) -> dict[str, bool]:
    """The flags of a file with those that are settings of the site as these are now."""
    site = Configuration.load()
    now = {
        FLAG: site.default_outcome != RuleOutcome.ALLOW,
        DISCOVERY: site.auto_discovery,
        SUB_AGENT: site.sub_agent_enabled,
    }
    return {name: now.get(name, value) for name, value in flags.items()}
