"""Bring the tables back to an earlier migration.

``migrate`` knows only the one that makes all of them at once, wherever that has run or counts as run; this one goes by the single
ones. Stop the site and make a backup first; what the earlier release knows nothing of is removed.
"""

from __future__ import annotations

from typing import Any

from django.core.management.commands import migrate
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader


class Command(migrate.Command):
    """``manage.py migrateback mcpregistry 0037``; afterwards ``migrate`` goes forward as ever."""

    help = "Bring the tables back to an earlier migration of an app, one by one. Stop the site and make a backup first."

    def handle(self, *args: Any, **options: Any) -> None:
        """As ``migrate``, by the single ones."""
        known, migrate.MigrationExecutor = migrate.MigrationExecutor, _OneByOne  # type: ignore[attr-defined]
        try:
            super().handle(*args, **options)
        finally:
            migrate.MigrationExecutor = known  # type: ignore[attr-defined]


class _OneByOne(MigrationExecutor):
    def __init__(self, connection: Any, progress_callback: Any = None) -> None:
        super().__init__(connection, progress_callback)
        self.loader = MigrationLoader(connection, replace_migrations=False)
        for key, squashed in self.loader.replacements.items():
            self.loader.graph.remove_replacement_node(key, squashed.replaces)
            self.loader.applied_migrations.pop(key, None)
