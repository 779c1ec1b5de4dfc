"""What the capabilities that people write mean among the servers there are; see
``domain.policy.access``.

Invariant: a server that comes later never widens an agent. Its short name is refused while it would
give a written capability a second meaning; and a name that has two all the same (a tool approved
later, say) counts for nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.policy.access import (
    is_unambiguous,
    list_capability_meanings,
    list_unambiguous_readings,
)
from mcpregistry.models import Agent, Server, Tool

Meanings = dict[str, tuple[str, ...]]


def list_meanings(capabilities: Iterable[str]) -> Meanings:
    """The readings of each capability; every server counts, also one that is a draft or
    disabled."""
    written = set(capabilities)
    slugs = (
        () if all(map(is_unambiguous, written)) else Server.objects.values_list("slug", flat=True)
    )
    return _find_meanings_among(written, frozenset(slugs))


def check_capabilities(capabilities: Iterable[str]) -> None:
    """Raises ConfigInvalid for one that could mean two things."""
    for name, found in list_meanings(capabilities).items():
        if len(found) > 1:
            raise ConfigInvalid(
                f"The capability '{name}' has more than one meaning.", remedy=_write_one_of(found)
            )


def check_slug(slug: str, before: str = "") -> None:
    """Raises ConfigInvalid when a server of this name would give an agent's capability a second
    meaning.

    ``before``: the name that the server has now, if it has one."""
    holders = dict[str, str]()
    for agent, names in Agent.objects.values_list("slug", "capabilities"):
        holders |= {name: agent for name in names if list_capability_meanings(name, [slug])}
    if not holders:
        return
    others = frozenset(
        Server.objects.exclude(slug__in=[slug, before]).values_list("slug", flat=True)
    )
    for name, found in _find_meanings_among(holders.keys(), others).items():
        if found:
            raise ConfigInvalid(
                f"The agent '{holders[name]}' has the capability '{name}'. If a server is named '{slug}', this capability has two meanings.",
                remedy=f"{_write_one_of(found)} Or choose another short name for the server.",
            )


def _find_meanings_among(capabilities: Collection[str], slugs: frozenset[str]) -> Meanings:
    several = [
        pairs for name in capabilities if len(pairs := list_capability_meanings(name, slugs)) > 1
    ]
    doubtful = {pair for pairs in several for pair in pairs}
    approved = Tool.objects.filter(pinned__isnull=False, name__in={tool for _, tool in doubtful})
    offered = frozenset(approved.values_list("server__slug", "name")) if doubtful else frozenset()
    return {name: list_unambiguous_readings(name, slugs, offered) for name in capabilities}


def _write_one_of(found: tuple[str, ...]) -> str:
    return f"Write {' or '.join(found)} in the agent's capabilities instead."
