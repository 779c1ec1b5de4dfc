from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class McpRegistryConfig(AppConfig):
    name = "mcpregistry"
    verbose_name = "MCP registry"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        post_migrate.connect(_after_migrate, sender=self)


def _after_migrate(**_: Any) -> None:
    from mcpregistry.models.guards import install_guards
    from mcpregistry.services.roles import install_roles

    install_guards()
    install_roles()
