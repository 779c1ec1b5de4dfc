"""Every way of waiting, and everything that can happen to a held call meanwhile.

The server keeps a journal of what it really received; after each cell the invariants are checked.
What cannot happen is named in ``IMPOSSIBLE``, with the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db.models import QuerySet
from django.utils import timezone

from mcpregistry import tasks
from mcpregistry.domain.errors import Denied
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import (
    Agent,
    ApprovalRequest,
    AuditEntry,
    Invocation,
    Permit,
    PolicyRule,
    Server,
)
from mcpregistry.services.access import tokens
from mcpregistry.services.approvals import held_calls, votes
from mcpregistry.services.approvals.votes import AlreadyDecided
from mcpregistry.services.definitions import decisions, observe
from mcpregistry.services.policy.permits import PermitWish
from mcpregistry.services.servers import lifecycle
from mcpregistry.services.upkeep.invariants import calls
from tests.fakes.journals import called
from tests.fakes.stage import (
    ACTOR,
    Stage,
    Web,
    folder,
    fresh,
    in_order,
    listed,
    outside,
    seen_outside,
    web,
)
from tests.fault.agreement import contradictions
from tests.fault.ways import SHORT_HOLD, WAYS, Seen, Waiter, Way
from tests.gateway.conftest import stage
from tests.tasks import worker
from tests.waiting import HANG_LIMIT

__all__ = ["MARKS", "Cell", "Happening", "cell", "cells", "check", "place", "stage"]

MARKS = [pytest.mark.fault, pytest.mark.e2e]

# Two tools for each kind of rule: one person decides, or two; and the same where the requester may
# confirm.
TOOLS = ("ask", "ask_two", "mine", "mine_two")


@dataclass
class Place:
    """What all cells share: a site of two web processes and a worker, and the people."""

    stage: Stage
    site: Web
    brisk: Web
    token: str
    journal: Path
    people: dict[str, User] = field(default_factory=dict)

    def settle(self) -> None:
        """Until every web process has heard of the last change of the configuration."""
        agent = Agent.objects.get(slug="local")
        _, text = tokens.issue_token(name=fresh("t"), agent=agent, actor=ACTOR)
        for each in (self.site, self.brisk):
            each.wait_known(text)


@pytest.fixture(scope="module")
def place(stage: Stage, broker: str) -> Iterator[Place]:
    journal = folder() / "journal"
    people = {name: _person(name) for name in ("bob", "eve", "dan", "owner")}
    stage.endpoint()
    server = stage.fake("echo", listed(*TOOLS), FAKE_JOURNAL=str(journal))
    for tool in server.tools.all():
        PolicyRule.objects.create(
            name=tool.name,
            outcome="ask",
            tool=tool,
            requester_may_confirm=tool.name.startswith("mine"),
            quorum=2 if tool.name.endswith("two") else 1,
        )
    token = stage.agent("local", server, owner=people["owner"])
    worker.empty_broker()
    with (
        web(stage.env | {"SLIPSNISSE_HOLD": f"{HANG_LIMIT:.0f}"}) as site,
        web(stage.env | {"SLIPSNISSE_HOLD": SHORT_HOLD}) as brisk,
        worker.running(stage.env, "matrix"),
    ):
        yield Place(stage, site, brisk, token, journal, people)


def _person(name: str) -> User:
    user = User.objects.create(username=name, first_name=name.title(), password="!")
    user.groups.add(Group.objects.get(name="approver"))
    return user


@dataclass
class Cell:
    """One caller with one held call."""

    place: Place
    way: Way
    waiter: Waiter
    mark: str = field(default_factory=lambda: fresh("cell"))
    two: bool = False

    @property
    def tool(self) -> str:
        return f"echo__{'mine' if self.way.may_confirm else 'ask'}{'_two' if self.two else ''}"

    @property
    def arguments(self) -> dict[str, Any]:
        return {"mark": self.mark, "n": 1}

    async def begin(self) -> ApprovalRequest:
        await self.waiter.begin(self.tool, self.arguments)
        return await self.request()

    async def end(self) -> Seen:
        return await self.waiter.end()

    async def request(self) -> ApprovalRequest:
        return await seen_outside(self._rows().last)

    def _rows(self) -> QuerySet[ApprovalRequest]:
        rows = ApprovalRequest.objects.select_related("call", "group").filter(
            call__arguments__contains=self.mark
        )
        return in_order(rows, "call_id")

    async def until(self, *states: InvocationState) -> ApprovalRequest:
        """When the last request's call has come to one of them."""
        rows = self._rows()

        def look() -> ApprovalRequest | None:
            found = rows.last()
            return found if found and found.call.state in states else None

        return await seen_outside(look)

    async def vote(self, who: str = "bob", approve: bool = True, **more: Any) -> ApprovalRequest:
        request = await self.request()
        user = await outside(User.objects.get, username=who)
        return await outside(
            votes.vote, request_id=request.pk, user=user, approve=approve, via="web", **more
        )

    def sent(self) -> list[dict[str, Any]]:
        """The arguments that the server received from this cell's calls."""
        found = (params["arguments"] for params in called(self.place.journal))
        return [each for each in found if each["mark"] == self.mark]

    async def ran(self, **changed: Any) -> Seen:
        """The caller gets the answer, and the server got exactly one call."""
        told = await self.end()
        assert not told.is_error, told
        assert self.sent() == [self.arguments | changed]
        await self._agrees(InvocationState.SUCCEEDED)
        return told

    async def never_ran(self, state: InvocationState, words: str) -> None:
        """The caller is told why, in words, and the server got nothing."""
        told = await self.end()
        assert told.is_error, told
        assert words in told.text
        await self._agrees(state)

    async def _agrees(self, told: InvocationState) -> None:
        """What the caller was told agrees with the record, and with what the server received."""
        request = await self.until(told)
        assert await outside(contradictions, told, request.call_id, len(self.sent())) == []

    async def void(self, held: ApprovalRequest, words: str) -> None:
        """What was approved is no more. A caller that comes back with the call asks for what there
        is now."""
        if self.way.kind not in ("away", "rest"):
            await self.never_ran(InvocationState.VOID, words)
            return
        assert await _rest_call(self, 1) == 202
        assert (await self.request()).pk != held.pk
        assert self.sent() == []

    async def came_to_nothing(self, state: InvocationState) -> None:
        """Nobody is there to be told."""
        await self.until(state)
        assert self.sent() == []


# What can happen


async def approved(cell: Cell) -> None:
    await cell.begin()
    assert cell.sent() == []
    await cell.vote()
    await cell.ran()


async def edited(cell: Cell) -> None:
    await cell.begin()
    await cell.vote(arguments={"mark": cell.mark, "n": 2})
    assert "NOTE: Bob approved this call with changed arguments" in (await cell.ran(n=2)).text


async def narrowed(cell: Cell) -> None:
    """With the approval comes a permit for this very call, once more."""
    request = await cell.begin()
    wish = PermitWish(until=datetime.now(UTC) + timedelta(hours=1), pins=cell.arguments, uses=1)
    await cell.vote(permit=wish)
    await cell.ran()
    await outside(cell.place.settle)
    outcomes = [await _rest_call(cell, n) for n in (1, 1, 2)]
    assert outcomes == [200, 202, 202]  # permitted; used up; never covered
    assert [each["n"] for each in cell.sent()] == [1, 1]
    assert (await outside(Permit.objects.get, request=request)).uses_left == 0


async def rejected(cell: Cell) -> None:
    await cell.begin()
    await cell.vote(approve=False, reason="Not today.")
    await cell.never_ran(
        InvocationState.REJECTED, "REJECTED by Bob: Not today. The call was not made."
    )


async def expired(cell: Cell) -> None:
    request = await cell.begin()
    await outside(held_calls.expire, request_id=request.pk, now=request.decide_by)
    await cell.never_ran(InvocationState.EXPIRED, held_calls.SILENCE)


async def cancelled_by_host(cell: Cell) -> None:
    await cell.begin()
    await cell.waiter.cancel()
    if cell.way.stays or cell.way.kind in ("task", "rest"):
        await cell.came_to_nothing(InvocationState.CANCELLED)
        with pytest.raises(AlreadyDecided):
            await cell.vote()
        return
    # It was answered already, so this cancel is late: as of a host that sends one after every
    # answer.
    await cell.vote()
    await cell.ran()


async def host_killed(cell: Cell) -> None:
    await cell.begin()
    await cell.waiter.kill()
    if cell.way.stays:
        await cell.came_to_nothing(InvocationState.CANCELLED)
        return
    request = await cell.vote()
    if cell.way.kind == "task":  # whoever has the handle may come back for the result
        await cell.until(InvocationState.SUCCEEDED)
        assert cell.sent() == [cell.arguments]
        return
    execute_by = (await cell.until(InvocationState.READY)).execute_by
    await outside(held_calls.expire, request_id=request.pk, now=execute_by)
    await cell.came_to_nothing(InvocationState.EXPIRED)


async def our_process_killed(cell: Cell) -> None:
    """kill -9 while the call is held; the next process finds the request as it was."""
    request = await cell.begin()
    await _kill(cell)
    async with cell.way.open(
        cell.place.stage, cell.place.site, cell.place.brisk, cell.place.token
    ) as again:
        if cell.way.kind == "task":
            again.task_id = cell.waiter.task_id  # type: ignore[attr-defined]
        else:
            await again.begin(cell.tool, cell.arguments)
        cell.waiter = again
        await cell.vote()
        await cell.ran()
    assert (await cell.request()).pk == request.pk


async def approver_switched_off(cell: Cell) -> None:
    cell.two = True
    await cell.begin()
    await cell.vote("bob")
    await outside(User.objects.filter(username="bob").update, is_active=False)
    try:
        await cell.vote("eve")
        # two have agreed, one of whom may not any more
        assert (await cell.request()).call.state == InvocationState.PENDING
        await cell.vote("dan")
        await cell.ran()
    finally:
        await outside(User.objects.filter(username="bob").update, is_active=True)


async def definition_changed(cell: Cell) -> None:
    request = await cell.begin()
    await outside(_describe, cell.place, "Something else.")
    try:
        await cell.vote()
        await cell.void(request, "The approval is no longer valid: the tool")
    finally:
        await outside(_describe, cell.place, "")


async def arguments_changed(cell: Cell) -> None:
    """Another call is another request; and a record that was tampered with is not run."""
    request = await cell.begin()
    assert await _rest_call(cell, 5) == 202
    other = await cell.request()
    assert other.pk != request.pk
    await outside(held_calls.cancel, request_id=other.pk, reason="Enough", actor="test")
    rows = Invocation.objects.filter(pk=request.call_id)
    await outside(rows.update, arguments=request.call.arguments.replace('"n":1', '"n":7'))
    try:
        user = await outside(User.objects.get, username="bob")
        await outside(votes.vote, request_id=request.pk, user=user, approve=True, via="web")
        await cell.end()
        assert await outside(lambda: rows.get().state) == InvocationState.VOID
        assert cell.sent() == []
    finally:
        await outside(rows.update, arguments=request.call.arguments)


async def server_edited(cell: Cell) -> None:
    request = await cell.begin()
    await outside(_edit_server)
    await cell.vote()
    await outside(cell.place.settle)
    await cell.void(request, "the settings of the server echo were changed")


async def rule_changed(cell: Cell) -> None:
    request = await cell.begin()
    rule = PolicyRule.objects.filter(name=cell.tool.removeprefix("echo__"))
    await outside(lambda: rule.update(execute_seconds=rule.get().execute_seconds + 1))
    await cell.vote()
    await outside(cell.place.settle)
    await cell.void(request, "was changed, or another rule applies now")


async def second_approver(cell: Cell) -> None:
    await cell.begin()
    await cell.vote("bob")
    for approve in (True, False):
        with pytest.raises(AlreadyDecided, match="Bob already approved this call"):
            await cell.vote("eve", approve)
    await cell.ran()


async def self_approval(cell: Cell) -> None:
    await cell.begin()
    if cell.way.may_confirm:
        await cell.vote("owner")
    else:
        with pytest.raises(Denied, match="own the agent of this call"):
            await cell.vote("owner")
        await cell.vote()
    await cell.ran()


Happening = Callable[[Cell], Awaitable[None]]
HAPPENINGS: tuple[Happening, ...] = (
    approved,
    edited,
    narrowed,
    rejected,
    expired,
    cancelled_by_host,
    host_killed,
    our_process_killed,
    approver_switched_off,
    definition_changed,
    arguments_changed,
    server_edited,
    rule_changed,
    second_approver,
    self_approval,
)
# In the gate, tests of calls, services and api/test_requester.py show the others.
IN_GATE = (
    approved,
    expired,
    cancelled_by_host,
    host_killed,
    our_process_killed,
    definition_changed,
)
IMPOSSIBLE: dict[tuple[str, Happening], str] = {
    ("rest", host_killed): "nobody is on the line between two requests",
}


# How it is made to happen


async def _rest_call(cell: Cell, n: int) -> int:
    async with cell.place.brisk.raw(cell.place.token) as client:
        url = f"http://{cell.place.brisk.address}/api/v1/tools/{cell.tool}/call"
        return (await client.post(url, json={"params": cell.arguments | {"n": n}})).status_code


async def _kill(cell: Cell) -> None:
    if cell.way.door == "stdio":
        cell.waiter.crash()
        return
    running = cell.place.brisk if cell.way.kind == "away" else cell.place.site
    for process in running.processes:
        process.kill()
        await asyncio.to_thread(process.wait)
    running.processes.clear()
    running.start()
    await asyncio.to_thread(running.wait_ready)


def _describe(place: Place, words: str) -> None:
    """Every tool is described anew, and that is approved."""
    server = Server.objects.get(slug="echo")
    tools = [tool | ({"title": words} if words else {}) for tool in listed(*TOOLS)]
    observe.observe(server=server, listed=tools)
    decisions.approve_waiting(server=server, actor=ACTOR)
    place.settle()


def _edit_server() -> None:
    server = Server.objects.get(slug="echo")
    server.request_timeout += 1
    lifecycle.save_server(server=server, actor=ACTOR)


def _tidy(cell: Cell) -> list[str]:
    """End what the cell has left open on purpose, and look at everything."""
    left = ApprovalRequest.objects.filter(
        call__arguments__contains=cell.mark, call__state__in=["pending", "ready"]
    )
    for request in left:
        held_calls.cancel(request_id=request.pk, reason="The cell is over", actor="test")
    tasks.reap()  # as the clock does; a process that was killed has left its connections behind
    found = calls.check_invariants(timezone.now())
    return [f"{each.rule} {each.examples}" for each in found if each.violations]


@pytest.fixture
async def cell(way: Way, place: Place) -> AsyncIterator[Cell]:
    async with way.open(place.stage, place.site, place.brisk, place.token) as waiter:
        made = Cell(place, way, waiter)
        yield made
    assert await outside(_tidy, made) == []


def cells(door: str) -> Any:
    """Parametrise a test with every cell of the ways through this door; REST counts as HTTP."""
    ways = [way for way in WAYS if (way.door == "stdio") == (door == "stdio")]
    pairs = [(way, what) for way in ways for what in HAPPENINGS]
    own = [(way, what) for way, what in pairs if (way.kind, what) not in IMPOSSIBLE]
    marked = [
        pytest.param(way, what, id=f"{way}-{what.__name__}", marks=marks_of(way, what))
        for way, what in own
    ]
    return pytest.mark.parametrize(("way", "what"), marked)


def marks_of(way: Way, what: Happening) -> list[pytest.MarkDecorator]:
    """The gate has some happenings, each in one way, on SQLite; the kinds of ways take turns."""
    if not twice(way, what):
        return [pytest.mark.one_database, pytest.mark.exhaustive]
    kinds = sorted({each.kind for each in WAYS})
    kind = kinds[-HAPPENINGS.index(what) % len(kinds)]
    first = next((each for each in WAYS if each.kind == kind and twice(each, what)), None)
    in_gate = way == first and what in IN_GATE
    return [pytest.mark.exhaustive(on="postgresql") if in_gate else pytest.mark.exhaustive]


def twice(way: Way, what: Happening) -> bool:
    """Whether a cell is in the second database's leg as well.

    What a database sees is how a call is held and whether its host stays, not its door and era. So
    everything happens there to each of these, in turn through their doors and eras; and each kind
    of process is killed there in each way.
    """
    alike = [each for each in WAYS if (each.kind, each.stays) == (way.kind, way.stays)]
    return what is our_process_killed or way == alike[HAPPENINGS.index(what) % len(alike)]


async def check(cell: Cell, what: Happening) -> None:
    await what(cell)
    dispatched = AuditEntry.objects.filter(
        kind="call.dispatched", subject=f"call:{(await cell.request()).call_id}"
    )
    assert await outside(dispatched.count) <= 1
