"""Rules as files and programs write them: by names, not by row numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import yaml
from django.contrib.auth.models import Group

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.models import Agent, Endpoint, PolicyRule, Server, Tool

PLAIN = (
    "name", "enabled", "priority", "expert", "condition", "outcome", "quorum", "decide_seconds", "execute_seconds",
    "refusal_seconds", "requester_may_confirm", "run_if_caller_left", "note",
)  # fmt: skip
NAMED = ("agent", "endpoint", "server", "tool", "approvers")


def fill(rule: PolicyRule, facts: Mapping[str, Any]) -> PolicyRule:
    """Set what ``facts`` names; a ``tool`` is written server::tool. Saves nothing. Raises ConfigInvalid."""
    unknown = sorted(set(facts) - {*PLAIN, *NAMED})
    if unknown:
        raise ConfigInvalid(f"A rule has no '{unknown[0]}'.", remedy=f"It has {', '.join((*PLAIN, *NAMED))}.")
    for name in PLAIN:
        if name in facts:
            setattr(rule, name, facts[name])
    for name in NAMED:
        if name in facts:
            setattr(rule, name, _named(name, facts[name]) if facts[name] else None)
    return rule


def read_rules(text: str) -> list[PolicyRule]:
    """Unsaved rules from YAML or JSON: a list of rules, or one. Raises ConfigInvalid."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigInvalid(f"The file is no YAML{place}.", remedy="Correct it.") from None
    rules = data.get("rules", [data]) if isinstance(data, dict) else data
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise ConfigInvalid("The file holds no list of rules.", remedy="Write e.g.\n- name: big\n  outcome: ask")
    return [fill(PolicyRule(name=f"draft {number}"), facts) for number, facts in enumerate(rules, 1)]


def _named(kind: str, name: Any) -> Any:
    found = _FIND[kind](str(name))
    if found is None:
        raise ConfigInvalid(f"There is no {_WORDS.get(kind, kind)} '{name}'.", remedy="Name one that there is.")
    return found


_WORDS = {"approvers": "group"}
_FIND: dict[str, Callable[[str], Any]] = {
    "agent": lambda name: Agent.objects.filter(slug=name).first(),
    "endpoint": lambda name: Endpoint.objects.filter(slug=name).first(),
    "server": lambda name: Server.objects.filter(slug=name).first(),
    "tool": Tool.offers.select_related("server").named,
    "approvers": lambda name: Group.objects.filter(name=name).first(),
}
