"""The registry's app configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.management.base import CommandError
from django.db import connections
from django.db.backends.signals import connection_created
from django.db.migrations.recorder import MigrationRecorder
from django.db.models.signals import pre_migrate
from django.utils.translation import gettext_lazy as _

from mcpregistry.migrations import FIRST_MIGRATION


class McpRegistryConfig(AppConfig):
    """Django's configuration of the registry."""

    name = "mcpregistry"
    verbose_name = _("MCP registry")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Connect what listens to signals. Triggers and roles are made after every migrate, once
        the permissions of the last app are there: ``subagents.apps``.
        """
        from mcpregistry.db import watch_sessions
        from mcpregistry.domain.calls.own_site import OwnSite, set_own_site
        from mcpregistry.services.access import people
        from mcpregistry.services.approvals.announce import announced
        from mcpregistry.services.conversations import deletion
        from mcpregistry.services.notifications import outbox
        from mcpregistry.services.tasks import host_tasks

        set_own_site(
            OwnSite.at(
                settings.ALLOWED_HOSTS, filter(None, (settings.SITE_URL, settings.KEPT_ADDRESS))
            )
        )
        people.listen()
        deletion.listen()
        connection_created.connect(watch_sessions)
        announced.connect(outbox.enqueue_announced)
        announced.connect(host_tasks.update_announced_task)
        pre_migrate.connect(_drop_triggers, sender=self)


def _drop_triggers(*, using: str, plan: Sequence[object] = (), **_kwargs: Any) -> None:
    """Take the triggers away where a migration could not work beside them: SQLite rebuilds a table
    by another name, and refuses to while a trigger of any table names it.
    """
    from mcpregistry.models.guards import drop_guards
    from mcpregistry.services.upkeep import completeness

    if _are_unreleased(using):
        raise CommandError(completeness.UNRELEASED)
    if plan:
        completeness.begin_migration()
        if connections[using].vendor == "sqlite":
            drop_guards()


def _are_unreleased(using: str) -> bool:
    """Whether the tables are those of a version before the first release."""
    from mcpregistry.services.upkeep import completeness

    connection = connections[using]
    if "mcpregistry_server" not in connection.introspection.table_names():
        return False
    return (
        FIRST_MIGRATION not in MigrationRecorder(connection).applied_migrations()
        or completeness.is_unreleased()
    )
