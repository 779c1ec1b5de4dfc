"""Whether the database has what ``migrate`` makes besides tables: triggers, roles, and the audit
log's first checkpoint.

It makes them after the migrations, outside of their transactions. On a database without them,
processes would hear of no change (a revoked token would go on working), and the audit log could be
edited. So every process asks at its start, and the probes ask again and again; ``migrate`` and
``up`` make what is missing.
"""

from __future__ import annotations

import time
from contextlib import nullcontext

import structlog
from django.contrib.auth.models import Group
from django.db import Error, connection, connections, transaction
from django.db.models import Count, F

from mcpregistry.database_errors import is_passing
from mcpregistry.domain.version import VERSION
from mcpregistry.failpoints import failpoint
from mcpregistry.models import AuditSeal, Configuration
from mcpregistry.models.guards import find_altered_guards, find_missing_guards, install_guards
from mcpregistry.services.access.roles import ROLES, install_roles
from mcpregistry.services.records import seals

log = structlog.get_logger(__name__)

PAUSE = 1.0  # seconds between two looks at a database that does not answer
REMEDY = "Run: python manage.py migrate. (`manage.py up` also does this when it starts.)"
UNRELEASED = (
    "The database has tables of a version before the first release. These tables cannot be upgraded. Nothing was changed. "
    "Use an empty database, or another folder with SLIPSNISSE_VAR."
)
_NOTE = "complete_for"
_TABLE = Configuration._meta.db_table


class IncompleteDatabaseError(RuntimeError):
    """This process must not serve; the text says what is missing and which command makes it."""


def begin_migration() -> None:
    """Note that a ``migrate`` changes tables from now on. Where it is interrupted, the note
    stays."""
    if _NOTE in (_list_columns() or ()):
        # not by the model: its other columns may not be there yet
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE {_TABLE} SET {_NOTE} = ''")  # noqa: S608  names of ours


def finish_migration(*, migrated: bool) -> None:
    """Make triggers and roles anew, and the log's first checkpoint if there is none; note that
    ``migrate`` has ended.

    If migrations were applied or triggers were missing, the revision rises, so that all processes
    read the configuration again: no trigger has reported what was changed in the meantime.
    """
    if _NOTE not in (_list_columns() or ()):
        return  # migrated back to a state before it
    untold = migrated or bool(find_missing_guards() or find_altered_guards())
    # PostgreSQL would lock all tables until the end, and so could run into a deadlock with a site
    # that is at work.
    with transaction.atomic() if connection.vendor == "sqlite" else nullcontext():
        install_guards()
        failpoint("triggers_made")
        with transaction.atomic():
            install_roles()
        failpoint("roles_made")
        seals.replace_lost("migrate")
        Configuration.objects.update(
            complete_for=VERSION, **({"revision": F("revision") + 1} if untold else {})
        )


def require_complete() -> None:
    """Raises Incomplete if something is missing. Some milliseconds, for a process that starts."""
    if said := explain_missing_parts():
        raise IncompleteDatabaseError(said)


def wait_until_complete() -> None:
    """The same, for a process without callers: it waits until the database answers, however long
    that takes."""
    waiting = False
    while True:
        try:
            require_complete()
        except Error as error:
            if not is_passing(error):
                raise
            if not waiting:
                log.warning("site.waits_for_database", error=type(error).__name__)
            waiting = True
            connections.close_all()
            time.sleep(PAUSE)
        else:
            return


def explain_missing_parts() -> str:
    """What is missing and how to make it, in words; "" if nothing is. Raises a database error."""
    columns = _list_columns()
    if columns is None:
        return f"The database has no tables. {REMEDY}"
    if _NOTE not in columns:
        return UNRELEASED
    lost = [*_describe_lost_triggers(), *_describe_lost_roles()]
    if not AuditSeal.objects.exists():
        lost.append("the first checkpoint of the audit log")
    return f"The database lacks {'; '.join(lost)}. {REMEDY}" if lost else ""


def explain_interrupted_migration() -> str:
    """The same; besides, whether the last ``migrate`` has not ended, or was that of another
    version."""
    if said := explain_missing_parts():
        return said
    last = Configuration.load().complete_for
    if last == VERSION:
        return ""
    word = f"was for version {last}" if last else "was interrupted or is still running"
    return f"The last `migrate` {word}, so triggers and roles may be out of date. {REMEDY}"


def is_unreleased() -> bool:
    """Whether the tables are those of a version before the first release."""
    columns = _list_columns()
    return columns is not None and _NOTE not in columns


def _list_columns() -> set[str] | None:
    """Those of the table with the note; None without this table."""
    with connection.cursor() as cursor:
        if _TABLE not in connection.introspection.table_names(cursor):
            return None
        cursor.execute(f"SELECT * FROM {_TABLE} LIMIT 0")  # noqa: S608  Django's introspection takes much longer
        return {name for name, *_ in cursor.description}


def _describe_lost_triggers() -> list[str]:
    lost = find_missing_guards()
    if len(lost) < 2:
        return [f"the trigger {name}" for name in lost]
    return [f"{len(lost)} triggers, such as {lost[0]}"]


def _describe_lost_roles() -> list[str]:
    """Roles that are not there, or that may do nothing."""
    there = (
        Group.objects.filter(name__in=ROLES).annotate(may=Count("permissions")).filter(may__gt=0)
    )
    lost = sorted({*ROLES} - {group.name for group in there})
    noun = "role" if len(lost) == 1 else "roles"
    return [f"the {noun} {', '.join(lost)}"] if lost else []
