"""A backup is the site at one moment, whatever runs meanwhile; what is restored is that site, or
nothing at all."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import os
import signal
import stat
import threading
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connection, connections
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone

from controlplane import keys
from controlplane.backups import dumping, loading, passphrase, schema
from controlplane.backups.archive import Reader, Writer
from controlplane.backups.tables import BackupTable
from mcpregistry.domain.errors import ConfigInvalid, Conflict
from mcpregistry.domain.lifecycle import TERMINAL
from mcpregistry.migrations import FIRST_MIGRATION
from mcpregistry.models import Agent, AuditEntry, Connection, Credential, Server, Tool
from mcpregistry.services.records import archiving, audit, chains, newest_seal
from subagents.models import LanguageModel, Provider
from tests import forkserver, migrated
from tests.fakes import elsewhere
from tests.fakes.elsewhere import PASSPHRASE
from tests.fakes.tampered import process_wrote, seal, sealed_anew, unguarded
from tests.fault.load import Load, served
from tests.services.rows import confirmed, dispatched
from tests.waiting import HANG_LIMIT, until


def quiet(_: str) -> None:
    """What is said on the way matters to nobody here."""


@pytest.fixture(autouse=True)
def _passphrases_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """In backups that this process makes. The command's own are as they are."""
    monkeypatch.setattr(dumping, "WORK", passphrase.NO_WORK)


@pytest.fixture(autouse=True)
def _sealed(request: pytest.FixtureRequest) -> None:
    """The audit log has a seal by this process's key, as a site's has from its first start on."""
    if "live_db" in request.fixturenames:
        request.getfixturevalue("live_db")
        sealed_anew()


# What a site has after a restore, one expression for each; one process looks at all of it.
RESTORED = (
    "apps.get_model('mcpregistry.Credential').objects.get().value",
    "apps.get_model('mcpregistry.Server').objects.get(slug='odd').env",
    "apps.get_model('mcpregistry.Server').objects.get(slug='odd').server_info",
    "apps.get_model('subagents.LanguageModel').objects.get().input_price",
    "apps.get_model('mcpregistry.Agent').objects.create(slug='new').pk",
    "__import__('mcpregistry.models.guards').models.guards.find_missing_guards()",
)


def saved(folder: Path) -> Path:
    return dumping.save(folder, PASSPHRASE, quiet)[0]


def told_to_change(lines: list[bytes], change: Callable[[Any], Any]) -> bytes:
    """The same backup with the first row of servers changed, as somebody would who has the file
    alone."""
    changed = list(lines)
    at = next(n for n, line in enumerate(lines) if b'"table": "mcpregistry.server"' in line) + 1
    changed[at] = json.dumps(change(json.loads(lines[at]))).encode() + b"\n"
    return gzip.compress(b"".join(changed))


@pytest.mark.exhaustive
@pytest.mark.fault
@pytest.mark.e2e
@pytest.mark.usefixtures("live_db")
def test_a_backup_under_load_restored_elsewhere_misses_no_call_that_had_ended(tmp_path):
    """What callers were told before it began is in it; and what is in it holds together."""

    async def loaded() -> list[str]:
        async with load.running():
            await until(lambda: len(load.told) >= 40)
            before = [
                body["mcp"]["invocation_id"] for _, status, body in load.told if status == 200
            ]
            code, said = await asyncio.to_thread(
                elsewhere.here().run, "backup", str(tmp_path / "backups")
            )
            assert code == 0, said
            assert "The file was checked and is complete" in said
            at = len(load.told)
            await until(lambda: len(load.told) >= at + 8)  # nobody was kept from working
            return before

    with served(tmp_path / "journal") as (site, token):
        load = Load(site, token)
        connections.close_all()
        ended = asyncio.run(loaded())
    assert len(ended) >= 40
    assert {status for _, status, _ in load.told} == {200}
    (file,) = (tmp_path / "backups").iterdir()
    with gzip.open(file) as stream:
        assert json.loads(stream.readline())["passphrase"]["n"] == 2**17, (
            "half a second for each guess"
        )
    other = elsewhere.of_the_same_kind(tmp_path / "other")
    code, said = other.run("restore", str(file))
    assert code == 0, said
    assert "The audit log and all invariants are intact" in said
    other.assert_whole()
    there = dict(
        other.shown(
            "list(apps.get_model('mcpregistry.Invocation').objects.values_list('id', 'state'))"
        )
    )
    assert [
        call for call in ended if there.get(call) not in {str(state) for state in TERMINAL}
    ] == []
    assert len(there) <= len(load.told)


@pytest.mark.usefixtures("live_db")
def test_secrets_triggers_numbers_and_versions_come_along(tmp_path):
    """A site whose rows are odd on purpose, into a database without a single table."""
    Credential.objects.create(name="github", value="s3cret-value")
    server = Server.objects.create(
        slug="odd", env={"TOKEN": "v"}, server_info={"b": 1e16, "a": [None, 1.5, "é\n"]}
    )
    provider = Provider.objects.create(slug="p", kind="scripted")
    LanguageModel.objects.create(provider=provider, name="m", input_price=Decimal("0.000001"))
    gone = Agent.objects.create(slug="gone")
    number = gone.pk
    gone.delete()
    Server.objects.create(slug="open", command=["open", "--token", "t0k3n-value"])
    reported: list[str] = []
    file = dumping.save(tmp_path, PASSPHRASE, reported.append)[0]
    assert [line for line in reported if "command or address of: server open." in line]
    assert b"s3cret-value" not in gzip.decompress(file.read_bytes())
    other = elsewhere.of_the_same_kind(tmp_path / "other", migrate=False)
    code, said = other.run("restore", str(file))
    assert code == 0, said
    value, env, info, price, new, missing = other.shown(f"[{', '.join(RESTORED)}]")
    assert value == "s3cret-value"
    assert env == {"TOKEN": "v"}
    assert info == server.server_info
    assert price == "0.000001"
    assert new > number
    assert missing == []
    again = other.run("restore", str(file))
    assert again[0] == 1
    assert "The database is not empty" in again[1]


@pytest.mark.exhaustive
@pytest.mark.usefixtures("live_db")
def test_what_processes_of_the_other_site_had_in_hand_has_ended(tmp_path):
    """They live no more: nothing waits for them, and the records hold together before any clock has
    run."""
    server = confirmed()
    dispatched(lease=timedelta(hours=1))
    Connection.objects.create(
        server=server,
        process="web@elsewhere:1",
        state="connected",
        since=timezone.now(),
        seen_at=timezone.now() - timedelta(hours=1),
    )
    other = elsewhere.of_the_same_kind(tmp_path / "other")
    code, said = other.run("restore", str(saved(tmp_path / "made")))
    assert code == 0, said
    assert "have the outcome unknown: 1" in said
    other.assert_whole()
    assert other.shown("apps.get_model('mcpregistry.Invocation').objects.get().state") == "unknown"
    assert other.shown("apps.get_model('mcpregistry.Connection').objects.count()") == 0


@pytest.mark.exhaustive
@pytest.mark.usefixtures("live_db")
def test_a_restored_site_knows_its_archives(tmp_path):
    """Of which a backup holds the records, for whatever database; the files lie where they lay."""
    process_wrote("web:1", 5, minutes_ago=200 * 24 * 60)
    assert seal() is not None
    archiving.archive_entries(timezone.now(), timedelta(days=90), tmp_path, quiet)
    assert AuditEntry.objects.filter(writer="web:1").count() == 1
    other = elsewhere.on_sqlite(tmp_path / "other")
    code, said = other.run("restore", str(saved(tmp_path / "made")))
    assert code == 0, said
    other.assert_whole()
    code, said = other.run("audit", "verify", "--full", "--archive", str(tmp_path))
    assert code == 0, said
    assert "4 entries of 1 chain are in archives" in said
    assert (
        other.shown("__import__('mcpregistry.models.guards').models.guards.find_missing_guards()")
        == []
    )


def fresh_sqlite(var: Path) -> elsewhere.Site:
    return elsewhere.on_sqlite(var, migrate=False)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("live_db")
def test_keys_open_with_the_passphrase_alone(tmp_path):
    file = saved(tmp_path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    plain = gzip.decompress(file.read_bytes())
    for key in settings.SLIPSNISSE_KEYS.values():
        assert base64.b64encode(key) not in plain
    assert settings.SECRET_KEY.encode() not in plain
    with file.open("rb") as stream, pytest.raises(ConfigInvalid, match="passphrase does not open"):
        Reader(stream, "another passphrase")
    with file.open("rb") as stream:
        ring = keys.read(Reader(stream, PASSPHRASE).keys, "the backup")
    assert (ring.secret_key, ring.sealing) == (settings.SECRET_KEY, settings.SLIPSNISSE_KEYS)


@pytest.mark.usefixtures("live_db")
def test_what_was_cut_changed_or_swapped_is_no_backup(tmp_path):
    Server.objects.create(slug="one")
    file = saved(tmp_path / "made")
    whole = file.read_bytes()
    lines = gzip.decompress(file.read_bytes()).splitlines(keepends=True)
    renamed = told_to_change(lines, lambda row: [row[0], row[1], "evil", *row[3:]])
    other_head = lines[0].replace(b'"release": "', b'"release": "9')
    bad = {
        "cut": whole[:-20],
        "half": whole[: len(whole) // 2],
        "damaged": whole[:200] + bytes([whole[200] ^ 1]) + whole[201:],
        "unfinished": gzip.compress(b"".join(lines[:-1])),
        "changed": renamed,
        "another head": gzip.compress(other_head + b"".join(lines[1:])),
        "too much work": gzip.compress(
            lines[0].replace(b'"n": 2,', b'"n": 1073741824,') + b"".join(lines[1:])
        ),
        "something else": b"hello",
        "other JSON": gzip.compress(b"{}\n"),
        "a later format": gzip.compress(lines[0].replace(b'"format": 1', b'"format": 2')),
    }
    for name, content in bad.items():
        path = tmp_path / "bad"
        path.write_bytes(content)
        with pytest.raises(ConfigInvalid) as refused:
            dumping.verify(path, PASSPHRASE)
        assert refused.value.remedy, name
    path.write_bytes(whole)
    assert dumping.verify(path, PASSPHRASE) > 1


@pytest.mark.exhaustive
@pytest.mark.usefixtures("live_db")
def test_a_changed_backup_leaves_the_database_empty(tmp_path):
    Server.objects.create(slug="one")
    lines = gzip.decompress(saved(tmp_path / "made").read_bytes()).splitlines(keepends=True)
    path = tmp_path / "changed"
    path.write_bytes(told_to_change(lines, lambda row: [row[0], row[1], "evil", *row[3:]]))
    other = elsewhere.on_sqlite(tmp_path / "other")
    code, said = other.run("restore", str(path))
    assert code == 1
    assert "was changed after it was created" in said
    assert other.shown("apps.get_model('mcpregistry.Server').objects.count()") == 0


def test_backup_of_a_newer_release_is_refused_with_the_remedy():
    with pytest.raises(
        Conflict, match=r"newer release.*mcpregistry\.9999_later.*Restore it with that release"
    ):
        schema.tables({"mcpregistry": [FIRST_MIGRATION[1], "9999_later"]})


def test_backup_from_before_the_first_release_is_refused_with_the_remedy():
    with pytest.raises(
        Conflict, match=r"before the first release.*Restore it with the version that created it"
    ):
        schema.tables({"mcpregistry": ["0001_initial", "0002_approvals"]})


@pytest.mark.django_db
def test_every_table_is_in_it_but_sessions():
    there = {
        table.name for table in schema.tables(schema.list_applied_migrations(DEFAULT_DB_ALIAS))
    }
    made = set(connection.introspection.table_names())
    sessions = {
        "django_session",
        *(f"mcpregistry_host{what}" for what in ("session", "message", "stream")),
    }
    # made anew of the rows
    index = {name for name in made if name.split("_", 3)[:3] == ["words", "of", "calls"]}
    assert made - there == {"django_migrations"} | sessions | index | ({"sqlite_sequence"} & made)


@pytest.mark.usefixtures("live_db")
def test_what_ends_early_leaves_no_file(tmp_path, monkeypatch):
    def breaks(self: BackupTable, using: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(BackupTable, "find_next_number", breaks)
    with pytest.raises(ConfigInvalid, match="No space left"):
        saved(tmp_path / "full")
    assert list((tmp_path / "full").iterdir()) == []


@pytest.mark.exhaustive
@pytest.mark.usefixtures("live_db")
def test_a_process_killed_in_the_middle_leaves_nothing_that_looks_whole(tmp_path):
    code = (
        "import os, django; django.setup()\n"
        "from controlplane.backups import dumping\n"
        "dumping.verify = lambda *_: os.kill(os.getpid(), 9)\n"
        f"dumping.save(__import__('pathlib').Path({str(tmp_path)!r}), 'a passphrase', print)\n"
    )
    assert forkserver.popen(["-c", code], env=elsewhere.here().env).wait(HANG_LIMIT) != 0
    assert [path.suffix for path in tmp_path.iterdir()] == [".part"]


@pytest.mark.exhaustive
@pytest.mark.usefixtures("live_db")
def test_a_backup_keeps_no_writer_waiting_and_sees_none_of_what_they_write(tmp_path, monkeypatch):
    """A server that is saved while the tables are read is not in it, wherever the reading is."""
    Server.objects.create(slug="before")
    read = BackupTable.read
    written = threading.Event()

    def meanwhile(self: BackupTable, using: str) -> Any:
        if using == dumping.SOURCE and not written.is_set():
            written.set()
            Server.objects.create(slug="during")
        return read(self, using)

    monkeypatch.setattr(BackupTable, "read", meanwhile)
    monkeypatch.setattr(dumping, "_table", after_a_look(dumping._table))
    text = gzip.decompress(saved(tmp_path).read_bytes())
    assert written.is_set()
    assert b'"before"' in text
    assert b'"during"' not in text


def after_a_look(write: Any) -> Any:
    """The moment of a transaction is its first look at the database, which the first table would be
    otherwise."""

    def table(*args: Any) -> Any:
        with connections[dumping.SOURCE].cursor() as cursor:
            cursor.execute("SELECT count(*) FROM mcpregistry_server")
        return write(*args)

    return table


@pytest.mark.django_db
def test_rows_are_the_same_from_either_database():
    """PostgreSQL keeps neither the order of keys nor how a number is written; both are the same
    row."""
    table = BackupTable(Server)
    blank = [None] * len(table.columns)
    at = table.columns.index("server_info")

    def row(info: Any) -> bytes:
        return table.canonical([*blank[:at], info, *blank[at + 1 :]])

    assert row({"a": 1, "b": [1e16]}) == row({"b": [10**16], "a": 1.0})
    assert row({"a": 1}) != row({"a": 2})
    assert row({"a": 0.1}) != row({"a": 0.2})


@pytest.mark.django_db
def test_a_row_that_the_database_does_not_take_is_named():
    table = BackupTable(Tool)
    row = json.loads(json.dumps([7, 99, *[None] * (len(table.columns) - 2)]))
    with pytest.raises(ConfigInvalid, match=r"does not accept the row 7 of mcpregistry_tool"):
        table.insert([row], DEFAULT_DB_ALIAS)


def test_a_passphrase_is_asked_for_and_never_short(monkeypatch):
    monkeypatch.setenv("SLIPSNISSE_BACKUP_PASSPHRASE", "short")
    with pytest.raises(ConfigInvalid, match="at least 12"):
        passphrase.ask("backup", new=True)
    monkeypatch.delenv("SLIPSNISSE_BACKUP_PASSPHRASE")
    with pytest.raises(ConfigInvalid, match=r"A passphrase is required.*_FILE"):
        passphrase.ask("backup", new=False)  # a test has no terminal


def test_a_passphrase_comes_from_a_file(monkeypatch, tmp_path):
    (tmp_path / "word").write_text(f"{PASSPHRASE}\n")
    monkeypatch.setenv("SLIPSNISSE_BACKUP_PASSPHRASE_FILE", str(tmp_path / "word"))
    assert passphrase.ask("backup", new=True) == PASSPHRASE


def test_a_replaced_key_file_is_kept(tmp_path):
    first = keys.load(tmp_path)
    other = keys.Ring("another", {"k9": os.urandom(32)})
    kept = keys.replace(tmp_path, other)
    assert kept is not None
    assert json.loads(kept.read_text()) == keys.dump_ring(first)
    assert keys.load(tmp_path) == other
    assert keys.replace(tmp_path, other) is None


@pytest.mark.usefixtures("live_db")
def test_other_keys_given_by_a_variable_are_refused_before_anything_is_done(tmp_path):
    file = saved(tmp_path)
    other = elsewhere.on_sqlite(tmp_path / "other")
    ring = f"k1:{base64.b64encode(os.urandom(32)).decode()}"
    code, said = other.run(
        "restore", str(file), SLIPSNISSE_KEYS=ring, SLIPSNISSE_SECRET_KEY="s" * 50
    )
    assert code == 1
    assert "Unset SLIPSNISSE_KEYS" in said
    assert not (other.var / "keys.json").exists()


def test_a_stream_in_pieces_is_one_stream(tmp_path):
    """The writer's lines come back as they went in, and the last is looked at."""
    path = tmp_path / "stream"
    with path.open("wb") as stream:
        writer = Writer(
            stream,
            PASSPHRASE,
            {"release": "1", "migrations": {}},
            {"secret_key": "s"},
            passphrase.NO_WORK,
        )
        writer.write_object(table="t", columns=["a"])
        writer.write_line(b"[1]")
        writer.finish(tables=1, rows=1)
    with path.open("rb") as stream:
        reader = Reader(stream, PASSPHRASE)
        said = list(reader.read_lines())
    assert reader.keys == {"secret_key": "s"}
    assert said[:2] == [{"table": "t", "columns": ["a"]}, [1]]
    assert said[2]["whole"] is True


# A database with fewer migrations than this version has, as an earlier release would leave it.
_EARLIER = """
import django; django.setup()
from django.db import connection
from controlplane.backups import schema
earlier = {app: names for app, names in schema.list_applied_migrations("default").items() if app != "subagents"}
schema.build(earlier)
assert schema.list_applied_migrations("default") == earlier
assert "subagents_provider" not in connection.introspection.table_names()
{table.label: table.model for table in schema.tables(earlier)}["mcpregistry.credential"].objects.create(name="earlier")
"""


@pytest.mark.exhaustive
def test_backup_of_an_earlier_release_is_migrated_when_it_is_restored(tmp_path):
    earlier = fresh_sqlite(tmp_path / "earlier")
    migrated.put_into(tmp_path / "earlier")
    assert forkserver.popen(["-c", _EARLIER], env=earlier.env).wait(HANG_LIMIT) == 0
    code, output = earlier.run("backup", str(tmp_path / "backups"))
    assert code == 0, output
    other = fresh_sqlite(tmp_path / "other")
    code, output = other.run("restore", str(next((tmp_path / "backups").iterdir())))
    assert code == 0, output
    assert other.shown(
        "list(apps.get_model('mcpregistry.Credential').objects.values_list('name', flat=True))"
    ) == ["earlier"]
    assert other.shown("apps.get_model('subagents.Provider').objects.count()") == 0
    other.assert_whole()


@pytest.mark.django_db
def test_backup_reports_which_rows_of_an_earlier_release_were_not_searched():
    Server.objects.create(slug="open", command=["open", "--token", "t0k3n-value"])
    reported: list[str] = []
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE subagents_provider RENAME TO providers_of_another_release")
    with pytest.raises(DatabaseError):  # no migration is missing, so something else is wrong
        dumping.report_open_secrets(reported.append)
    MigrationRecorder(connection).record_unapplied("subagents", "0001_tables")
    dumping.report_open_secrets(reported.append)
    found, not_searched = reported
    assert "command or address of: server open." in found
    assert "of an earlier release: providers" in not_searched


@pytest.mark.django_db
def test_a_restored_log_is_read_once_and_a_broken_place_is_named(monkeypatch):
    audit.record_entry(kind="test", actor="ann", subject="x")
    entry = AuditEntry.objects.get(kind="test")
    with unguarded():
        AuditEntry.objects.filter(pk=entry.pk).update(body=entry.body.replace("ann", "eve"))
    walked = []
    walk = chains.walk_chains
    monkeypatch.setattr(chains, "walk_chains", lambda *given: walked.append(given) or walk(*given))
    found = [problem for problem in loading.find_problems() if "audit chain" in problem]
    assert len(walked) == 1
    assert found == [
        f"Failed 1 time: Every audit chain is complete. {entry.writer} #{entry.seq}: its text does not match its hash"
    ]


def tell_newest_seal(other: elsewhere.Site) -> None:
    """Give another site's folder the file that names the newest seal of this site."""
    newest_seal.keep_newest_seal(make=True)
    other.var.mkdir(exist_ok=True)
    (other.var / newest_seal.FILE).write_bytes(newest_seal.get_seal_path().read_bytes())


@pytest.mark.exhaustive
@pytest.mark.attack
@pytest.mark.usefixtures("live_db")
def test_backup_with_an_older_log_is_restored_only_if_that_is_accepted(tmp_path):
    """The folder of the site names a seal that was made after the backup."""
    older = saved(tmp_path / "made")
    audit.record_entry(kind="test", actor="ann", subject="x")
    assert seal() is not None
    other = elsewhere.of_the_same_kind(tmp_path / "other")
    tell_newest_seal(other)
    code, said = other.run("restore", str(older))
    assert code == 1
    assert "--accept-older-log" in said
    code, said = other.run("restore", str(older), "--accept-older-log")
    assert code == 0, said
    kinds = "list(apps.get_model('mcpregistry.AuditEntry').objects.values_list('kind', flat=True))"
    assert "audit.restored" in other.shown(kinds)
    other.assert_whole()


@pytest.mark.exhaustive
@pytest.mark.fault
@pytest.mark.usefixtures("live_db")
def test_restore_of_an_older_log_that_was_killed_is_accepted_afterwards(tmp_path):
    """All rows are there when the restore is killed, and the log does not record yet that an older
    one was accepted."""
    Server.objects.create(slug="one")
    older = saved(tmp_path / "made")
    audit.record_entry(kind="test", actor="ann", subject="x")
    assert seal() is not None
    other = elsewhere.of_the_same_kind(tmp_path / "other")
    tell_newest_seal(other)
    killed = other.run(
        "restore", str(older), "--accept-older-log", SLIPSNISSE_FAILPOINT="triggers_made:crash"
    )
    assert killed[0] == -signal.SIGKILL
    code, said = other.run("restore", str(older), "--accept-older-log")
    assert code == 1
    assert "If a restore was interrupted" in said
    code, said = other.run("migrate")
    assert code == 0, said
    code, said = other.run("audit", "verify")
    assert code == 1
    assert "manage.py audit accept-restore" in said
    code, said = other.run(
        "audit", "accept-restore", "--reason", "the restore was killed", "--confirm"
    )
    assert code == 0, said
    other.assert_whole()
