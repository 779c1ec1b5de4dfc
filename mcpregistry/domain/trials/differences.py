"""What two trials of a server differ in, in words. Times and memory are measured anew each time:
only much is said."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mcpregistry.domain.trials.report import ToolSeen, TrialReportData

# By how much a figure must grow or shrink, and by how much at least, to be no chance. A trial
# shares its machine.
_MUCH: dict[str, tuple[str, float, float]] = {
    "connect_ms": ("Start-up", 3.0, 1_000.0),
    "memory_kb": ("Memory", 2.0, 50 * 1024),
    "tokens": ("Tokens of the definitions", 1.2, 200),
}
_EXACT = {
    "eras": "Protocol versions",
    "version": "Version",
    "prompts": "Prompts",
    "resources": "Resources",
    "processes": "Processes",
    "network_needed": "Needs the network",
}
_MOST_NAMES = 20


@dataclass(frozen=True, slots=True)
class Difference:
    """``behaviour``: it does something else, which people are told; else it is a figure that has
    moved."""

    text: str
    behaviour: bool = True


def compare_reports(before: TrialReportData, after: TrialReportData) -> list[Difference]:
    """Everything that is otherwise in ``after``, what it does first."""
    found = [
        *_compare_verdicts(before, after),
        *_compare_tools(before, after),
        *_compare_figures(before["figures"], after["figures"]),
    ]
    return sorted(found, key=lambda each: not each.behaviour)


def _compare_verdicts(before: TrialReportData, after: TrialReportData) -> Iterator[Difference]:
    if before["verdict"] != after["verdict"]:
        yield Difference(f"Verdict: {before['verdict']} before, {after['verdict']} now.")


def _compare_tools(before: TrialReportData, after: TrialReportData) -> Iterator[Difference]:
    old, new = ({tool["name"]: tool for tool in report["tools"]} for report in (before, after))
    changed = [name for name in new if name in old and old[name]["hash"] != new[name]["hash"]]
    for words, names in (
        ("New tools", [name for name in new if name not in old]),
        ("Removed tools", [name for name in old if name not in new]),
        ("Tools with a changed definition", changed),
    ):
        if names:
            yield Difference(f"{words}: {_join_names(names)}.")
    for name in new:
        if name in old and (text := _describe_call(name, old[name], new[name])):
            yield Difference(text)


def _describe_call(name: str, old: ToolSeen, new: ToolSeen) -> str:
    was = old["call"].get("outcome")
    now = new["call"].get("outcome")
    if was == now or "skipped" in (was, now) or not was or not now:
        return ""
    return f"Calling {name}: {was} before, {now} now."


def _compare_figures(before: dict[str, Any], after: dict[str, Any]) -> Iterator[Difference]:
    for name, words in _EXACT.items():
        if name in before and name in after and before[name] != after[name]:
            told = [_format_value(figures[name]) for figures in (before, after)]
            yield Difference(
                f"{words}: {told[0]} before, {told[1]} now.", behaviour=name != "processes"
            )
    for name, (words, times, least) in _MUCH.items():
        old = before.get(name)
        new = after.get(name)
        if old is None or new is None:
            continue
        if max(old, new) > times * min(old, new) and abs(old - new) >= least:
            yield Difference(f"{words}: {old:,.0f} before, {new:,.0f} now.", behaviour=False)


def _format_value(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return {True: "yes", False: "no", None: "not observed", "": "not stated"}.get(value, str(value))  # type: ignore[call-overload]


def _join_names(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
