"""Targets that start the fake servers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mcpregistry.domain.servers.target import ServerLimits, ServerTarget
from tests.waiting import HANG_LIMIT

SERVERS = Path(__file__).parent / "servers"
LOOPBACK = ("127.0.0.0/8", "::1/128")


def stdio_target(
    name: str, *args: str, server_id: int = 1, limits: dict[str, Any] | None = None, **changes: Any
) -> ServerTarget:
    """A target for ``servers/NAME.py``. ``limits`` and other keywords replace fields."""
    values: dict[str, Any] = {
        "server_id": server_id,
        "slug": name,
        "revision": 1,
        "transport": "stdio",
        "argv": (sys.executable, "-S", str(SERVERS / f"{name}.py"), *args),
        "limits": ServerLimits(**({"connect_timeout": HANG_LIMIT} | (limits or {}))),
    }
    return ServerTarget(**(values | changes))


def http_target(
    url: str, *, server_id: int = 1, limits: dict[str, Any] | None = None, **changes: Any
) -> ServerTarget:
    """A target for a server on loopback, which is allowed explicitly."""
    values: dict[str, Any] = {
        "server_id": server_id,
        "slug": "remote",
        "revision": 1,
        "transport": "http",
        "url": url,
        "allowed_networks": LOOPBACK,
        "limits": ServerLimits(**({"connect_timeout": HANG_LIMIT} | (limits or {}))),
    }
    return ServerTarget(**(values | changes))
