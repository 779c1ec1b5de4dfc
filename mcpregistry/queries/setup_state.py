"""How far a server has been set up, read off its rows: so the way can be left anywhere and taken up
again."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import QuerySet

from mcpregistry.models import Agent, Grant, Server, ServerTest, Tool
from mcpregistry.models.server import Lifecycle

STEPS = ("read", "confirm", "test", "definitions", "access")
MOST_SHOWN = 200  # definitions on one page; the inbox has all


def query_agents_of_people() -> QuerySet[Agent]:
    """All agents but those of expert tools, which only their own runs act as."""
    return Agent.objects.exclude(slug__startswith="expert.")


def agents_of_hosts() -> QuerySet[Agent]:
    """The agents as which a host may connect, and a person try a tool: those of people that are
    enabled."""
    return query_agents_of_people().filter(enabled=True)


@dataclass(frozen=True, slots=True)
class SetupState:
    """``test``: the newest one. ``waiting``: definitions that nobody has decided on; ``serving``:
    that can be called."""

    server: Server
    test: ServerTest | None
    waiting: int
    serving: int
    agents: tuple[str, ...]

    @property
    def done(self) -> frozenset[str]:
        """The steps that have been taken."""
        server = self.server
        active = server.lifecycle == Lifecycle.ACTIVE
        heard = server.last_ok_at
        since = server.confirmed_at
        answered = bool(active and heard and since and heard >= since)
        taken = {
            "read": True,
            "confirm": active,
            "test": answered and not self.testing,
            "definitions": answered and not self.waiting and bool(self.serving),
            "access": bool(self.agents),
        }
        return frozenset(step for step, so in taken.items() if so)

    @property
    def testing(self) -> bool:
        return self.test is not None and self.test.goes_on

    @property
    def step(self) -> str:
        """The first that is still to be taken; empty when all are."""
        return next((step for step in STEPS if step not in self.done), "")


def read_setup_state(server: Server) -> SetupState:
    """Of the server as it was just read, in four queries."""
    granted = Grant.objects.filter(agent__isnull=False)
    slugs = {
        *granted.filter(server=server).values_list("agent__slug", flat=True),
        *granted.filter(tool__server=server).values_list("agent__slug", flat=True),
    }
    return SetupState(
        server,
        server.tests.filter(in_sandbox=False).first(),
        server.tools.waiting().count(),
        server.tools.serving().count(),
        tuple(sorted(slugs)),
    )


def to_decide(server: Server) -> list[Tool]:
    """What waits for a decision, the worst findings first; the first ``MOST_SHOWN``."""
    rows = (
        server.tools.waiting()
        .select_related("latest", "pinned")
        .order_by("-latest__severity", "kind", "name")
    )
    return [*rows[:MOST_SHOWN]]
