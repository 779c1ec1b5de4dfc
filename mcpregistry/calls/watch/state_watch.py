"""The one way to wait for rows to change: read when the feed says so, nothing while nobody
waits."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Generic, TypeVar

import structlog

from mcpregistry.calls.watch.changes import Feed
from mcpregistry.db import db_call

log = structlog.get_logger(__name__)

S = TypeVar("S")
# seconds; what nobody told of (a table's triggers were dropped, say) is late, but not lost
LOOK_ANYWAY = 5.0
_AFTER_FAULT = 1.0


class StateReader(Generic[S]):
    """Reads the states of what is waited for, together, whenever one of them may have changed.

    ``keys`` says what is waited for now; ``read`` is called in a database thread, ``tell`` on the
    event loop with what it found. ``topic``: the feed's topic with the same keys; after a change of
    one of ``also`` all are read.
    """

    def __init__(
        self,
        feed: Feed,
        topic: str,
        read: Callable[[list[str]], dict[str, S]],
        *,
        keys: Callable[[], Collection[str]],
        tell: Callable[[dict[str, S]], None],
        also: tuple[str, ...] = (),
    ) -> None:
        self._feed = feed
        self._topics = (topic, *also)
        self._read = read
        self._keys = keys
        self._tell = tell
        self._due: set[str] = set()
        self._news = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self, due: Iterable[str] = ()) -> None:
        """Somebody waits: listen as long as ``keys`` has any, and read ``due`` at once. On the
        event loop."""
        self._due.update(due)
        self._news.set()
        if self._looking is None or self._looking.done():
            self._loop = asyncio.get_running_loop()
            ends = [self._feed.subscribe(self._topics[0], self._receive_change)]
            ends += [
                self._feed.subscribe(topic, lambda _: self._receive_change(None))
                for topic in self._topics[1:]
            ]
            self._looking = asyncio.ensure_future(self._read_when_due())
            # The feed forgets us when nobody waits any more, so a watch may be made for one waiting
            # alone.
            self._looking.add_done_callback(lambda _: [end() for end in ends])

    def _receive_change(self, keys: frozenset[str] | None) -> None:
        """In the feed's thread."""
        if not self._keys():
            return
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop has ended, and whoever waited with it
            self._loop.call_soon_threadsafe(self._mark_due, keys)

    def _mark_due(self, keys: frozenset[str] | None) -> None:
        waiting = self._keys()
        self._due.update(waiting if keys is None else keys.intersection(waiting))
        if self._due:
            self._news.set()

    async def _read_when_due(self) -> None:
        while self._keys():
            self._news.clear()
            if due := self._due.intersection(self._keys()):
                self._due.clear()
                await self._read_states(due)
            try:
                async with asyncio.timeout(LOOK_ANYWAY):
                    await self._news.wait()
            except TimeoutError:
                self._due.update(self._keys())

    async def _read_states(self, due: set[str]) -> None:
        try:
            self._tell(await db_call(self._read, list(due)))
        except Exception:  # the database may be away; they go on waiting
            log.exception("watch.look_failed")
            await asyncio.sleep(_AFTER_FAULT)
            self._mark_due(frozenset(due))


class StateWatch(Generic[S]):
    """Waits for single keys to have another state than the one that was seen last."""

    def __init__(
        self,
        feed: Feed,
        topic: str,
        read: Callable[[list[str]], dict[str, S]],
        *,
        also: tuple[str, ...] = (),
    ) -> None:
        self._waiting: dict[str, set[asyncio.Future[S]]] = defaultdict(set)
        self._seen: dict[asyncio.Future[S], S] = {}
        self._look = StateReader(
            feed,
            topic,
            read,
            keys=lambda: list(self._waiting),
            tell=self._resolve_waiters,
            also=also,
        )
        self.stopping = False

    async def wait_for_change(
        self, key: str, seen: S, timeout: float | None, *, just_read: bool = False
    ) -> S:
        """Wait until its state is another than ``seen``; that one again after ``timeout`` seconds.

        It is read at once, since it may have changed before anybody waited; not so where it is
        ``just_read``, or will be by the caller.
        """
        if self.stopping:
            return seen
        changed: asyncio.Future[S] = asyncio.get_running_loop().create_future()
        self._waiting[key].add(changed)
        self._seen[changed] = seen
        self._look.begin(() if just_read else (key,))
        try:
            done, _ = await asyncio.wait({changed}, timeout=timeout)
            return changed.result() if done else seen
        finally:
            self._forget(key, changed)

    def stop(self) -> None:
        """Let everybody go with what was seen last."""
        self.stopping = True
        for future, seen in self._seen.items():
            if not future.done():
                future.set_result(seen)

    def _forget(self, key: str, changed: asyncio.Future[S]) -> None:
        self._seen.pop(changed, None)
        self._waiting[key].discard(changed)
        if not self._waiting[key]:
            del self._waiting[key]

    def _resolve_waiters(self, states: dict[str, S]) -> None:
        for key, state in states.items():
            for future in self._waiting.get(key, ()):
                if state != self._seen[future] and not future.done():
                    future.set_result(state)
