"""``manage.py migrate``: Django's, but a migration and the note that it was applied are one
transaction.

Django notes most migrations after their transaction. If it is interrupted in between, the tables
are there, and each later ``migrate`` fails because they are.
"""

from __future__ import annotations

from typing import Any

from django.core.management.commands import migrate
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.migration import Migration

from mcpregistry.failpoints import failpoint

_NAME = "MigrationExecutor"


class NotingExecutor(MigrationExecutor):
    """Notes each migration inside of its transaction."""

    def apply_migration(
        self, state: Any, migration: Migration, fake: bool = False, fake_initial: bool = False
    ) -> Any:
        """Apply one migration; as in Django, but for the moment of the note."""
        if fake or fake_initial:
            return super().apply_migration(state, migration, fake=fake, fake_initial=fake_initial)
        self._tell("apply_start", migration)
        with self.connection.schema_editor(atomic=migration.atomic) as editor:
            state = migration.apply(state, editor)
            # stubs of another Django
            self.record_migration(migration)  # type: ignore[arg-type, call-arg]
            failpoint("migration_noted")
        failpoint("migration_applied")
        self._tell("apply_success", migration)
        return state

    def _tell(self, what: str, migration: Migration) -> None:
        if self.progress_callback:
            self.progress_callback(what, migration, False)


class Command(migrate.Command):
    """Django's command with this executor."""

    def handle(self, *args: Any, **options: Any) -> None:
        """Called by Django. Its command finds the executor by a name in its own module."""
        before = vars(migrate)[_NAME]
        setattr(migrate, _NAME, NotingExecutor)
        try:
            super().handle(*args, **options)
        finally:
            setattr(migrate, _NAME, before)
