"""A site into a stream, consistent while it runs, and a file of such a stream looked at once
more."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections, transaction

from controlplane import keys
from controlplane.all_exposed_secrets import REMEDY, SEARCHES
from controlplane.backups import schema
from controlplane.backups.archive import Reader, Writer
from controlplane.backups.passphrase import WORK
from controlplane.backups.tables import BackupTable, TableTally, dump_row
from mcpregistry.domain.errors import ConfigInvalid, Conflict
from mcpregistry.domain.text.display import number_of
from mcpregistry.domain.version import VERSION

Say = Callable[[str], None]
SOURCE = "source"  # the connection that reads, beside the site's own
PROGRESS = 50_000  # rows after which a long table says how far it is
_LOCK_SECONDS = 20


def dump(
    stream: IO[bytes], passphrase: str, say: Say, *, alone: bool = False, work: int | None = None
) -> int:
    """Write the whole site, as it is at one moment. Returns how many rows.

    Nobody waits for it, unless ``alone``: then nobody else writes until it ends, as a site needs
    that moves away. ``work`` is what a guess at the passphrase costs (``WORK``).
    """
    migrations = schema.list_applied_migrations(DEFAULT_DB_ALIAS)
    tables = schema.tables(migrations)
    with _open_snapshot(alone=alone):
        if alone:  # before the first look, which is what the moment begins with
            _keep_others_out(tables)
        writer = Writer(
            stream, passphrase, _head(migrations), keys.dump_ring(_ring()), work or WORK
        )
        rows = sum(_table(table, writer, say) for table in tables)
        writer.finish(tables=len(tables), rows=rows)
    return rows


def _head(migrations: schema.Migrations) -> Mapping[str, Any]:
    made = datetime.now(UTC).isoformat(timespec="seconds")
    return {
        "release": VERSION,
        "made_at": made,
        "database": connections[SOURCE].vendor,
        "migrations": migrations,
    }


def _ring() -> keys.Ring:
    """The keys that this process works with, wherever they came from."""
    return keys.Ring(settings.SECRET_KEY, dict(settings.SLIPSNISSE_KEYS))


def _table(table: BackupTable, writer: Writer, say: Say) -> int:
    writer.write_object(table=table.label, columns=table.columns)
    tally = TableTally()
    for row in table.read(SOURCE):
        writer.write_line(dump_row(row))
        tally.add(table.canonical(row))
        if not tally.rows % PROGRESS:
            say(f"  {table.name}: {number_of(tally.rows, 'row')}")
    writer.write_object(
        end=table.label, rows=tally.rows, digest=tally.digest, next=table.find_next_number(SOURCE)
    )
    return tally.rows


@contextmanager
def _open_snapshot(*, alone: bool) -> Iterator[None]:
    """``SOURCE`` leads to the site's database, which looks to it all the time as it was at
    first."""
    source = connections[DEFAULT_DB_ALIAS].copy()
    options: dict[str, Any] = source.settings_dict["OPTIONS"]
    options.pop("pool", None)
    if source.vendor == "sqlite":
        options["transaction_mode"] = "IMMEDIATE" if alone else "DEFERRED"
    else:
        options["isolation_level"] = _repeatable_read()
    connections[SOURCE] = source
    try:
        with transaction.atomic(SOURCE):
            yield
    finally:
        source.close()
        del connections[SOURCE]


def _repeatable_read() -> object:
    from psycopg import IsolationLevel  # a site on SQLite never loads it

    return IsolationLevel.REPEATABLE_READ


def _keep_others_out(tables: list[BackupTable]) -> None:
    """On PostgreSQL; on SQLite the transaction itself is the only writer's."""
    connection = connections[SOURCE]
    if connection.vendor != "postgresql":
        return
    names = ", ".join(connection.ops.quote_name(table.name) for table in tables)
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'")
            cursor.execute(f"LOCK TABLE {names} IN SHARE MODE")
    except DatabaseError as error:
        raise Conflict(
            "Another process is still writing to the database.",
            remedy="Stop the site on all machines, then try again.",
        ) from error


# Files


def save(folder: Path, passphrase: str, say: Say) -> tuple[Path, int]:
    """Write a backup into the folder and look at it once more. Returns its path, and how many rows
    it has.

    Until it is whole and on disk its name ends in ``.part``. Raises ConfigInvalid where the folder
    takes no file.
    """
    name = f"slipsnisse-{datetime.now(UTC):%Y%m%dT%H%M%S.%f}Z.backup"
    part = folder / f"{name}.part"
    path = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(part, "xb", opener=_open_private) as stream:
            rows = dump(stream, passphrase, say)
            stream.flush()
            os.fsync(stream.fileno())
        report_open_secrets(say)
        say("Checking the file.")
        verify(part, passphrase)
        part.rename(path)
        _settle(folder)
    except OSError as error:
        raise ConfigInvalid(
            f"The backup cannot be written to {folder}: {error.strerror}.",
            remedy="Make space in this folder and make it writable, or name another folder.",
        ) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    return path, rows


def report_open_secrets(say: Say) -> None:
    """Say which servers and providers have secrets in the clear in the file, and what could not be
    searched for them.

    The database of an earlier release may lack tables or columns that this release reads. Raises
    DatabaseError otherwise.
    """
    # needs more of the site than a backup does
    from controlplane.health import list_unapplied_migrations

    found: list[str] = []
    not_searched: list[str] = []
    for rows, search in SEARCHES.items():
        try:
            with transaction.atomic():
                found += search()
        except DatabaseError:
            if not list_unapplied_migrations():
                raise
            not_searched.append(rows)
    if found:
        say(
            f"The file contains unencrypted secrets in the command or address of: {', '.join(found)}. {REMEDY}"
        )
    if not_searched:
        say(
            f"The following could not be searched for unencrypted secrets, because the database is of an earlier release: "
            f"{', '.join(not_searched)}. Run `manage.py doctor` after the upgrade."
        )


def verify(path: Path, passphrase: str) -> int:
    """Read a file to its end: it is whole, unchanged, and holds what it says. Returns how many
    rows."""
    with path.open("rb") as stream:
        reader = Reader(stream, passphrase)
        tables = {table.label: table for table in schema.tables(reader.head["migrations"])}
        table = None
        tally = TableTally()
        rows = 0
        for said in reader.read_lines():
            if isinstance(said, list) and table:
                tally.add(table.canonical(said))
            elif "table" in said:
                table = tables[said["table"]]
                tally = TableTally()
            elif "end" in said:
                compare(said, tally)
                rows += tally.rows
    return rows


def compare(said: Mapping[str, Any], found: TableTally) -> None:
    """Raises ConfigInvalid unless the rows that were found are those that a table's end speaks
    of."""
    if (said["rows"], said["digest"]) != (found.rows, found.digest):
        raise ConfigInvalid(
            f"The check of the backup failed: the rows of {said['end']} differ from those that were written ({said['rows']:,} rows written, {found.rows:,} read).",
            remedy="Nothing was saved. Try again. If this happens again, the disk or the memory is faulty.",
        )


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _settle(folder: Path) -> None:
    """Have the folder's new name on disk as well."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
