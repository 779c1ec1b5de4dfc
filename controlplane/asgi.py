"""The one ASGI application: ``/mcp/…`` to the gateway, health probes here, paths of headends to
these, all else to Django.

Django answers no ``lifespan``, and what the gateway holds (connections, the snapshot) must be
entered and left by one task: so the shell below owns it. Several server processes may run it side
by side.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

import structlog
from asgiref.typing import ASGIReceiveCallable, ASGISendCallable, HTTPScope, Scope
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.db import Error
from django.urls import get_resolver

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
django_app = get_asgi_application()
get_resolver().url_patterns  # noqa: B018 (loads every page now: the first visitor shall not wait for it)

# Only now are the models loaded that these need.
from controlplane.health import HealthProbes  # noqa: E402
from controlplane.request_guard import Guarded  # noqa: E402
from controlplane.sandbox_guard import refuse_sandboxed  # noqa: E402
from mcpregistry.database_errors import is_passing  # noqa: E402
from mcpregistry.db import db_call  # noqa: E402
from mcpregistry.garbage_collection import settle  # noqa: E402
from mcpregistry.gateway.http.mcp_app import McpApp  # noqa: E402
from mcpregistry.services.servers.connections import make_process_name  # noqa: E402
from mcpregistry.services.upkeep import completeness, reaping  # noqa: E402
from subagents.headends.entry_point import ONLY, Headends  # noqa: E402
from subagents.headends.http_exchange import HttpExchange  # noqa: E402
from subagents.services.headends import queue_places  # noqa: E402
from subagents.services.headends.configuring import find_mcp_headend  # noqa: E402

log = structlog.get_logger(__name__)
PAUSE = 1.0  # seconds between two tries of what the database refuses


class Shell:
    """Routes one process's traffic and owns the gateway for its lifetime."""

    def __init__(self) -> None:
        self._mcp: McpApp | None = None
        self._headends: Headends | None = None
        self._health = HealthProbes()

    async def __call__(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        """One ASGI connection: the lifespan, an HTTP request, or a WebSocket, which only the
        gateway takes."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._route(scope, receive, send)
        elif self._mcp is not None and _is_mcp(scope["path"]):
            await self._mcp(dict(scope), receive, send)
        else:  # no websockets here: refusing before the handshake gives the client a plain 403
            await receive()
            await send({"type": "websocket.close", "code": 1000, "reason": ""})

    async def _route(
        self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        path = scope["path"]
        if self._health.answers(path):
            await self._health(scope, receive, send)
        elif self._mcp is not None and _is_mcp(path):
            await self._mcp(dict(scope), receive, send)
        elif self._headends is not None and self._headends.answers(scope):
            await self._headends(dict(scope), receive, send)
        elif not await refuse_sandboxed(scope, send):
            # Django types scope as a plain dict
            await django_app(scope, receive, send)  # type: ignore[arg-type]

    async def _live(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Start-up and shutdown in this one task, as the gateway's cancel scopes demand."""
        await receive()
        try:
            await db_call(completeness.require_complete)
            self._mcp = McpApp()
            await self._mcp.startup()
            self._headends = Headends(self._mcp.engine)
        except completeness.IncompleteDatabaseError as error:
            log.error("site.incomplete", reason=str(error))
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        except Exception:
            log.exception("The gateway could not start")
            await send(
                {
                    "type": "lifespan.startup.failed",
                    "message": "This web process could not start. See the log for the cause.",
                }
            )
            return
        burying = asyncio.create_task(bury_predecessor())
        with _on_signal(self._begin_stop):
            self._health.feed = self._mcp.engine.feed
            self._health.recorder = self._mcp.engine.recorder
            self._health.gateway = "ok"
            settle()
            await send({"type": "lifespan.startup.complete"})
            await receive()
        self._health.gateway = "stopping"
        burying.cancel()
        await self._headends.close()
        await self._mcp.shutdown()
        await send({"type": "lifespan.shutdown.complete"})

    def _begin_stop(self) -> None:
        """No more traffic, please; what is under way may end. The server waits for open responses
        before it ends the lifespan, so endless listen streams must end first."""
        assert self._mcp is not None
        self._health.gateway = "stopping"
        self._mcp.begin_stop()
        if self._headends is not None:
            self._headends.begin_stop()


class HeadendShell(Shell):
    """For ``manage.py runheadends``: serves only headends and health probes.

    ``ports``: the names of the headends of each port. An empty set means all.
    """

    def __init__(self, ports: Mapping[int, frozenset[str]]) -> None:
        super().__init__()
        self._ports = ports

    async def _route(
        self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        only = self._ports.get((scope["server"] or ("", 0))[1] or 0) or None
        scope = scope | {ONLY: only}  # type: ignore[assignment]
        assert self._mcp is not None
        assert self._headends is not None
        if self._health.answers(scope["path"]):
            await self._health(scope, receive, send)
        elif self._headends.answers(scope):
            await self._headends(dict(scope), receive, send)
        elif self._serves_mcp(scope["path"], only):
            await self._mcp(dict(scope), receive, send)
        else:
            await HttpExchange(dict(scope), receive, send).answer(404, _NOTHING)  # type: ignore[arg-type]

    def _serves_mcp(self, path: str, only: frozenset[str] | None) -> bool:
        """Return whether the path is the endpoint of an MCP headend that this port serves."""
        assert self._mcp is not None
        slug = path.removeprefix("/mcp/").split("/")[0] if _is_mcp(path) else ""
        headend = find_mcp_headend(self._mcp.engine.live.current, slug) if slug else None
        return headend is not None and (only is None or headend.slug in only)


_NOTHING = {
    "code": "NOT_FOUND",
    "message": "No headend has this path. List the headends in the admin under Expert tools, Headends.",
}


async def bury_predecessor() -> None:
    """End the calls of the web process that this one replaces, once the database accepts it.

    The supervisor knows that it is dead. Otherwise they would be "under way" until their leases run
    out.
    """
    while settings.PREDECESSOR:
        try:
            ended = await db_call(reaping.end_calls_of_predecessor, "web", settings.PREDECESSOR)
            await db_call(
                queue_places.release_process, make_process_name("web", settings.PREDECESSOR)
            )
        except Error as error:
            if not is_passing(error):
                raise
            await asyncio.sleep(PAUSE)
        else:
            log.info("buried", calls=ended)
            return


def _is_mcp(path: str) -> bool:
    return path == "/mcp" or path.startswith("/mcp/")


@contextmanager
def _on_signal(begin_stop: Callable[[], None]) -> Iterator[None]:
    """Call ``begin_stop`` on the event loop as soon as the process is told to end, then do what was
    done before."""
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def on_signal(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(begin_stop)
        previous = before[signal.Signals(number)]
        if callable(previous):
            previous(number, frame)

    if threading.current_thread() is not threading.main_thread():  # only there may handlers be set
        yield
        return
    for number in before:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


application = Guarded(Shell())
