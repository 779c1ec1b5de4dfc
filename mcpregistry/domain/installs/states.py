"""The states of an installation and the moves between them."""

from __future__ import annotations

from enum import StrEnum


class InstallState(StrEnum):
    """Where one installation stands; the values are stored in ``Install.state``."""

    REQUESTED = "requested"  # to be resolved
    RESOLVING = "resolving"
    WAITING = "waiting"  # its lock waits for a person
    APPROVED = "approved"
    INSTALLING = "installing"
    INSTALLED = "installed"
    FAILED = "failed"
    REMOVED = "removed"


S = InstallState
MOVES: dict[InstallState, frozenset[InstallState]] = {
    S.REQUESTED: frozenset({S.RESOLVING, S.REMOVED}),
    S.RESOLVING: frozenset({S.WAITING, S.FAILED, S.REQUESTED}),  # the last: its worker died
    S.WAITING: frozenset({S.APPROVED, S.REMOVED}),
    S.APPROVED: frozenset({S.INSTALLING, S.REMOVED}),
    S.INSTALLING: frozenset({S.INSTALLED, S.FAILED, S.APPROVED}),
    S.INSTALLED: frozenset({S.REMOVED}),
    S.FAILED: frozenset({S.REMOVED}),
    S.REMOVED: frozenset(),
}
# what a worker takes, and what it is meanwhile
WORKED = {S.REQUESTED: S.RESOLVING, S.APPROVED: S.INSTALLING}


def list_source_states(target: InstallState) -> list[str]:
    """The states from which this one may follow."""
    return [state.value for state, after in MOVES.items() if target in after]
