"""The registry's app configuration."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class McpRegistryConfig(AppConfig):
    """Django's configuration of the registry."""

    name = "mcpregistry"
    verbose_name = "MCP registry"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Have triggers and roles installed after every migrate."""
        from mcpregistry.services.access import people
        from mcpregistry.services.approvals.announce import announced
        from mcpregistry.services.notifications import outbox
        from mcpregistry.services.tasks import host_tasks

        people.listen()
        announced.connect(outbox.on_announced)
        announced.connect(host_tasks.on_announced)
        post_migrate.connect(_after_migrate, sender=self)


def _after_migrate(**_: Any) -> None:
    from mcpregistry.models.guards import install_guards
    from mcpregistry.services.access.roles import install_roles

    install_guards()
    install_roles()
