"""The life of one connection as a value: states, back-off and breaker. Time and chance are
arguments.

A server that fails is left alone until ``retry_at``; until then a call is answered at once with the
reason. The delay doubles with every failure in a row. A server that has served for a while and then
falls may be restarted at once; one that dies on every start is not hammered.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

State = Literal["disconnected", "connecting", "connected", "reconnecting", "error"]

FIRST_DELAY = 0.5
MAX_DELAY = 60.0
STABLE_SECONDS = 10.0

MOST_FORGOTTEN = 3  # sessions in a row that a server may forget before it is treated as failing
REFUSED_DELAY = 900.0  # after a refused credential

SOON_CHECK_DELAY = 5.0  # until it counts as unavailable
FIRST_CHECK_DELAY = 30.0
MAX_CHECK_DELAY = 900.0
UNAVAILABLE_AFTER = 3  # failed checks in a row

CALL_SECONDS = 60.0  # that the call of a test may take
_LISTING_SECONDS = 30.0  # for its lists, and until its processes have ended

TRANSITIONS: dict[State, frozenset[State]] = {
    "disconnected": frozenset({"connecting"}),
    "connecting": frozenset({"connected", "error", "reconnecting", "disconnected"}),
    "connected": frozenset({"disconnected", "error", "reconnecting"}),
    "reconnecting": frozenset({"connecting", "disconnected"}),
    "error": frozenset({"connecting", "disconnected"}),
}


@dataclass(frozen=True, slots=True)
class Health:
    """``retry_at`` and ``since`` are seconds on the caller's monotonic clock."""

    state: State = "disconnected"
    since: float = 0.0
    failures: int = 0
    retry_at: float = 0.0
    code: str = ""
    detail: str = ""


def move(health: Health, state: State, *, now: float) -> Health:
    """The same health in another state. Raises ValueError for a move that makes no sense."""
    if state not in TRANSITIONS[health.state]:
        raise ValueError(f"a connection cannot go from {health.state} to {state}")
    return replace(health, state=state, since=now)


def compute_backoff(failures: int, *, chance: float) -> float:
    """Seconds to wait after so many failures in a row; ``chance`` in [0, 1) spreads the herd."""
    if failures <= 0:
        return 0.0
    return min(MAX_DELAY, FIRST_DELAY * 2.0 ** min(failures - 1, 16)) * (0.5 + chance / 2)


def record_connection(health: Health, *, now: float) -> Health:
    """The connection is up. Failures are forgotten only once a call was answered
    (``record_served_call``)."""
    return replace(move(health, "connected", now=now), code="", detail="")


def record_served_call(health: Health) -> Health:
    """A call was answered: earlier failures no longer count."""
    return replace(health, failures=0, retry_at=0.0) if health.failures else health


def record_failure(
    health: Health,
    *,
    now: float,
    chance: float,
    returns: bool,
    code: str,
    detail: str,
    refused: bool = False,
    forgotten: bool = False,
    pause: float = 0.0,
) -> Health:
    """A connection failed or was lost. ``returns``: it is brought back without being asked.
    ``refused``: the server did not take our credential, which is not offered again for long unless
    a person says so. ``forgotten``: the server is well but does not know our session any more, so a
    new one is opened immediately. ``pause``: seconds that the server asks to be left alone."""
    was_up = health.state == "connected"
    failures = 0 if was_up and now - health.since >= STABLE_SECONDS else health.failures
    attempts = failures if was_up else failures + 1
    delay = REFUSED_DELAY if refused else compute_backoff(attempts, chance=chance)
    if forgotten and was_up and failures < MOST_FORGOTTEN:
        delay = 0.0
    delay = max(delay, pause)
    moved = move(health, "reconnecting" if returns else "error", now=now)
    return replace(moved, failures=failures + 1, retry_at=now + delay, code=code, detail=detail)


def record_stop(health: Health, *, now: float) -> Health:
    """Ended on purpose (idle, disabled, closed): nothing is held against it."""
    return Health(state="disconnected", since=now)


def compute_refusal_seconds(health: Health, *, now: float) -> float:
    """How long calls are still answered at once with the last failure; 0 when a try is due."""
    waiting = health.state in ("error", "reconnecting")
    return max(0.0, health.retry_at - now) if waiting else 0.0


def compute_check_delay(interval: float, failures: int, *, chance: float) -> float:
    """Seconds until a server is looked at again: its interval, or a growing pause while it
    fails."""
    if failures <= 0:
        pause = interval
    elif failures < UNAVAILABLE_AFTER:  # know soon whether its tools are to leave the lists
        pause = min(interval, SOON_CHECK_DELAY)
    else:
        pause = min(
            MAX_CHECK_DELAY, FIRST_CHECK_DELAY * 2.0 ** min(failures - UNAVAILABLE_AFTER, 16)
        )
    return pause * (0.8 + chance * 0.2)


def compute_test_timeout(connect_timeout: float, request_timeout: float | None) -> float:
    """Seconds after which a test or check of a server is ended, whatever it does."""
    return connect_timeout + min(request_timeout or CALL_SECONDS, CALL_SECONDS) + _LISTING_SECONDS
