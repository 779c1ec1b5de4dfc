from __future__ import annotations

from django.apps import AppConfig


class McpRegistryConfig(AppConfig):
    name = "mcpregistry"
    verbose_name = "MCP registry"
    default_auto_field = "django.db.models.BigAutoField"
