"""Which servers and providers have a secret in a command or an address, where nothing seals it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

REMEDY = (
    "Use “Store secrets as credentials” on the page of the server, write ${cred:NAME} instead of the secret, or move it to "
    "the environment or a header."
)


def list_open_secrets() -> list[str]:
    """The servers and providers, as "server SLUG". Raises DatabaseError."""
    return [name for search in SEARCHES.values() for name in search()]


def _search_servers() -> list[str]:
    from mcpregistry.models import Server

    rows = Server.objects.order_by("slug").only("slug", "command", "url")
    return [
        f"server {row.slug}" for row in rows if _is_open({"command": row.command, "url": row.url})
    ]


def _search_providers() -> list[str]:
    from subagents.models import Provider

    rows = Provider.objects.order_by("slug").only("slug", "base_url")
    return [f"provider {row.slug}" for row in rows if _is_open({"base_url": row.base_url})]


def _is_open(facts: dict[str, Any]) -> bool:
    from mcpregistry.domain.servers.redacted_env import mask_record_secrets

    return mask_record_secrets(facts) != facts


SEARCHES: Mapping[str, Callable[[], list[str]]] = {
    "servers": _search_servers,
    "providers": _search_providers,
}
