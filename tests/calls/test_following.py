"""Following a server's task in one process: whose entry it is, and how often a server that is gone
is asked."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mcpregistry.calls.remote_tasks import adoption
from mcpregistry.domain.calls.forwarding import AS_TASK
from mcpregistry.domain.errors import ConnectionFailed
from mcpregistry.services.tasks import remote_tasks
from mcpregistry.services.tasks.remote_tasks import FollowedTask, HostRequest

OURS = FollowedTask(
    task_id="t",
    call_id="c",
    fence=0,
    server_id=1,
    downstream_id="theirs",
    poll_ms=500,
    deadline=None,
    remote=True,
)


class Pool:
    """Of a server that never answers, or is gone."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    async def request_task(self, *_: object, **__: object) -> dict[str, Any]:
        if self._error is not None:
            raise self._error
        return await asyncio.get_running_loop().create_future()


class Wishes:
    """What the host says: nothing at first, then that it wants the task no more. Notes how long was
    waited for it."""

    def __init__(self, looks: int) -> None:
        self.seen: list[tuple[bool, float]] = []
        self._looks = looks

    async def wait_for_change(self, key: str, seen: HostRequest, timeout: float) -> HostRequest:
        self.seen.append((seen.cancel, timeout))
        if len(self.seen) == self._looks:
            raise asyncio.CancelledError
        return HostRequest({}, cancel=True)


async def test_a_wish_that_a_dead_server_does_not_take_makes_nobody_ask_it_more_often() -> None:
    wishes = Wishes(looks=7)
    pool: Any = Pool(ConnectionFailed("It is gone."))
    follower = adoption._Follower(pool, wishes, OURS, AS_TASK)  # type: ignore[arg-type]
    await asyncio.wait({follower.work})
    # Woken for the wish once, when it is new; from then on only time counts.
    assert wishes.seen == [
        (False, 0.5),
        *((True, pause) for pause in (1.0, 2.0, 4.0, 8.0, 15.0, 15.0)),
    ]


async def test_whoever_takes_a_task_over_from_itself_goes_on_renewing_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a stall the lease was anybody's, and we were the first to come: the follower of before
    must not take the entry of the one that follows now along."""
    renewed: list[FollowedTask] = []

    def keep(followed: list[FollowedTask]) -> set[str]:
        renewed.extend(followed)
        return set()

    keep.__module__ = remote_tasks.renew_task_leases.__module__
    keep.__qualname__ = "renew_task_leases"
    monkeypatch.setattr(remote_tasks, "renew_task_leases", keep)
    pool = Pool()
    feed = SimpleNamespace(subscribe=lambda *_: lambda: None)
    adopted = adoption.Adoption(pool, feed)  # type: ignore[arg-type]
    adopted._follow(OURS, AS_TASK)
    before = adopted._followers["t"].work
    adopted._follow(replace(OURS, fence=1), AS_TASK)
    before.cancel()
    await asyncio.wait({before})
    await asyncio.sleep(0)  # its callbacks
    await adopted._renew()
    assert [each.fence for each in renewed] == [1]
    now = adopted._followers["t"].work
    now.cancel()
    await asyncio.wait({now})
