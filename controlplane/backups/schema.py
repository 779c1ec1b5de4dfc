"""Which tables a site has: those of the migrations that were applied, whatever release reads
them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from django.apps import apps
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from controlplane.backups.tables import BackupTable
from mcpregistry.domain.errors import Conflict
from mcpregistry.migrations import FIRST_MIGRATION

Migrations = Mapping[str, Sequence[str]]  # app -> names, sorted

LEFT_OUT = {  # people sign in and hosts shake hands again: a copy of a site is no way into it
    "sessions.session",
    "mcpregistry.hostsession",
    "mcpregistry.hostmessage",
    "mcpregistry.hoststream",
}
_MADE_BY_MIGRATE = {
    "contenttypes.contenttype",
    "auth.permission",
    "auth.group",
    "auth.group_permissions",
    "mcpregistry.change",
    "mcpregistry.configuration",
    "mcpregistry.auditseal",
}


def list_applied_migrations(using: str) -> Migrations:
    """The migrations that this database has seen."""
    found: dict[str, list[str]] = defaultdict(list)
    for app, name in sorted(MigrationRecorder(connections[using]).applied_migrations()):
        found[app].append(name)
    return dict(found)


def tables(migrations: Migrations) -> list[BackupTable]:
    """Return every table after these migrations, sorted by name.

    Raises:
        Conflict: The migrations are not those of this version or of an earlier release.
    """
    nodes = _nodes(migrations)
    if FIRST_MIGRATION not in nodes:
        raise Conflict(
            "The backup was made by a version before the first release, and this version cannot read it.",
            remedy="Restore it with the version that created it. It cannot be upgraded to this version.",
        )
    loader = MigrationLoader(None)
    unknown = [f"{app}.{name}" for app, name in nodes if (app, name) not in loader.graph]
    if unknown:
        raise Conflict(
            f"The backup comes from a newer release: this release does not know the migration {unknown[0]}.",
            remedy="Restore it with that release or a newer one.",
        )
    models = loader.project_state(nodes).apps.get_models(include_auto_created=True)
    found = [
        BackupTable(model) for model in models if model._meta.managed and not model._meta.proxy
    ]
    return sorted(
        (table for table in found if table.label not in LEFT_OUT), key=lambda table: table.label
    )


def refuse_unless_empty() -> None:
    """Raises Conflict where the site's database holds more than `migrate` puts into a new one."""
    connection = connections[DEFAULT_DB_ALIAS]
    there = set(connection.introspection.table_names())
    for model in apps.get_models(include_auto_created=True):
        if model._meta.db_table not in there or model._meta.label_lower in _MADE_BY_MIGRATE:
            continue
        with connection.cursor() as cursor:
            name = connection.ops.quote_name(model._meta.db_table)
            cursor.execute(f"SELECT 1 FROM {name} LIMIT 1")  # noqa: S608 -- a table of ours
            if cursor.fetchone():
                raise Conflict(
                    f"The database is not empty: the table {model._meta.db_table} has rows.",
                    remedy="Nothing was changed. Set DATABASE_URL to another database, or SLIPSNISSE_VAR to another folder. If a restore was "
                    "interrupted in this database, all rows of the backup are already restored: run `manage.py migrate`, then "
                    "`manage.py audit verify`.",
                )


def build(migrations: Migrations) -> None:
    """Make the site's database, which is empty, one with exactly these migrations."""
    nodes = {*_nodes(migrations)}
    if nodes == {*_nodes(list_applied_migrations(DEFAULT_DB_ALIAS))}:
        return
    _drop()
    executor = MigrationExecutor(connections[DEFAULT_DB_ALIAS])
    graph = executor.loader.graph
    followed = set()
    for node in nodes:
        parents = graph.node_map[node].parents
        followed |= {parent.key for parent in parents if parent.key[0] == node[0]}
    executor.migrate(sorted(nodes - followed))


def _nodes(migrations: Migrations) -> list[tuple[str, str]]:
    """As Django's graph of migrations names them."""
    return [(app, name) for app, names in migrations.items() for name in names]


def _drop() -> None:
    connection = connections[DEFAULT_DB_ALIAS]
    ours = [
        *connection.introspection.django_table_names(only_existing=True, include_views=False),
        "django_migrations",
    ]
    cascade = " CASCADE" if connection.vendor == "postgresql" else ""
    with connection.constraint_checks_disabled(), connection.cursor() as cursor:
        for table in ours:
            cursor.execute(f"DROP TABLE IF EXISTS {connection.ops.quote_name(table)}{cascade}")
