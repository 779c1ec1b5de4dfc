"""The database fails once, at each place where a call needs it: what the caller is told agrees with
the record.

A story is one way through the pipeline and the waiting for people; its cells are the places where
the database fails in it. That no place is left out is held by ``test_points.py``. Every story ends
with the invariants of the fixture ``site``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError

from mcpregistry import failpoints
from mcpregistry.calls.call import CallHost, CallOutcome, HostReply, Prompt
from mcpregistry.db import db_call
from mcpregistry.domain.lifecycle import TERMINAL, InvocationState
from mcpregistry.domain.policy.decision import DEFAULT_TERMS
from mcpregistry.models import ApprovalRequest, Configuration, Invocation, PolicyRule, Server
from mcpregistry.services.approvals import held_calls, votes
from mcpregistry.services.servers import lifecycle
from tests.calls.conftest import ACTOR, Site, journal, site
from tests.calls.test_approvals import asking, bob
from tests.calls.test_own_faults import given
from tests.fault.agreement import agrees
from tests.fault.database import elsewhere, failing, until
from tests.waiting import HANG_LIMIT

__all__ = ["asking", "bob", "journal", "site"]  # fixtures

pytestmark = pytest.mark.fault
Make = Callable[..., Any]
CALL = ("echo__echo", {"n": 1})


@dataclass
class Play:
    """One caller, and Bob, who is another process: his database does not fail."""

    here: Site
    bob: User
    begun: asyncio.Future[CallOutcome] = field(init=False)

    async def call(self, **facts: Any) -> CallOutcome:
        return await self.here.call(*CALL, **facts)

    def begin(self, **facts: Any) -> asyncio.Future[CallOutcome]:
        self.begun = asyncio.ensure_future(self.call(**facts))
        return self.begun

    async def seen(self, look: Callable[[ApprovalRequest], object]) -> None:
        """Bob looks for the request while the call is made, and does something about it once it is
        there."""

        def find() -> bool:
            for request in ApprovalRequest.objects.waiting():
                look(request)
                return True
            return False

        while not self.begun.done() and not await elsewhere(find):
            await asyncio.sleep(0.01)

    async def decided(self, *, approve: bool = True, **facts: Any) -> CallOutcome:
        self.begin()
        await self.seen(lambda request: self.vote(request, approve=approve, **facts))
        return await self.begun

    def vote(self, request: ApprovalRequest, *, approve: bool = True, **facts: Any) -> None:
        votes.vote(request_id=request.pk, user=self.bob, approve=approve, via="web", **facts)

    async def pending(self, **facts: Any) -> CallOutcome:
        """Told to come back at once."""
        return await self.call(host=CallHost(hold=0), **facts)


async def plain(play: Play) -> CallOutcome:
    """Nobody is asked."""
    return await play.call()


async def permitted(play: Play) -> CallOutcome:
    """Bob has permitted it ahead."""
    return await play.call()


async def approved(play: Play) -> CallOutcome:
    return await play.decided()


async def rejected(play: Play) -> CallOutcome:
    return await play.decided(approve=False)


async def edited(play: Play) -> CallOutcome:
    """The agent is told what ran instead of what it had asked for."""
    return await play.decided(arguments={"n": 2})


async def voided(play: Play) -> CallOutcome:
    """Its server is another one by the time it would run."""

    def look(request: ApprovalRequest) -> None:
        server = Server.objects.get()
        server.request_timeout = 77
        lifecycle.save_server(server=server, actor=ACTOR)
        play.vote(request)

    play.begin()
    await play.seen(look)
    return await play.begun


async def expired(play: Play) -> CallOutcome:
    """Nobody decides in time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "mcpregistry.domain.policy.rules.DEFAULT_TERMS",
            replace(DEFAULT_TERMS, decide_seconds=0.2),
        )
        return await play.call(host=CallHost(hold=HANG_LIMIT))


async def left(play: Play) -> CallOutcome:
    """The caller goes while it is held. It hears nothing any more; to it that is as good as
    cancelled."""
    call = play.begin()
    await play.seen(lambda _: None)
    call.cancel()
    with suppress(asyncio.CancelledError):
        return await call
    (found,) = await elsewhere(lambda: list(Invocation.objects.values_list("pk", flat=True)))
    await play.here.engine.approvals.wait_until_done()
    return CallOutcome(
        found, InvocationState(await elsewhere(lambda: Invocation.objects.get().state))
    )


async def away(play: Play) -> CallOutcome:
    """It comes back for what was decided meanwhile."""
    first = await play.pending()
    if first.state is InvocationState.PENDING:
        await elsewhere(
            lambda: [play.vote(request) for request in ApprovalRequest.objects.waiting()]
        )
    return await play.pending()


def person(action: str, *, confirmed: bool = False) -> CallHost:
    """A host with somebody in front of it, who answers like this."""

    async def ask(prompt: Prompt) -> HostReply:
        return HostReply(prompt.request, action, confirmed=confirmed, seconds=3.0)

    return CallHost(
        name="x", transport="http", elicit=frozenset({"form"}), ask=ask, hold=HANG_LIMIT
    )


async def confirmed(play: Play) -> CallOutcome:
    return await play.call(host=person("accept", confirmed=True))


async def declined(play: Play) -> CallOutcome:
    return await play.call(host=person("decline"))


async def unanswered(play: Play) -> CallOutcome:
    return await play.call(host=person("cancel"))


async def repeated(play: Play) -> CallOutcome:
    """The modern era: our question is the answer to the call, and the repeated call brings what the
    person said."""
    host = CallHost(name="x", transport="http", elicit=frozenset({"form"}), mrtr=True, hold=0)
    first = await play.call(host=host)
    if first.prompt is None:
        return first
    reply = HostReply(first.prompt.request, "accept", confirmed=True, seconds=3.0)
    return await play.call(host=replace(host, reply=reply))


async def asked_after(play: Play) -> CallOutcome:
    """Its agent asks how it stands, once it was approved."""
    first = await play.pending()
    await elsewhere(lambda: play.vote(ApprovalRequest.objects.get()))
    status = await play.here.call("mcp_approval_status", {"id": first.invocation_id})
    if status.result is None:  # it was not told
        return first
    return CallOutcome(
        first.invocation_id, InvocationState(status.result["structuredContent"]["state"])
    )


async def withdrawn(play: Play) -> CallOutcome:
    """The caller takes it back. A fault is told as one, so nothing counts as cancelled that is
    not."""
    first = await play.pending()
    ticket = first.ticket
    assert ticket is not None
    try:
        return CallOutcome(
            first.invocation_id,
            await play.here.engine.approvals.requests.cancel(ticket, "not needed"),
        )
    except OperationalError:
        return first


async def by_itself(play: Play) -> CallOutcome:
    """A worker is woken to run it. What fails there is tried again when the clock comes by."""
    first = await play.pending()
    await elsewhere(lambda: play.vote(ApprovalRequest.objects.get()))
    approvals = play.here.engine.approvals.runner
    try:
        ended = await approvals.settle_call(first.invocation_id)
    except OperationalError:
        ended = await approvals.settle_call(first.invocation_id)
    assert ended is not None
    return ended


STORIES: dict[str, Callable[[Play], Awaitable[CallOutcome]]] = {
    each.__name__: each
    for each in (
        plain,
        permitted,
        approved,
        rejected,
        edited,
        voided,
        expired,
        left,
        away,
        confirmed,
        declined,
        unanswered,
        repeated,
        asked_after,
        withdrawn,
        by_itself,
    )
}
# MODULE.FUNCTION as asked for with ``db_call``; "committing" is the recorder's thread, once for
# each of its commits: it commits twice for a call that nobody is asked about, and for one that is
# claimed: before and after sending.
POINTS: dict[str, list[str]] = {
    "plain": ["committing@1", "committing@2", "after_send", "targets.build_target"],
    "permitted": ["permit_uses._find_and_use_permit", "committing@1", "committing@2"],
    "approved": [
        "held_calls.ask",
        "held",
        "held_calls.load_call_states",
        "held_calls.load",
        "held_call_runner.HeldCallRunner._check_request",
        "before_claim",
        "committing@1",
        "committing@2",
        "held_calls.record_delivery",
    ],
    "rejected": ["held_calls.ask", "held_calls.load", "held_calls.record_delivery"],
    "edited": ["requests.build_agent_result"],
    "voided": ["held_calls.void"],
    "expired": ["held_calls.expire"],
    "left": ["held_calls.leave"],
    "away": ["held_calls.mark_caller_away", "held_calls.ask@2"],
    "confirmed": ["votes.confirm", "voted"],
    "declined": ["votes.refuse"],
    "unanswered": ["held_calls.change_way_of_waiting"],
    "repeated": ["held_calls.rejoin"],
    "asked_after": ["held_calls.find"],
    "withdrawn": ["held_calls.cancel"],
    "by_itself": ["held_calls.load_ready_ticket"],
}
CELLS = [(story, point) for story, points in POINTS.items() for point in points]


def prepare(story: str) -> None:
    Configuration.objects.update(default_outcome="allow" if story == "plain" else "ask")
    if story in ("confirmed", "declined", "unanswered", "repeated"):
        PolicyRule.objects.create(name="own", outcome="ask", requester_may_confirm=True)


@pytest.mark.exhaustive(one_in=9)
@pytest.mark.exhaustive(on="postgresql")
@pytest.mark.parametrize(("story", "point"), CELLS)
async def test_what_is_told_agrees_with_the_record(
    site: Make, asking: Server, bob: User, story: str, point: str
):
    await db_call(prepare, story)
    play = Play(await site(), bob)
    if story == "permitted":
        await given(play.here, bob)
    before = len(play.here.sent())
    with failing(point):
        told = await STORIES[story](play)
    await play.here.engine.approvals.wait_until_done()
    # the answer says that its record is; it is written as soon as the database takes it
    if told.late:
        await until(
            lambda: Invocation.objects.filter(pk=told.invocation_id, state__in=TERMINAL).exists()
        )
    await db_call(agrees, told, len(play.here.sent()) - before)
    await db_call(tidy)


def tidy() -> None:
    """Whoever was told "pending" gives up: what is left open then is the clock's."""
    for request in ApprovalRequest.objects.filter(
        call__state__in=[InvocationState.PENDING, InvocationState.READY]
    ):
        held_calls.cancel(request_id=request.pk, reason="The story is over", actor="test")


def test_a_point_fails_the_time_it_is_told_to_and_never_again():
    def fails() -> bool:
        try:
            failpoints.failpoint("committing")
        except OperationalError:
            return True
        return False

    with failpoints.arm_for_test("committing:dberror@2"):
        assert [fails() for _ in range(4)] == [False, True, False, False]
    assert not fails()


async def test_a_function_of_a_database_thread_is_a_point(live_db: None):
    with (
        failpoints.arm_for_test("test_database_errors.nothing:dberror"),
        pytest.raises(OperationalError),
    ):
        await db_call(nothing)
    assert await db_call(nothing) is None


def nothing() -> None:
    """Asked for with ``db_call``."""
