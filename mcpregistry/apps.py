"""The registry's app configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.core.management.base import CommandError
from django.db import connections
from django.db.backends.signals import connection_created
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import F
from django.db.models.signals import post_migrate, pre_migrate

from mcpregistry.migrations import FIRST_MIGRATION


class McpRegistryConfig(AppConfig):
    """Django's configuration of the registry."""

    name = "mcpregistry"
    verbose_name = "MCP registry"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Have triggers and roles installed after every migrate."""
        from mcpregistry.db import watch_sessions
        from mcpregistry.services.access import people
        from mcpregistry.services.approvals.announce import announced
        from mcpregistry.services.notifications import outbox
        from mcpregistry.services.tasks import host_tasks

        people.listen()
        connection_created.connect(watch_sessions)
        announced.connect(outbox.on_announced)
        announced.connect(host_tasks.on_announced)
        pre_migrate.connect(_before_migrate, sender=self)
        post_migrate.connect(_after_migrate, sender=self)


def _before_migrate(*, using: str, plan: Sequence[object] = (), **_: Any) -> None:
    """Take the triggers away where a migration could not work beside them: SQLite rebuilds a table by another name, and
    refuses to while a trigger of any table names it.
    """
    from mcpregistry.models.guards import drop_guards

    _refuse_unreleased(using)
    if plan and connections[using].vendor == "sqlite":
        drop_guards()


def _refuse_unreleased(using: str) -> None:
    """Raises CommandError if the tables are those of a version before the first release."""
    connection = connections[using]
    if "mcpregistry_server" not in connection.introspection.table_names():
        return
    if FIRST_MIGRATION not in MigrationRecorder(connection).applied_migrations():
        raise CommandError(
            "The database has tables of a version before the first release. No upgrade leads from it to this version, and "
            "nothing was changed. Use an empty database, or another folder with SLIPSNISSE_VAR."
        )


def _after_migrate(*, plan: Sequence[object] = (), **_: Any) -> None:
    from mcpregistry.models import Configuration
    from mcpregistry.models.guards import install_guards
    from mcpregistry.services.access.roles import install_roles

    install_guards()
    install_roles()
    if plan:  # what was changed while the triggers were away was told to nobody: all look anew
        Configuration.objects.update(revision=F("revision") + 1)
