"""The app configuration of expert tools and sub-agents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class SubagentsConfig(AppConfig):
    """Django's configuration of the app."""

    name = "subagents"
    verbose_name = "Sub-agents"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register with the registry, which does not import this app."""
        from mcpregistry.extensions import register_extension
        from subagents import checks  # noqa: F401  registers them
        from subagents.extension import make_extension

        register_extension(make_extension())
        post_migrate.connect(_after_migrate, sender=self)


def _after_migrate(*, plan: Sequence[object] = (), **_: Any) -> None:
    """All permissions are there now: those of this app are made last."""
    from mcpregistry.services.upkeep import completeness

    completeness.finish_migration(migrated=bool(plan))
