"""What this site publishes as a registry of its own: documents of its endpoints. Pure.

An endpoint is an entry, not each server behind it: all servers of an endpoint lie at one address,
so a host that took two of them would have every tool twice. Which approved servers it holds stands
in the entry's ``_meta``. Source: MCP Registry API v0.1, and the schema of server.json.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from mcpregistry.domain.registry.entries import OFFICIAL
from mcpregistry.domain.text.canonical import clean_text

SCHEMA = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
# characters, by the schema
_DESCRIPTION = 100
_TITLE = 100
_LABEL = re.compile(r"[a-z0-9-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class PublishedServer:
    """A server behind an endpoint: how many of its approved tools the one who asks gets there."""

    slug: str
    title: str
    tools: int


@dataclass(frozen=True, slots=True)
class Published:
    """An endpoint as others see it. ``revision`` rises with each change of it; ``servers``: what
    the one who asks gets."""

    slug: str
    title: str
    revision: int
    created_at: datetime
    changed_at: datetime
    servers: tuple[PublishedServer, ...] = ()

    @property
    def version(self) -> str:
        """Another one after each change: what stands under a version never changes."""
        return f"1.{self.revision}.0"


def build_namespace(site_url: str) -> str:
    """The site's host, backwards (``com.example.tools``); ``local`` and its words for a machine
    without a public name."""
    host = (urlsplit(site_url).hostname or "").lower()
    try:
        ip_address(host)
    except ValueError:
        labels = _LABEL.findall(host)
        return ".".join(reversed(labels)) if len(labels) > 1 else ".".join(["local", *labels])
    return "local." + re.sub(r"[^0-9a-f]+", "-", host).strip("-")


def build_entry_name(slug: str, site_url: str) -> str:
    """The entry's name."""
    return f"{build_namespace(site_url)}/{slug}"


def build_registry_entry(endpoint: Published, site_url: str) -> dict[str, Any]:
    """One element of ``servers``, as the API's lists have it."""
    token = {"description": "Token of an agent of this site.", "isRequired": True, "isSecret": True}
    header = {
        "name": "Authorization",
        "value": "Bearer {token}",
        "isRequired": True,
        "isSecret": True,
        "variables": {"token": token},
    }
    host = urlsplit(site_url).hostname or "this site"
    title = clean_text(endpoint.title or endpoint.slug, _TITLE)
    return {
        "server": {
            "$schema": SCHEMA,
            "name": build_entry_name(endpoint.slug, site_url),
            "version": endpoint.version,
            "title": title,
            "description": clean_text(f"Approved tools of {host}: {title}", _DESCRIPTION),
            "remotes": [
                {
                    "type": "streamable-http",
                    "url": f"{site_url}/mcp/{endpoint.slug}",
                    "headers": [header],
                }
            ],
        },
        "_meta": {
            OFFICIAL: {
                "status": "active",
                "isLatest": True,
                "publishedAt": _format_time(endpoint.created_at),
                "updatedAt": _format_time(endpoint.changed_at),
            },
            **(
                {
                    f"{build_namespace(site_url)}/servers": [
                        _describe_server(each) for each in endpoint.servers
                    ]
                }
                if endpoint.servers
                else {}
            ),
        },
    }


def _describe_server(server: PublishedServer) -> dict[str, Any]:
    return {"name": server.slug, "title": clean_text(server.title, _TITLE), "tools": server.tools}


def _format_time(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
