"""An MCP registry on loopback that speaks the API v0.1: pages, searches by time, deleted entries;
and lies when told to.

Source: MCP Registry API v0.1, ``GET /v0.1/servers``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.fakes.receiver import Answer, Received, Receiver, listening

OFFICIAL = "io.modelcontextprotocol.registry/official"
PYPI = {
    "registryType": "pypi",
    "identifier": "mcp-server-time",
    "version": "2026.10.19",
    "transport": {"type": "stdio"},
    "packageArguments": [{"type": "named", "name": "--local-timezone", "default": "UTC"}],
}


def entry(
    name: str, version: str = "1.0.0", *, at: str = "2026-10-01T00:00:00Z", **said: Any
) -> dict[str, Any]:
    """One element of ``servers``. ``said``: keys of server.json, and ``status``, ``message`` and
    ``published``."""
    status = said.pop("status", "active")
    message = said.pop("message", None)
    published = said.pop("published", at)
    official = {"status": status, "publishedAt": published, "updatedAt": at, "isLatest": True}
    if message:
        official["statusMessage"] = message
    return {
        "server": {"name": name, "version": version, "description": "", **said},
        "_meta": {OFFICIAL: official},
    }


@dataclass
class Registry:
    """``entries`` in the order of its pages; ``at_most`` of them on each page, whatever is asked
    for."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    at_most: int = 100
    receiver: Receiver = field(default_factory=Receiver)

    @property
    def url(self) -> str:
        return self.receiver.url

    @property
    def asked(self) -> list[dict[str, str]]:
        """The queries that came."""
        return [_query(each) for each in self.receiver.requests]

    def answer(self, request: Received) -> Answer:
        query = _query(request)
        limit = int(query.get("limit", "30"))
        if urlsplit(request.path).path != "/v0.1/servers":
            return _problem(404, "Not Found")
        if not 1 <= limit <= 100:
            return _problem(422, "Unprocessable Entity")
        rows = [each for each in self.entries if _wanted(each, query)]
        start = int(query.get("cursor", "0"))
        end = start + min(limit, self.at_most)
        more = {"nextCursor": str(end)} if end < len(rows) else {}
        return told(
            {"servers": rows[start:end], "metadata": {"count": len(rows[start:end]), **more}}
        )


def told(body: object, status: int = 200) -> Answer:
    return status, {"Content-Type": "application/json"}, json.dumps(body).encode()


@contextmanager
def running() -> Iterator[Registry]:
    registry = Registry()
    registry.receiver.otherwise = registry.answer
    with listening(registry.receiver):
        yield registry


def _query(request: Received) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(request.path).query).items()}


def _wanted(each: dict[str, Any], query: dict[str, str]) -> bool:
    official = each.get("_meta", {}).get(OFFICIAL, {})
    if since := query.get("updated_since"):
        return official.get("updatedAt", "") >= since
    return query.get("include_deleted") == "true" or official.get("status") != "deleted"


def _problem(status: int, title: str) -> Answer:
    return (
        status,
        {"Content-Type": "application/problem+json"},
        json.dumps({"title": title, "status": status}).encode(),
    )
