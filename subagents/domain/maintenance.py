"""Maintenance requests: their kinds and states, what each costs in energy, and how servers are
ranked by a search."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Kind(StrEnum):
    """What the background sub-agent is asked to do; the names are those of its design (S1)."""

    ADD = "add_server"
    REMOVE = "remove_server"
    TEST = "test_server"
    TRY = "try_server"
    SEARCH = "search_servers"
    MODIFY = "modify_server"


# Kinds that a model can work on, and before which step of their plans it does.
MODELLED: dict[Kind, int] = {Kind.TEST: 1, Kind.TRY: 1, Kind.SEARCH: 0, Kind.ADD: 1}
STARTS_SERVER = frozenset({Kind.TEST, Kind.TRY})  # and so may take as long as a server that hangs
SWITCH = "enabled"  # among the fields of a change: whether the server is served


class State(StrEnum):
    """How far a request is; stored. Paused and cancelled are substates, so programs know exactly
    these four."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"


class Substate(StrEnum):
    """What stands beside the state."""

    NONE = ""
    PAUSED = "paused"
    CANCELLED = "cancelled"


class ControlRequest(StrEnum):
    """What somebody wants of a request that is under way; the worker sees it at once. ``HALT`` is
    never stored."""

    NONE = ""
    PAUSE = "pause"
    CANCEL = "cancel"
    HALT = "halt"  # the sub-agent is off, or its supervisor's cycles stand still


class Priority(IntEnum):
    """Higher ones are taken first; within one, the oldest."""

    LOW = 1
    MEDIUM = 2
    HIGH = 3


class RequestMessageKind(StrEnum):
    """What a message to the one who asked tells."""

    STATUS = "status_update"
    COMPLETION = "completion"
    ERROR = "error"
    TOOL = "tool_available"


class ProposalState(StrEnum):
    """A proposal changes nothing before a person has said yes."""

    WAITING = "waiting"
    APPLIED = "applied"
    DECLINED = "declined"


ENERGY_PER_SECOND = 2.0
# The least and the most that a request of each kind is charged when it completes; one that ends
# early pays its time.
ENERGY_RANGE: dict[Kind, tuple[float, float]] = {
    Kind.ADD: (5.0, 10.0),
    Kind.TEST: (10.0, 20.0),
    Kind.TRY: (10.0, 60.0),
    Kind.SEARCH: (20.0, 50.0),
    Kind.MODIFY: (2.0, 5.0),
    Kind.REMOVE: (2.0, 5.0),
}


def energy_for(kind: Kind, seconds: float, so_far: float) -> float:
    """Units to add for ``seconds`` of work, never beyond what the kind may cost in all."""
    return max(0.0, min(ENERGY_PER_SECOND * max(0.0, seconds), ENERGY_RANGE[kind][1] - so_far))


def energy_to_least(kind: Kind, so_far: float) -> float:
    """Units that a completed request still has to pay."""
    return max(0.0, ENERGY_RANGE[kind][0] - so_far)


@dataclass(frozen=True, slots=True)
class Known:
    """A server as a search sees it."""

    slug: str
    name: str
    description: str
    tools: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ServerMatch:
    """A server that a search found, and why: the words of the query and where they stand."""

    slug: str
    score: int
    reasons: tuple[str, ...]


_WEIGHTS = (("slug", 8), ("name", 6), ("tools", 3), ("description", 2))


def search(query: str, servers: Iterable[Known], limit: int) -> list[ServerMatch]:
    """The servers in which words of the query stand, best first; a word at a word's beginning
    counts double."""
    words = sorted(set(re.findall(r"\w+", query.casefold())))
    found = [match for server in servers if (match := _match_server(words, server)).score]
    return sorted(found, key=lambda match: (-match.score, match.slug))[:limit]


def _match_server(words: list[str], server: Known) -> ServerMatch:
    texts = {
        "slug": server.slug,
        "name": server.name,
        "tools": " ".join(server.tools),
        "description": server.description,
    }
    score = 0
    reasons = []
    for place, weight in _WEIGHTS:
        for word in words:
            hits = len(re.findall(rf"(?:\b|_){re.escape(word)}", texts[place].casefold()))
            if hits or word in texts[place].casefold():
                score += weight * (2 if hits else 1)
                reasons.append(
                    f"'{word}' in {'its ' if place in ('name', 'description') else ''}{place}"
                )
    return ServerMatch(server.slug, score, tuple(reasons))
