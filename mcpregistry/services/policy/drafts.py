"""Rules as files and programs write them: by names, not by row numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import yaml
from django.contrib.auth.models import Group

from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.policy.conditions import ConditionInvalid, compile_condition
from mcpregistry.domain.policy.decision import RuleOutcome
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Agent, Endpoint, Invocation, PolicyRule, Server, Tool
from mcpregistry.services.policy.rules import find_free_rule_name

PLAIN = (
    "name",
    "enabled",
    "draft",
    "priority",
    "expert",
    "condition",
    "outcome",
    "quorum",
    "decide_seconds",
    "execute_seconds",
    "refusal_seconds",
    "requester_may_confirm",
    "run_if_caller_left",
    "note",
)
NAMED = ("agent", "endpoint", "server", "tool", "approvers")


def fill_rule(rule: PolicyRule, facts: Mapping[str, Any]) -> PolicyRule:
    """Set what ``facts`` names; a ``tool`` is written server::tool. Saves nothing. Raises
    ConfigInvalid."""
    unknown = sorted(set(facts) - {*PLAIN, *NAMED})
    if unknown:
        raise ConfigInvalid(
            f"A rule has no field '{unknown[0]}'.",
            remedy=f"Use only these fields: {', '.join((*PLAIN, *NAMED))}.",
        )
    for name in PLAIN:
        if name in facts:
            rule.change(**{name: facts[name]})
    for name in NAMED:
        if name in facts:
            rule.change(**{name: _find_named_record(name, facts[name]) if facts[name] else None})
    return rule


def read_rules(text: str) -> list[PolicyRule]:
    """Unsaved rules from YAML or JSON: a list of rules, or one. Raises ConfigInvalid."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigInvalid(
            f"The file is not valid YAML{place}.", remedy="Correct the file."
        ) from None
    rules = data.get("rules", [data]) if isinstance(data, dict) else data
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise ConfigInvalid(
            "The file does not contain a list of rules.",
            remedy="Write a list such as:\n- name: big\n  outcome: ask",
        )
    return [
        fill_rule(PolicyRule(name=f"draft {number}"), facts)
        for number, facts in enumerate(rules, 1)
    ]


def draft_rule_like_call(call: Invocation) -> PolicyRule:
    """An unsaved draft about calls such as this one: its agent, its tool, and its short arguments
    as they were.

    What is not there any more is left open. It asks; whoever writes it says what follows.
    """
    tool = Tool.offers.select_related("server").of_record(call.server_slug, call.tool_name).first()
    name = find_free_rule_name(
        f"Calls of {show_invisible_characters(call.agent_slug, 60)} to {show_invisible_characters(call.tool_name, 100)}"
    )
    rule = PolicyRule(
        name=name,
        draft=True,
        outcome=RuleOutcome.ASK.value,
        tool=tool,
        condition=_build_same_arguments_condition(call.arguments),
    )
    rule.agent = Agent.objects.filter(slug=call.agent_slug).first()
    rule.endpoint = Endpoint.objects.filter(slug=call.endpoint_slug).first()
    return rule


_MOST_ARGUMENTS = 5
_LONGEST = 300
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _build_same_arguments_condition(arguments: str) -> str:
    """A condition that holds for exactly these arguments, as far as they are few, plain and
    short."""
    try:
        given = json.loads(arguments)
    except ValueError:
        return ""
    parts = (
        [_build_equality(name, value) for name, value in given.items()]
        if isinstance(given, dict)
        else []
    )
    return " && ".join([part for part in parts if part][:_MOST_ARGUMENTS])


def _build_equality(name: str, value: object) -> str:
    """What holds where the argument has this value; "" for a name or value that a condition cannot
    say briefly."""
    said = f"has(args.{name}) && args.{name} == {json.dumps(value, ensure_ascii=False)}"
    if (
        not _WORD.fullmatch(name)
        or not isinstance(value, bool | int | float | str)
        or len(said) > _LONGEST
    ):
        return ""
    try:
        compile_condition(said)
    except ConditionInvalid:  # a word of CEL's own, or a number that it does not have
        return ""
    return said


def _find_named_record(kind: str, name: Any) -> Any:
    found = _FIND[kind](str(name))
    if found is None:
        thing = _WORDS.get(kind, kind)
        raise ConfigInvalid(
            error_texts.say_not_found(thing, name), remedy=f"Use the name of an existing {thing}."
        )
    return found


_WORDS = {"approvers": "group"}
_FIND: dict[str, Callable[[str], Any]] = {
    "agent": lambda name: Agent.objects.filter(slug=name).first(),
    "endpoint": lambda name: Endpoint.objects.filter(slug=name).first(),
    "server": lambda name: Server.objects.filter(slug=name).first(),
    "tool": Tool.offers.select_related("server").find_by_name,
    "approvers": lambda name: Group.objects.filter(name=name).first(),
}
