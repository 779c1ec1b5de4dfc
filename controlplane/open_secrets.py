"""Which servers and providers have a secret in a command or an address, where nothing seals it."""

from __future__ import annotations

REMEDY = "Use Store secrets as credentials on the server's page, write ${cred:NAME} there, or use the environment or a header."


def list_open_secrets() -> list[str]:
    """The servers and providers, as "server SLUG". Raises DatabaseError."""
    from mcpregistry.domain.servers.shown_env import without_secrets
    from mcpregistry.models import Server
    from subagents.models import Provider

    servers = Server.objects.order_by("slug").only("slug", "command", "url")
    facts = {f"server {row.slug}": {"command": row.command, "url": row.url} for row in servers}
    providers = Provider.objects.order_by("slug").only("slug", "base_url")
    facts |= {f"provider {row.slug}": {"base_url": row.base_url} for row in providers}
    return [name for name, each in facts.items() if without_secrets(each) != each]
