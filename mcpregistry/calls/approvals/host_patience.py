"""How long the host of a held call bears to wait: by the table, by what is set for it, and by what
it has shown.

A host that the table (``domain/calls/hosts.py``) does not know, and that goes away while its call
is held, has shown when it gives up. From then on it is answered earlier: in this process, for a
day. Who leaves sooner than a second was stopped by a person, and shows nothing.
"""

from __future__ import annotations

from dataclasses import replace

from mcpregistry.calls.call import Call
from mcpregistry.domain.calls.hosts import HostLimits, find_host_limits, is_known
from mcpregistry.domain.calls.wait_strategy import WaitStep, limit_hold_seconds

REMEMBERED = 1_000  # pairs of agent and host; the one that was learned first makes way
FORGOTTEN = 24 * 3600.0  # seconds
_NOT_A_LIMIT = 1.0


def find_smallest(*limits: float | None) -> float | None:
    """Of those that say something."""
    return min((each for each in limits if each is not None), default=None)


class HostPatience:
    """What the hosts of this process bear. Times are monotonic seconds."""

    def __init__(self) -> None:
        # how long it waited, and when that was
        self._left: dict[tuple[str, str], tuple[float, float]] = {}

    def compute_hold_seconds(self, call: Call, step: WaitStep) -> float:
        """Seconds from the call's start in which its host is to be answered, whatever has become of
        the call."""
        catalogue = call.request.catalogue
        cap = find_smallest(catalogue.agent.hold_seconds, catalogue.endpoint.hold_seconds)
        return limit_hold_seconds(step, self._find_limits(call), cap=cap)

    def record_departure(self, call: Call, now: float) -> None:
        """The host went away at ``now`` while it was held. One that said itself how long it waits
        shows nothing."""
        waited = now - call.started
        host = call.request.host
        if waited < _NOT_A_LIMIT or host.hold is not None or is_known(host.name):
            return
        who = _make_host_key(call)
        before, _ = self._left.pop(who, (waited, now))
        self._left[who] = (min(before, waited), now)
        if len(self._left) > REMEMBERED:
            del self._left[next(iter(self._left))]

    def _find_limits(self, call: Call) -> HostLimits:
        host = call.request.host
        limits = find_host_limits(host.name, progress=host.progress)
        waited, when = self._left.get(_make_host_key(call), (limits.silent, call.started))
        if host.hold is not None or call.started - when > FORGOTTEN or waited >= limits.silent:
            return limits
        return replace(limits, silent=waited, progress_extends=False)


def _make_host_key(call: Call) -> tuple[str, str]:
    return call.request.catalogue.agent.slug, call.request.host.name
