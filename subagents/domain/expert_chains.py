"""Expert tools that call expert tools: whether a chain is a circle, and how long it gets. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

MAX_DEPTH = 3  # an expert that uses an expert that uses an expert

Names = Mapping[str, Iterable[str]]


def leads_back(name: str, callers: Names) -> bool:
    """Whether whoever calls ``name`` is in the end called by it."""
    above = set(callers.get(name, ()))
    seen = set[str]()
    while above - seen:
        seen |= above
        above = {caller for each in above for caller in callers.get(each, ())}
    return name in seen


def longest_through(name: str, callers: Names) -> list[str]:
    """The longest chain that ``name`` is part of, from its first caller down. ``callers``: who may
    call a tool.

    A circle is followed once, so a chain is never longer than there are tools.
    """
    called: dict[str, list[str]] = {}
    for callee, names in callers.items():
        for caller in names:
            called.setdefault(caller, []).append(callee)
    above = _longest(name, callers, ())
    return [*reversed(above), *_longest(name, called, ())[1:]]


def _longest(name: str, ways: Names, path: tuple[str, ...]) -> list[str]:
    steps = [
        _longest(each, ways, (*path, name))
        for each in ways.get(name, ())
        if each not in (*path, name)
    ]
    return [name, *max(steps, key=len, default=[])]
