"""The database answers, but refuses to write, while calls are running: what callers are told, and
what is recorded.

Each kind of refusal (``refusals.py``) meets each state in which a call can be. After the refusal
everything works again without anybody's help.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import Error, connection, connections
from django.db.models import F

from mcpregistry.calls.call import CallHost, CallOutcome
from mcpregistry.db import db_call
from mcpregistry.domain.errors import QueueFullError
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import ApprovalRequest, Configuration, Invocation, Server
from mcpregistry.services.approvals import votes
from tests.calls.conftest import Site, journal, site
from tests.calls.test_approvals import bob, held
from tests.calls.test_pipeline import echo
from tests.fault.agreement import agrees
from tests.fault.database import alone, until
from tests.fault.refusals import POSTGRES, SQLITE, Refusing, as_plain_role
from tests.fault.test_database_errors import tidy
from tests.waiting import until as soon

__all__ = ["bob", "echo", "journal", "site"]  # fixtures

pytestmark = pytest.mark.fault
Make = Callable[..., Any]
LARGE = "x" * 200_000  # what a full disk has no room for, whatever was freed in it


@dataclass
class Cell:
    """One engine, and a database that refuses while ``refusing`` is open."""

    here: Site
    refusing: Refusing
    bob: User
    told: dict[int, CallOutcome] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=count)
    _open: ExitStack = field(default_factory=ExitStack)

    async def refuse(self) -> None:
        await asyncio.to_thread(alone, lambda: self._open.enter_context(self.refusing()))

    async def accept(self) -> None:
        await asyncio.to_thread(alone, self._open.close)

    async def call(self, **facts: Any) -> CallOutcome:
        n = next(self._numbers)
        self.told[n] = await self.here.call("echo__echo", {"n": n, "large": LARGE}, **facts)
        return self.told[n]

    async def works_again(self) -> None:
        """A later call succeeds; one that is refused until then was not sent."""

        async def succeeds() -> bool:
            try:
                return (await self.call(host=CallHost(hold=0))).state in (
                    InvocationState.SUCCEEDED,
                    InvocationState.PENDING,
                )
            except QueueFullError:
                return False

        await soon(succeeds)

    async def agrees(self) -> None:
        """Every caller was told what the record says, and the server got what both say."""
        await soon(lambda: not self.here.engine.recorder.late)
        sent = [each["arguments"]["n"] for each in self.here.sent()]
        for n, outcome in self.told.items():
            await db_call(agrees, outcome, sent.count(n))


def gated(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, list[str]]:
    """Answers of servers are recorded only once the event is set; whose they are."""
    gate = asyncio.Event()
    answered = list[str]()
    recorder = cell.here.engine.recorder
    real = recorder.end

    async def end(row: Any, fact: Any) -> None:
        answered.append(row["id"])
        await gate.wait()
        await real(row, fact)

    monkeypatch.setattr(recorder, "end", end)
    return gate, answered


async def answers_come_meanwhile(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four calls are out. Their answers come while the database refuses, and so does a fifth
    call."""
    gate, answered = gated(cell, monkeypatch)
    before = len(cell.here.sent())
    out = [asyncio.ensure_future(cell.call()) for _ in range(4)]
    await soon(lambda: len(answered) == 4)
    await cell.refuse()
    gate.set()
    outcomes = await asyncio.gather(*out)
    assert {each.state for each in outcomes} == {InvocationState.SUCCEEDED}
    assert await refusal(cell) in ("not_sent NOT_RECORDED", "BUSY")
    assert len(cell.here.sent()) == before + 4
    assert cell.here.engine.recorder.running
    await cell.accept()
    ids = [each.invocation_id for each in outcomes]
    rows = Invocation.objects.filter(pk__in=ids, state=InvocationState.SUCCEEDED)
    await until(lambda: rows.count() == 4)


async def refusal(cell: Cell) -> str:
    """How a call ends: its state and code."""
    try:
        outcome = await cell.call(host=CallHost(hold=0))
    except QueueFullError as error:
        return error.code
    return f"{outcome.state} {outcome.error_code}".strip()


async def a_call_waits_for_people(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A held call is still there afterwards, and runs once when somebody approves it."""
    await db_call(Configuration.objects.update, default_outcome="ask")
    await db_call(cell.here.engine.live.refresh)
    call = asyncio.ensure_future(cell.call())
    (request,) = await held()
    before = len(cell.here.sent())
    await cell.refuse()
    try:
        await db_call(approve, request, cell.bob)
    except Error:
        assert len(cell.here.sent()) == before
        await cell.accept()
        await soon(lambda: approved_at_last(request, cell.bob))
    else:  # a full disk had room for that
        await cell.accept()
    assert (await call).state in (InvocationState.SUCCEEDED, InvocationState.NOT_SENT)


def approve(request: ApprovalRequest, user: User) -> bool:
    votes.vote(request_id=request.pk, user=user, approve=True, via="web")
    return True


async def approved_at_last(request: ApprovalRequest, user: User) -> bool:
    """Whoever was shown an error presses again."""
    try:
        return await db_call(approve, request, user)
    except Error:
        return False


async def a_caller_leaves(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its call is out when it goes, and nobody waits for the end any more."""
    gate, answered = gated(cell, monkeypatch)
    call = asyncio.ensure_future(cell.call())
    await soon(lambda: len(answered) == 1)
    await cell.refuse()
    call.cancel()
    gate.set()
    await asyncio.gather(call, return_exceptions=True)
    await cell.accept()


Story = Callable[[Cell, pytest.MonkeyPatch], Awaitable[None]]
STORIES: tuple[Story, ...] = (answers_come_meanwhile, a_call_waits_for_people, a_caller_leaves)


def cells() -> list[Any]:
    """One story of each kind in the gate; the others where everything runs."""
    found = []
    for vendor, mark, kinds in (
        ("sqlite", "one_database", SQLITE),
        ("postgres", "postgres_only", POSTGRES),
    ):
        for kind in kinds:
            for story in STORIES:
                marks = [getattr(pytest.mark, mark)]
                if story is not answers_come_meanwhile:
                    marks.append(pytest.mark.exhaustive)
                found.append(
                    pytest.param(kind, story, marks=marks, id=f"{vendor}-{kind}-{story.__name__}")
                )
    return found


@pytest.fixture
def own_sessions(live_db: None) -> Iterator[None]:
    """The next test gets sessions without what these were told."""
    yield
    if connection.vendor == "postgresql":
        connections.close_all()
        connections["default"].close_pool()  # type: ignore[attr-defined]


@pytest.fixture
def role(
    request: pytest.FixtureRequest, own_sessions: None, echo: Server, bob: User
) -> Iterator[None]:
    """Where privileges are revoked, the product runs as somebody who needs them."""
    with ExitStack() as stack:
        if request.node.callspec.params["kind"] == "revoked privileges":
            stack.enter_context(as_plain_role())
            connections.close_all()
        yield


@pytest.mark.exhaustive(one_in=4)
@pytest.mark.parametrize(("kind", "story"), cells())
async def test_a_database_that_refuses_while_calls_are_running(
    role: None,
    site: Make,
    echo: Server,
    bob: User,
    kind: str,
    story: Story,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusing = (SQLITE if connection.vendor == "sqlite" else POSTGRES)[kind]
    cell = Cell(await site(), refusing, bob)
    await cell.works_again()
    await story(cell, monkeypatch)
    await cell.works_again()
    await cell.agrees()
    await db_call(tidy)


@pytest.mark.postgres_only
@pytest.mark.usefixtures("own_sessions")
async def test_a_session_that_may_only_read_does_not_outlive_the_reason() -> None:
    """The pool would hand it out again and again, for an hour."""

    async def writes() -> bool:
        try:
            return await db_call(lambda: Configuration.objects.update(revision=F("revision")) >= 0)
        except Error:
            return False

    refusal = ExitStack()
    await asyncio.to_thread(alone, lambda: refusal.enter_context(POSTGRES["read only"]()))
    try:
        assert not any(await asyncio.gather(*(writes() for _ in range(8))))
    finally:
        await asyncio.to_thread(alone, refusal.close)
    await soon(writes)
