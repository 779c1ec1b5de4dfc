"""A stream into an empty database: all of it in one transaction, compared before it counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

from django.conf import settings
from django.core.management import call_command
from django.db import DEFAULT_DB_ALIAS, IntegrityError, connections, transaction
from django.utils import timezone

from controlplane import keys
from controlplane.backups import schema
from controlplane.backups.archive import Reader
from controlplane.backups.dumping import PROGRESS, Say, compare
from controlplane.backups.tables import BackupTable
from mcpregistry.db import read_database_now
from mcpregistry.domain.errors import ConfigInvalid, Conflict
from mcpregistry.domain.text.display import number_of
from mcpregistry.models.guards import drop_guards
from mcpregistry.services.records import newest_seal
from mcpregistry.services.upkeep import reaping
from mcpregistry.services.upkeep.invariants.calls import check_invariants


def load(stream: IO[bytes], passphrase: str, say: Say, *, accept_older_log: bool = False) -> int:
    """Make the site's database what the stream says, on the release's own tables. Returns how many
    rows.

    ``accept_older_log``: also if this machine knows a newer seal of the audit log than the stream
    has; the log records it. Raises Conflict where the database is not empty, the stream comes from
    a newer release, or its log is older and this is not accepted, ConfigInvalid where the stream is
    no whole backup; then the database is as empty as before.
    """
    reader = Reader(stream, passphrase)
    tables = {table.label: table for table in schema.tables(reader.head["migrations"])}
    schema.refuse_unless_empty()
    _take_keys(keys.read(reader.keys, "The backup"), say)
    say(f"Creating the tables of release {reader.head['release']}.")
    schema.build(reader.head["migrations"])
    with transaction.atomic():
        rows = _fill(reader, tables, say)
        lost = newest_seal.describe_acceptable_loss()
        if lost and not accept_older_log:
            raise Conflict(
                f"The audit log in the backup does not match the newest audit log that this machine knows. {lost}",
                remedy="To restore the backup anyway, run the command again with --accept-older-log. The audit log then records this.",
            )
    # to this release; and with it triggers and roles
    call_command("migrate", verbosity=0, interactive=False)
    if ended := reaping.end_all_open_calls(read_database_now()):
        say(
            f"Calls that were running at the time of the backup, and now have the outcome unknown: {ended:,}."
        )
    if lost:
        newest_seal.accept_restored_log(actor="restore", reason="restored from a backup")
        say(f"The audit log records that it continues from an earlier state. {lost}")
    return rows


def find_problems() -> Iterator[str]:
    """What is wrong with the site's records: a restored one has nothing wrong that the original had
    not."""
    for finding in check_invariants(timezone.now()):  # the audit log's chains among them
        if finding.violations:
            yield f"Failed {number_of(finding.violations, 'time')}: {finding.rule} {'; '.join(finding.examples)}"


def _fill(reader: Reader, tables: dict[str, BackupTable], say: Say) -> int:
    drop_guards()  # the audit log would refuse to be emptied, and every row would be told of
    for table in tables.values():
        _clear(table)
    ends = []
    lines = reader.read_lines()
    for said in lines:
        if "table" in said:
            ends.append(_take(_find_table(said, tables), lines, say))
    for table, end in ends:
        _finish(table, end)
    _check_references()
    if len(ends) != len(tables):
        raise ConfigInvalid(
            "The backup does not contain all tables.",
            remedy="Restore it with the release that created it.",
        )
    say(f"Compared the rows of {len(ends)} tables with the backup.")
    return sum(end["rows"] for _, end in ends)


def _take(table: BackupTable, lines: Iterator[Any], say: Say) -> tuple[BackupTable, dict[str, Any]]:
    """Insert the rows up to the table's end. Returns what that says."""
    end: dict[str, Any] = {}

    def read_rows() -> Iterator[list[Any]]:
        for number, said in enumerate(lines, 1):
            if isinstance(said, dict):
                end.update(said)
                return
            if not number % PROGRESS:
                say(f"  {table.name}: {number_of(number, 'row')}")
            yield said

    table.insert(read_rows(), DEFAULT_DB_ALIAS)
    return table, end


def _find_table(said: dict[str, Any], tables: dict[str, BackupTable]) -> BackupTable:
    table = tables.get(said["table"])
    if table is None or table.columns != said["columns"]:
        raise ConfigInvalid(
            f"The table {said['table']} of the backup does not have the columns of the release that the backup names.",
            remedy="Restore the backup with the release that made it.",
        )
    return table


def _clear(table: BackupTable) -> None:
    with connections[DEFAULT_DB_ALIAS].cursor() as cursor:
        cursor.execute(f"DELETE FROM {cursor.db.ops.quote_name(table.name)}")  # noqa: S608


def _finish(table: BackupTable, end: dict[str, Any]) -> None:
    """What the database holds now is what was written, and it goes on counting where the other one
    did."""
    table.count_from(end["next"], DEFAULT_DB_ALIAS)
    compare(end, table.tally(DEFAULT_DB_ALIAS))


def _check_references() -> None:
    try:
        connections[DEFAULT_DB_ALIAS].check_constraints()
    except IntegrityError as error:
        raise ConfigInvalid(
            f"A row of the backup refers to a row that does not exist: {error}.",
            remedy="Repair the database that the backup comes from, and create another backup.",
        ) from error


def _take_keys(ring: keys.Ring, say: Say) -> None:
    """The keys come along with what they have sealed. Raises Conflict where variables give this
    site others."""
    here = dict(settings.SLIPSNISSE_KEYS)
    if keys.sealing_is_given():
        other = sorted(key_id for key_id, key in ring.sealing.items() if here.get(key_id) != key)
        if other:
            raise Conflict(
                f'The secrets in the backup are encrypted with the key "{other[0]}", which SLIPSNISSE_KEYS does not contain.',
                remedy="Unset SLIPSNISSE_KEYS to use the keys of the backup, or add that key to SLIPSNISSE_KEYS.",
            )
    kept = keys.replace(settings.VAR_DIR, ring)
    if kept:
        say(f"The site now uses the keys of the backup. The previous keys are in {kept}.")
    if not keys.sealing_is_given():
        settings.SLIPSNISSE_KEYS = ring.sealing
        settings.SLIPSNISSE_AUDIT_KEYS = ring.audit
    if not keys.secret_key_is_given():
        settings.SECRET_KEY = ring.secret_key
    elif ring.secret_key != settings.SECRET_KEY:
        say(
            "SLIPSNISSE_SECRET_KEY differs from that of the backup, so servers, providers and project files must be confirmed again."
        )
