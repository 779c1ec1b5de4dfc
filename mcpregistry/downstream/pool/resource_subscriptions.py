"""Subscriptions to single resources: one at the server however many hosts want it, renewed when its
connection is.

``Watches`` belongs to a pool and outlives connections. What is wanted on a connection stands in its
``Watched``; what follows it stands in ``followers.py``. While anything is wanted of a server, the
connection is kept, and opened again when it is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from weakref import WeakValueDictionary

import structlog

from mcpregistry.domain.calls.forwarding import NOTHING, Forwarding
from mcpregistry.domain.errors import ConnectionFailed, SlipsnisseError
from mcpregistry.domain.servers.sessions import EVERYBODY, OLDER, parse_session_name

log = structlog.get_logger(__name__)

Listener = Callable[[], None]  # called on the event loop for each change, must not block

# seconds
RETRY_FIRST = 1.0
RETRY_MOST = 30.0
SETTLE = 0.02  # seconds in which changes are collected
MOST = 5_000  # URIs of one connection


@dataclass(frozen=True, slots=True)
class Opener:
    """The host whose connection is opened for its subscription. ``caller``: the name of its
    session; ``asks``: see ``ServerCall``."""

    caller: str = ""
    host: Forwarding = NOTHING
    asks: frozenset[str] | None = None


class WatchedUri:
    """What is wanted of one resource. ``ours``: how many listeners are of hosts of this process;
    ``holders``: for how many the connection is kept. ``taken``: the server has taken it, or its
    error. ``is_promised``: somebody has heard that it was taken.
    """

    def __init__(self) -> None:
        self.listeners: dict[object, Listener] = {}
        self.ours = 0
        self.holders = 0
        self.is_promised = False
        self.taken = make_future()


class Follower:
    """What learns which of the wanted resources change: a connection, or a link to another process.

    ``answers``: what the server said to each URI, None for yes. ``is_main``: it is the connection
    that is kept while something is wanted. ``ours_only``: it follows only what listeners of this
    process want.
    """

    def __init__(self, watched: Watched, *, is_main: bool, ours_only: bool = False) -> None:
        self.watched = watched
        self.is_main = is_main
        self._ours_only = ours_only
        self.answers: dict[str, SlipsnisseError | None] = {}
        self.changed = asyncio.Event()  # something is wanted, or not wanted any more

    def has_to_follow(self, uri: str) -> bool:
        """Whether it has to follow this resource."""
        wish = self.watched.wanted.get(uri)
        return wish is not None and (not self._ours_only or wish.ours > 0)

    @property
    def wanted(self) -> list[str]:
        """The URIs that it has to follow, sorted."""
        return sorted(uri for uri in self.watched.wanted if self.has_to_follow(uri))

    def answer(self, uri: str, error: SlipsnisseError | None) -> None:
        """The server has taken or refused this."""
        self.watched.note_answer(self, uri, error)


class Watched:
    """What is wanted on one connection, who is told, and what follows it. It is true while the
    connection must be kept."""

    def __init__(self, server_id: int = 0, session: str = EVERYBODY) -> None:
        self.server_id = server_id
        self.session = session
        self.wanted: dict[str, WatchedUri] = {}
        self.opener = Opener()
        self.keeper: asyncio.Task[None] | None = None
        # further followers are on their way: nothing counts as taken without them
        self.is_joining = False
        self._holders = 0
        self._followers: set[Follower] = set()
        self._due: dict[str, None] = {}

    def __bool__(self) -> bool:
        return self._holders > 0

    def add(
        self, uri: str, listener: Listener, *, is_ours: bool = True
    ) -> tuple[Callable[[], None], asyncio.Future[None]]:
        """Returns what ends it (idempotent), and a future: the server has taken it, or its error.

        ``is_ours``: the listener is that of a host of this process. For one of another process, a
        connection that everybody shares is not kept: that process has one of its own.
        """
        wish = self.wanted.setdefault(uri, WatchedUri())
        holds = is_ours or self.session != EVERYBODY
        if holds and not wish.holders and wish.taken.done():
            # it was taken without the connection that is kept from now on
            wish.taken = make_future()
        key = object()
        wish.listeners[key] = listener
        self._count(wish, ours=is_ours, holders=holds, step=1)
        self._notify_followers()
        self._settle(uri)

        def end() -> None:
            if wish.listeners.pop(key, None) is None:
                return
            self._count(wish, ours=is_ours, holders=holds, step=-1)
            if not wish.listeners and self.wanted.get(uri) is wish:
                self._forget(uri)
            self._notify_followers()
            if not self and self.keeper is not None:
                self.keeper.cancel()

        return end, wish.taken

    def _count(self, wish: WatchedUri, *, ours: bool, holders: bool, step: int) -> None:
        wish.ours += step * ours
        wish.holders += step * holders
        self._holders += step * holders

    def _forget(self, uri: str) -> None:
        self.wanted.pop(uri).taken.cancel()
        for follower in self._followers:
            follower.answers.pop(uri, None)

    def end(self) -> None:
        """Nothing is wanted any more, and nobody is told of anything."""
        for wish in self.wanted.values():
            wish.listeners.clear()
        for uri in list(self.wanted):
            self._forget(uri)
        self._holders = 0
        self._notify_followers()
        if self.keeper is not None:
            self.keeper.cancel()

    # -- towards listeners -------------------------------------------------------------------------

    def note(self, uri: str) -> None:
        """The server says that a resource has changed. Listeners are called in a moment, once for
        each resource."""
        if not self.wanted:
            return
        if not self._due:
            asyncio.get_running_loop().call_later(SETTLE, self._notify_due)
        if len(self._due) >= 2 * MOST:  # then everything counts as changed
            self._due = dict.fromkeys(self.wanted)
        self._due[uri] = None

    def _notify_due(self) -> None:
        due = self._due
        self._due = {}
        self._notify_changed(*due)

    def _notify_changed(self, *uris: str) -> None:
        """These resources, or some below them, have changed."""
        named = defaultdict(list)
        for wanted in self.wanted:
            named[wanted.rstrip("/")].append(wanted)
        changed = dict[str, None]()
        for uri in uris:
            above = (uri[: found.start()] for found in re.finditer("/", uri))
            changed.update(
                dict.fromkeys(
                    [uri, *(wanted for folder in above for wanted in named.get(folder, ()))]
                )
            )
        for wanted in changed:
            wish = self.wanted.get(wanted)
            for listener in list(wish.listeners.values()) if wish else ():
                listener()

    # -- towards followers -------------------------------------------------------------------------

    def join(self, follower: Follower) -> None:
        """It follows what is wanted from now on; pair it with ``leave``."""
        self._followers.add(follower)

    def leave(self, follower: Follower) -> None:
        """It follows nothing any more."""
        self._followers.discard(follower)
        self.settle()

    def note_answer(self, follower: Follower, uri: str, error: SlipsnisseError | None) -> None:
        """The server has taken or refused what a follower has asked for."""
        wish = self.wanted.get(uri)
        if wish is None:
            return
        if wish.is_promised and uri not in follower.answers:
            self.note(uri)  # it may have changed before: this follower did not hear of it
        follower.answers[uri] = error
        self._settle(uri)

    def settle(self) -> None:
        """Look again at what is not taken yet."""
        for uri in list(self.wanted):
            self._settle(uri)

    def _settle(self, uri: str) -> None:
        """A resource counts as taken when every follower has an answer, and one of them a good
        one."""
        wish = self.wanted[uri]
        asked = [each for each in self._followers if each.has_to_follow(uri)]
        if wish.taken.done() or self.is_joining or any(uri not in each.answers for each in asked):
            return
        if wish.holders and not any(each.is_main for each in asked):
            return  # the connection that is kept for it is not open yet
        errors = [error for each in asked if (error := each.answers[uri]) is not None]
        if errors and len(errors) == len(asked):
            wish.taken.set_exception(errors[0])
            return
        wish.is_promised = True
        wish.taken.set_result(None)

    def _notify_followers(self) -> None:
        for follower in self._followers:
            follower.changed.set()


Work = Callable[[Watched], Awaitable[None]]


class Watches:
    """All subscriptions of one pool. ``hold`` connects to a server and returns when that connection
    has closed.

    ``share`` runs while hosts of this process want something of a server that everybody shares:
    other processes have connections to it as well. It ends ``Watched.is_joining`` when these
    follow.
    """

    def __init__(self, hold: Work, share: Work | None = None) -> None:
        self.hold = hold
        self.share = share
        self._closed = False
        self._watched: WeakValueDictionary[tuple[int, str], Watched] = WeakValueDictionary()

    def get_watched(self, server_id: int, session: str = EVERYBODY) -> Watched:
        """What is wanted of the server by this session; the same object for all its connections."""
        key = (server_id, EVERYBODY if session == OLDER else session)
        return self._watched.setdefault(key, Watched(*key))

    async def add(
        self,
        server_id: int,
        uri: str,
        listener: Listener,
        *,
        patience: float,
        session: str = EVERYBODY,
        opener: Opener | None = None,
        is_ours: bool = True,
    ) -> Callable[[], None]:
        """Tell ``listener`` of changes until the returned function is called. ``is_ours``: see
        ``Watched.add``.

        Raises what the server says against it; one that does not say anything for ``patience``
        seconds is told later.
        """
        if self._closed:
            raise ConnectionFailed(
                "This process is shutting down.", remedy="Try again in a moment."
            )
        watched = self.get_watched(server_id, session)
        if len(watched.wanted) >= MOST and uri not in watched.wanted:
            raise ConnectionFailed(
                f"The resources of this server have {MOST:,} subscriptions, which is the maximum.",
                remedy="Unsubscribe from another resource first.",
            )
        watched.opener = opener or watched.opener
        is_kept = watched.keeper is not None and not watched.keeper.done() and bool(watched)
        watched.is_joining = watched.is_joining or (
            not is_kept and is_ours and self._is_shared(watched)
        )
        end, taken = watched.add(uri, listener, is_ours=is_ours)
        if watched and not is_kept:
            watched.keeper = asyncio.ensure_future(self._keep(watched))
        try:
            if not (await asyncio.wait({taken}, timeout=patience))[0]:
                log.info("subscription.not_taken_yet", server_id=server_id)
            elif taken.cancelled():
                raise ConnectionFailed(
                    "The session has ended.", remedy="Subscribe in a new session."
                )
            else:
                taken.result()
        except BaseException:
            end()
            raise
        return end

    def _is_shared(self, watched: Watched) -> bool:
        return self.share is not None and watched.session == EVERYBODY

    async def _keep(self, watched: Watched) -> None:
        """Hold a connection for as long as anything is wanted."""
        sharing = (
            asyncio.ensure_future(self.share(watched))
            if self.share and self._is_shared(watched)
            else None
        )
        try:
            await self._hold(watched)
        finally:
            if sharing is not None:
                sharing.cancel()
                await asyncio.wait({sharing})
                watched.is_joining = False

    async def _hold(self, watched: Watched) -> None:
        delay = RETRY_FIRST
        while watched:
            try:
                began = time.monotonic()
                await self.hold(watched)
                delay = RETRY_FIRST if time.monotonic() - began > RETRY_MOST else delay
            except SlipsnisseError as error:
                log.info(
                    "subscriptions.not_connected", server_id=watched.server_id, code=error.code
                )
            except Exception:  # the database may be away: what is wanted stays wanted
                log.exception("subscriptions.not_kept", server_id=watched.server_id)
            await asyncio.sleep(delay)
            delay = min(delay * 2, RETRY_MOST)

    def end_session(self, session: str) -> None:
        """A host's session has ended (its name, unique in the site): nothing is wanted on its
        connections."""
        for watched in list(self._watched.values()):
            if watched.session and parse_session_name(watched.session) == session:
                watched.end()

    async def close(self) -> None:
        """No connection is kept any more."""
        self._closed = True
        keepers = [each.keeper for each in self._watched.values() if each.keeper is not None]
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)


def make_future() -> asyncio.Future[None]:
    """A future whose error need not be read by anybody."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.add_done_callback(_retrieve)
    return future


def _retrieve(future: asyncio.Future[None]) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        future.exception()  # whoever waits has seen it; nobody waiting is no error
