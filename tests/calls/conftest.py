"""A site with fake servers, an engine over it, and ways to look at what was recorded and sent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.utils import timezone

from mcpregistry.calls.call import CallOutcome, CallRequest
from mcpregistry.calls.engine import Engine
from mcpregistry.calls.watch import changes
from mcpregistry.db import db_call
from mcpregistry.downstream.peers.sockets import PeerAddress
from mcpregistry.models import Agent, AuditEntry, Configuration, Endpoint, Invocation, Server
from mcpregistry.services.access import agents, grants
from mcpregistry.services.definitions import decisions, observe
from mcpregistry.services.servers import lifecycle
from mcpregistry.services.upkeep.invariants import calls
from tests.calls.processes import Process, Start
from tests.fakes.journals import called
from tests.fakes.remembered import remembered
from tests.fakes.targets import stdio_target
from tests.waiting import HANG_LIMIT, until

ACTOR = "test"
ANY = {"type": "object"}


def tool(name: str, schema: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": schema or ANY, **more}


def add_server(
    fake: str, *tools: dict[str, Any], args: tuple[str, ...] = (), ignored: str = "", **fields: Any
) -> Server:
    """An active server that starts ``fakes/servers/FAKE.py``; its tools are approved, and granted
    to "ann".

    ``ignored``: see ``remembered``.
    """
    key = ("server", fake, json.dumps([tools, args, fields], sort_keys=True, default=repr))
    return remembered(key, lambda: _add_server(fake, *tools, args=args, **fields), ignored)


def _add_server(fake: str, *tools: dict[str, Any], args: tuple[str, ...], **fields: Any) -> Server:
    command = [*stdio_target(fake).argv, *args]
    # it says what is approved here
    env = {"FAKE_LISTED": json.dumps(tools)} | fields.pop("env", {})
    # a test that is about one gives its own
    limits = {"connect_timeout": HANG_LIMIT, "request_timeout": HANG_LIMIT}
    fields = {"slug": fake, "command": command, "env": env} | limits | fields
    server = lifecycle.save_server(server=Server(**fields), actor=ACTOR)
    server = lifecycle.confirm_launch(server=server, actor=ACTOR, launch_hash=server.launch_hash())
    observe.observe(server=server, listed=tools)
    decisions.approve_waiting(server=server, actor=ACTOR)
    agent = Agent.objects.filter(slug="ann").first() or agents.save_agent(
        agent=Agent(slug="ann"), actor=ACTOR
    )
    grants.grant_access(agent=agent, server=server, actor=ACTOR)
    if not Endpoint.objects.filter(slug="default").exists():
        agents.save_endpoint(endpoint=Endpoint(slug="default"), actor=ACTOR)
        # what is granted runs, unless a test says otherwise
        Configuration.objects.update(default_outcome="allow")
    return server


class Site:
    """One engine; ``call`` is a call of agent "ann" on the endpoint "default"."""

    def __init__(self, engine: Engine, journal: Path) -> None:
        self.engine = engine
        self.journal = journal

    async def call(
        self, name: str, arguments: dict[str, Any] | None = None, **facts: Any
    ) -> CallOutcome:
        catalogue = self.engine.get_catalogue("default", "ann")
        return await self.engine.call(
            CallRequest(catalogue, name, arguments or {}, "http", **facts)
        )

    def sent(self) -> list[dict[str, Any]]:
        """The parameters of every ``tools/call`` that reached the server."""
        return called(self.journal)

    async def until_sent(self, count: int = 1) -> None:
        await until(lambda: len(self.sent()) >= count)


@pytest.fixture
def journal() -> Path:
    """The same name in every test: it stands in the server's row, which is remembered."""
    path = settings.VAR_DIR / "journal"
    path.unlink(missing_ok=True)
    return path


@pytest.fixture
async def site(live_db: None, journal: Path) -> AsyncIterator[Callable[..., Any]]:
    """``await site(**engine options)`` starts an engine; all stop at the end and every invariant
    must hold."""
    made: list[Site] = []

    async def make(**options: Any) -> Site:
        made.append(Site(Engine("web", **options), journal))
        await made[-1].engine.start()
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        # A machine that stalls for some seconds is not without a database.
        patch.setattr(changes, "BLIND_AFTER", HANG_LIMIT)
        yield make
        for each in made:
            await each.engine.stop()
    assert await db_call(broken) == []


def broken() -> list[str]:
    """What ``manage.py invariants --strict`` would complain about."""
    found = calls.check_invariants(timezone.now(), strict=True)
    return [f"{finding.rule} {finding.examples}" for finding in found if finding.violations]


def only_call() -> Invocation:
    return Invocation.objects.get()


def told(call_id: str) -> list[str]:
    """The kinds of audit entries about one call, in order."""
    return list(
        AuditEntry.objects.filter(subject=f"call:{call_id}")
        .order_by("id")
        .values_list("kind", flat=True)
    )


@pytest.fixture(
    params=["one machine", pytest.param("several machines", marks=pytest.mark.exhaustive)]
)
async def processes(
    request: pytest.FixtureRequest, live_db: None, tmp_path: Path
) -> AsyncIterator[Start]:
    """Start processes that call one server. Several machines are addresses of the loopback
    network."""
    made: list[Process] = []

    def place(number: int) -> Path | PeerAddress:
        return (
            tmp_path / f"{number}.sock"
            if request.param == "one machine"
            else PeerAddress(f"127.0.1.{number}")
        )

    async def start(target: Any, count: int = 2) -> list[Process]:
        made.extend(Process(number + 1, place(number + 1), target) for number in range(count))
        for each in made:
            await each.start()
        return made

    yield start
    for each in made:
        await each.stop()


@pytest.fixture
async def server(live_db: None) -> Server:
    """A server that ends itself when it is told to."""
    return await db_call(add_server, "crash")
