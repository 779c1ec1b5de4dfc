"""Compares what servers list with what is approved, in a thread of its own.

A scan of long definitions takes seconds. It must keep neither the events of other servers waiting
(``connections``) nor the process from stopping.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import structlog
from django.db import connections

from mcpregistry.models import Server
from mcpregistry.services.servers.checks import compare_definitions

if TYPE_CHECKING:
    from mcpregistry.downstream.pool.discovery import Discovery

log = structlog.get_logger(__name__)

_GRACE_SECONDS = 2.0


class _StoppedError(Exception):
    """The process stops; the next look at the server scans again."""


class DefinitionComparer:
    """Takes what servers list with ``submit``; of one server only the newest list waits. ``close``
    ends the thread."""

    def __init__(self, process: str) -> None:
        self._process = process
        self._waiting: dict[int, Discovery] = {}
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._stopped_at = 0.0
        self._thread = threading.Thread(target=self._serve, name="definition-comparer", daemon=True)
        self._thread.start()

    def submit(self, server_id: int, discovery: Discovery) -> None:
        """Compare this list soon. It replaces an older list of the server that still waits."""
        with self._changed:
            self._waiting[server_id] = discovery
            self._changed.notify()

    def close(self) -> None:
        """End within seconds: a longer scan is given up with nothing written, and the next look at
        the server repeats it."""
        with self._changed:
            self._stopped_at = time.monotonic()
            self._stopped.set()
            self._changed.notify()
        self._thread.join()

    def _serve(self) -> None:
        while (item := self._take_next()) is not None:
            self._compare(*item)

    def _take_next(self) -> tuple[int, Discovery] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._stopped.is_set())
            if not self._waiting:
                return None
            server_id = next(iter(self._waiting))
            return server_id, self._waiting.pop(server_id)

    def _compare(self, server_id: int, discovery: Discovery) -> None:
        try:
            if (server := Server.objects.filter(pk=server_id).first()) is not None:
                compare_definitions(
                    server=server, discovery=discovery, process=self._process, pause=self._pause
                )
        except Server.DoesNotExist:  # deleted during the scan
            log.info("definitions_of_deleted_server", server_id=server_id)
        except _StoppedError:
            log.info("definitions_not_compared", server_id=server_id, process=self._process)
        except Exception:
            log.exception("definitions_not_compared", server_id=server_id, process=self._process)
        finally:
            connections.close_all()  # this thread's own: the next list may come in hours

    def _pause(self, seconds: float) -> None:
        if self._stopped.wait(seconds) and time.monotonic() - self._stopped_at > _GRACE_SECONDS:
            raise _StoppedError
