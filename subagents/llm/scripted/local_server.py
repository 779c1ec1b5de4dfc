"""Run the scripted models on a free port of this machine, for as long as they are needed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

# ScriptedModels, or what passes requests to one
App = Callable[[dict[str, Any], Any, Any], Awaitable[None]]


@contextmanager
def run_server(models: App) -> Iterator[str]:
    """The address (``http://127.0.0.1:PORT``) while the block runs; the server has a thread of its
    own."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = server_for(models)
    thread = threading.Thread(
        target=server.run, args=([listening],), name="scripted-models", daemon=True
    )
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        server.force_exit = True  # a stalled answer must not hold us up
        thread.join(timeout=10)
        listening.close()


def server_for(models: App, **options: Any) -> uvicorn.Server:
    """A web server that stays quiet: scripts cut lines on purpose, which it would log as
    crashes."""
    config = uvicorn.Config(
        models, log_level="critical", access_log=False, timeout_graceful_shutdown=1, **options
    )
    return uvicorn.Server(config)
