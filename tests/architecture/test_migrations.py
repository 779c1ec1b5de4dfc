"""Rolling upgrades: while a new release migrates, processes of the old one go on inserting rows
without its columns."""

from __future__ import annotations

import pytest
from django.db import migrations, models
from django.db.migrations.loader import MigrationLoader
from django.db.models.fields import NOT_PROVIDED

OURS = ("mcpregistry", "subagents")


def _added() -> list[tuple[str, models.Field]]:
    """(where, field) of every column that a migration adds to a table that was there before."""
    found = []
    for (app, name), migration in MigrationLoader(None).disk_migrations.items():
        if app in OURS and not migration.initial:
            for operation in migration.operations:
                if isinstance(operation, migrations.AddField):
                    found.append(
                        (f"{app}.{name}: {operation.model_name}.{operation.name}", operation.field)
                    )
    return found


def insertable(field: models.Field) -> bool:
    """Whether a row can be inserted by who does not know the column."""
    return bool(field.null or field.db_default is not NOT_PROVIDED or field.many_to_many)


def test_every_added_column_may_be_left_out_by_an_older_process() -> None:
    assert [where for where, field in _added() if not insertable(field)] == []


@pytest.mark.parametrize(
    ("field", "fine"),
    [
        # a default of Django's only: the database knows nothing of it
        (models.IntegerField(default=3), False),
        (models.CharField(max_length=5, blank=True), False),
        (models.IntegerField(null=True), True),
        (models.IntegerField(default=3, db_default=3), True),
    ],
)
def test_a_default_of_djangos_alone_does_not_count(field: models.Field, fine: bool) -> None:
    assert insertable(field) is fine
