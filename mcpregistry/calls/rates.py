"""What an agent may spend: calls per minute, kept as a token bucket in this process."""

from __future__ import annotations

from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.specs import AgentSpec


class RateLimited(SlipsnisseError):
    """The agent has made too many calls; nothing was sent."""

    code = "RATE_LIMITED"


class Rates:
    """One bucket per agent; it holds a minute's calls and refills evenly. ``now`` is monotonic seconds."""

    def __init__(self) -> None:
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, agent: AgentSpec, now: float) -> None:
        """Count one call. Raises RateLimited with the seconds to wait."""
        limit = agent.calls_per_minute
        if limit is None:
            return
        level, at = self._buckets.get(agent.slug, (float(limit), now))
        level = min(float(limit), level + (now - at) * limit / 60)
        if level < 1:
            wait = (1 - level) * 60 / limit if limit else 60.0
            raise RateLimited(
                f"The agent '{agent.slug}' may make {limit} calls a minute.",
                remedy=f"Call again in {wait:.0f} seconds.",
            )
        self._buckets[agent.slug] = (level - 1, now)
