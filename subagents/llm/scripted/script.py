"""Scenarios: which turn answers a request, and what it says. Pure: values in, values out.

A scenario is chosen by the model's name. Which of its turns answers is counted in the request (one
turn per reply of the model so far), never remembered: a run that was killed, repeated or resumed on
another worker gets the right next turn.

    research:                                  # the model's name
      turns:
        - calls: [{name: git__git_log, arguments: {repo_path: ., max_count: 3}}]
        - - when: {contains: "fatal:"}         # a turn may be a list of alternatives
            text: "This is no repository."
          - text: "The last commit: {{ last.text | first:200 }}"
      final: {text: "As far as I came: {{ last.text | first:200 }}"}   # when no tools are offered
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


class ScriptError(ValueError):
    """The script or the request does not fit; the text says what to change."""


@dataclass(frozen=True, slots=True)
class Result:
    """One tool result in the request, oldest first; ``text`` as the model reads it."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class ScriptedRequest:
    """A request in any wire format. ``answered``: the model's replies that it already holds."""

    model: str
    stream: bool
    answered: int
    system: str = ""
    user: str = ""  # the first user message
    tools: tuple[str, ...] = ()
    results: tuple[Result, ...] = ()
    thinks: bool = False  # it was told to, where the wire says so


@dataclass(frozen=True, slots=True)
class ScriptedUsage:
    """Tokens as providers bill them; ``input`` includes what came from or went into their cache."""

    input: int
    output: int
    cached: int = 0
    cache_write: int = 0
    reasoning: int = 0  # within the output


@dataclass(frozen=True, slots=True)
class ScriptedToolUse:
    """``arguments`` is the JSON text of an object, or deliberately something broken."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """What a scripted model answers."""

    text: str
    calls: tuple[ScriptedToolUse, ...]
    usage: ScriptedUsage
    cut_off: bool = False  # the model ran into its output limit
    gap: float = 0.0  # seconds between the pieces of a stream
    thinking: str = ""  # what the model thinks before it answers
    # "filtered": the provider withholds it; "refused": the model declines, in ``text``
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class ScriptedFault:
    """What goes wrong instead of, or before, an answer. ``cut``: bytes after which the line
    drops."""

    status: int = 0
    message: str = ""
    retry_after: float | None = None
    delay: float = 0.0
    stall: bool = False
    cut: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    retry_delay: str = ""  # Google's way to say it, in the body: "37s"


@dataclass(frozen=True, slots=True)
class Scenario:
    """The turns of one scripted model; ``final`` is used when no tools are offered."""

    name: str
    turns: Sequence[Any]
    final: Mapping[str, Any] | None = None
    repeat: bool = False  # after the last turn, the last one again: a model that never ends

    @property
    def thinks(self) -> bool:
        """Whether it is a model that thinks: then the wires hold clients to what such models want
        back."""
        flat = [
            each for turn in self.turns for each in (turn if isinstance(turn, list) else [turn])
        ]
        return any(turn.get("thinking") for turn in flat)


@dataclass(frozen=True)
class Script:
    """Scenarios by the names of their models."""

    scenarios: Mapping[str, Scenario] = field(default_factory=dict)

    def thinks(self, model: str) -> bool:
        """Whether the model of that name reasons before it answers."""
        scenario = self.scenarios.get(model.rsplit("/", 1)[-1])
        return scenario is not None and scenario.thinks

    def turn(self, ask: ScriptedRequest) -> Mapping[str, Any]:
        """The turn that answers this request. Raises ScriptError when there is none."""
        scenario = self.scenarios.get(ask.model.rsplit("/", 1)[-1])
        if scenario is None:
            known = ", ".join(sorted(self.scenarios)) or "none"
            raise ScriptError(f'No scripted model named "{ask.model}". Available models: {known}.')
        if not ask.tools and scenario.final is not None:
            return scenario.final
        if ask.answered >= len(scenario.turns) and not scenario.repeat:
            raise ScriptError(
                f"The script of '{scenario.name}' ends after {len(scenario.turns)} turns."
            )
        chosen = scenario.turns[min(ask.answered, len(scenario.turns) - 1)]
        return _fitting(chosen, ask, scenario.name) if isinstance(chosen, list) else chosen

    def merge(self, other: Script) -> Script:
        """A script with the scenarios of both; those of ``other`` win."""
        return Script({**self.scenarios, **other.scenarios})


def load(data: Any) -> Script:
    """A script from parsed YAML or JSON. Raises ScriptError naming what is wrong."""
    if not isinstance(data, dict) or not data:
        raise ScriptError(
            "The script is not valid. It must map the name of each model to its scenario: {name: {turns: [...]}}."
        )
    return Script({str(name): _scenario(str(name), body) for name, body in data.items()})


def _scenario(name: str, body: Any) -> Scenario:
    if not isinstance(body, dict) or not isinstance(body.get("turns"), list) or not body["turns"]:
        raise ScriptError(f"The scenario '{name}' requires a list of turns.")
    unknown = set(body) - {"turns", "final", "repeat"}
    if unknown:
        raise ScriptError(f"The scenario '{name}' has unknown keys: {', '.join(sorted(unknown))}.")
    for turn in [*body["turns"], body.get("final") or {}]:
        for each in turn if isinstance(turn, list) else [turn]:
            _check_turn(name, each)
    return Scenario(name, body["turns"], body.get("final"), bool(body.get("repeat")))


_TURN_KEYS = {"when", "text", "calls", "usage", "attempts", "cut_off", "gap", "thinking", "outcome"}


def _check_turn(name: str, turn: Any) -> None:
    if not isinstance(turn, dict):
        raise ScriptError(f"A turn of '{name}' is not an object.")
    unknown = set(turn) - _TURN_KEYS
    unknown |= set(turn.get("when") or {}) - {"last_tool", "contains", "user_contains", "offers"}
    if unknown:
        raise ScriptError(f"A turn of '{name}' has unknown keys: {', '.join(sorted(unknown))}.")


def _fitting(
    alternatives: list[Mapping[str, Any]], ask: ScriptedRequest, name: str
) -> Mapping[str, Any]:
    for turn in alternatives:
        if _matches(turn.get("when") or {}, ask):
            return turn
    raise ScriptError(f"No alternative of '{name}' matches the request.")


def _matches(when: Mapping[str, Any], ask: ScriptedRequest) -> bool:
    last = ask.results[-1] if ask.results else Result("", "")
    holds = {
        "last_tool": last.name == when.get("last_tool"),
        "contains": str(when.get("contains")) in last.text,
        "user_contains": str(when.get("user_contains")) in ask.user,
        "offers": when.get("offers") in ask.tools,
    }
    return all(holds[key] for key in when)


def faults(turn: Mapping[str, Any]) -> list[ScriptedFault | None]:
    """What the first attempts at this turn meet; None is an attempt that works."""
    return [
        None if each in ("ok", None) else ScriptedFault(**each)
        for each in turn.get("attempts") or []
    ]


def reply(turn: Mapping[str, Any], ask: ScriptedRequest) -> ScriptedReply:
    """What the turn says to this request, with its templates filled from the tools' results."""
    text = fill(str(turn.get("text") or ""), ask)
    calls = tuple(_call(each, ask) for each in turn.get("calls") or [])
    given = turn.get("usage") or {}
    usage = ScriptedUsage(
        input=given.get("input", _tokens(ask.system, ask.user, *(r.text for r in ask.results))),
        output=given.get("output", _tokens(text, *(c.arguments for c in calls))),
        cached=given.get("cached", 0),
        cache_write=given.get("cache_write", 0),
        reasoning=given.get("reasoning", 0),
    )
    return ScriptedReply(
        text,
        calls,
        usage,
        bool(turn.get("cut_off")),
        float(turn.get("gap") or 0.0),
        str(turn.get("thinking") or ""),
        str(turn.get("outcome") or ""),
    )


def _call(given: Mapping[str, Any], ask: ScriptedRequest) -> ScriptedToolUse:
    arguments = given.get("arguments", {})
    text = arguments if isinstance(arguments, str) else json.dumps(_fill_values(arguments, ask))
    return ScriptedToolUse(fill(str(given["name"]), ask), text)


def _fill_values(value: Any, ask: ScriptedRequest) -> Any:
    if isinstance(value, str):
        return fill(value, ask)
    if isinstance(value, dict):
        return {key: _fill_values(each, ask) for key, each in value.items()}
    return [_fill_values(each, ask) for each in value] if isinstance(value, list) else value


def _tokens(*texts: str) -> int:
    """About four characters each; a script that cares says its usage."""
    return max(1, sum(map(len, texts)) // 4)


# {{ last.text }}, {{ last.json.items.0.name | first:80 }}, {{ results.0.text }}, {{ user.json.query
# }}
_HOLE = re.compile(r"\{\{\s*([\w.]+)\s*(?:\|\s*(first|lines):(\d+)\s*)?\}\}")


def fill(template: str, ask: ScriptedRequest) -> str:
    """Put parts of the request into the template. A path that leads nowhere becomes an empty
    text."""
    return _HOLE.sub(
        lambda hole: _cut(_lookup(hole[1].split("."), ask), hole[2], hole[3]), template
    )


def _lookup(path: list[str], ask: ScriptedRequest) -> str:
    root = path[0]
    rest = path[1:]
    if root == "user":
        return _part(ask.user, rest)
    if root == "last":
        return _part(ask.results[-1].text, rest) if ask.results else ""
    if root == "results" and rest and rest[0].isdigit() and int(rest[0]) < len(ask.results):
        return _part(ask.results[int(rest[0])].text, rest[1:])
    return ""


def _part(text: str, path: list[str]) -> str:
    if not path or path[0] != "json":
        return text
    try:
        value: Any = json.loads(text)
        for step in path[1:]:
            value = value[int(step)] if isinstance(value, list) else value[step]
    except (ValueError, KeyError, IndexError, TypeError):
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _cut(text: str, how: str | None, amount: str | None) -> str:
    if how == "first":
        return text[: int(amount or 0)]
    return "\n".join(text.splitlines()[: int(amount or 0)]) if how == "lines" else text
