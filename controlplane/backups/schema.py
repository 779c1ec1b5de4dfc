"""Which tables a site has: those of the migrations that were applied, whatever release reads them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from django.apps import apps
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from controlplane.backups.tables import Table
from mcpregistry.domain.errors import Conflict

Migrations = Mapping[str, Sequence[str]]  # app -> names, sorted

LEFT_OUT = {  # people sign in and hosts shake hands again: a copy of a site is no way into it
    "sessions.session", "mcpregistry.hostsession", "mcpregistry.hostmessage", "mcpregistry.hoststream",
}  # fmt: skip
_MADE_BY_MIGRATE = {
    "contenttypes.contenttype", "auth.permission", "auth.group", "auth.group_permissions", "mcpregistry.change",
    "mcpregistry.configuration", "mcpregistry.auditseal",
}  # fmt: skip


def applied(using: str) -> Migrations:
    """The migrations that this database has seen."""
    found: dict[str, list[str]] = defaultdict(list)
    for app, name in sorted(MigrationRecorder(connections[using]).applied_migrations()):
        found[app].append(name)
    return dict(found)


def tables(migrations: Migrations) -> list[Table]:
    """Every table after these migrations, by name. Raises Conflict when this release does not know one of them."""
    loader = MigrationLoader(None, replace_migrations=False)
    nodes = _single(migrations)
    unknown = [f"{app}.{name}" for app, name in nodes if (app, name) not in loader.graph]
    if unknown:
        raise Conflict(
            f"It comes from a newer release, with {unknown[0]}, which this one does not know.",
            remedy="Use that release, or a newer one.",
        )
    models = loader.project_state(nodes).apps.get_models(include_auto_created=True)
    found = [Table(model) for model in models if model._meta.managed and not model._meta.proxy]
    return sorted((table for table in found if table.label not in LEFT_OUT), key=lambda table: table.label)


def refuse_unless_empty() -> None:
    """Raises Conflict where the site's database holds more than `migrate` puts into a new one."""
    connection = connections[DEFAULT_DB_ALIAS]
    there = set(connection.introspection.table_names())
    for model in apps.get_models(include_auto_created=True):
        if model._meta.db_table not in there or model._meta.label_lower in _MADE_BY_MIGRATE:
            continue
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT 1 FROM {connection.ops.quote_name(model._meta.db_table)} LIMIT 1")  # noqa: S608
            if cursor.fetchone():
                raise Conflict(
                    f"The database is not empty: {model._meta.db_table} has rows.",
                    remedy="Name another with DATABASE_URL, or another folder with SLIPSNISSE_VAR. Nothing was changed.",
                )


def build(migrations: Migrations) -> None:
    """Make the site's database, which is empty, one with exactly these migrations."""
    single = MigrationLoader(None, replace_migrations=False)
    nodes = set(_single(migrations))
    if nodes == set(_single(applied(DEFAULT_DB_ALIAS))):
        return
    _drop()
    # All at once where they go as far as the squashed ones; singly where they end in the middle of what these do.
    whole = all(nodes.issuperset(squashed.replaces) for squashed in single.replacements.values())
    connection = connections[DEFAULT_DB_ALIAS]
    executor = MigrationExecutor(connection)
    executor.loader = MigrationLoader(connection, replace_migrations=whole)
    graph = executor.loader.graph
    there = {*nodes, *(single.replacements if whole else ())} & {*graph.nodes}
    executor.migrate([node for node in sorted(there) if not any(
        child.key in there and child.key[0] == node[0] for child in graph.node_map[node].children
    )])  # fmt: skip


def _single(migrations: Migrations) -> list[tuple[str, str]]:
    """Without the squashed ones: Django notes these beside the ones that they replace, and a release may have others."""
    return [(app, name) for app, names in migrations.items() for name in names if "_squashed_" not in name]


def _drop() -> None:
    connection = connections[DEFAULT_DB_ALIAS]
    ours = [*connection.introspection.django_table_names(only_existing=True, include_views=False), "django_migrations"]
    cascade = " CASCADE" if connection.vendor == "postgresql" else ""
    with connection.constraint_checks_disabled(), connection.cursor() as cursor:
        for table in ours:
            cursor.execute(f"DROP TABLE IF EXISTS {connection.ops.quote_name(table)}{cascade}")
