"""`moveto` takes a whole site from SQLite to PostgreSQL and back, every row of it, or leaves all as
it was."""

from __future__ import annotations

from decimal import Decimal

import pytest
from django.db import connection

from controlplane.backups.tables import BackupTable
from mcpregistry.models import Agent, Configuration, Credential, Server
from mcpregistry.services.access import agents, credentials, grants, tokens
from subagents.models import LanguageModel, Provider
from tests.fakes import elsewhere
from tests.fakes.tampered import sealed_anew
from tests.services.rows import confirmed
from tests.waiting import HANG_LIMIT, eventually

ACTOR = "user:test"
_CONFIGURATION = (
    "repr({key: value for key, value in apps.get_model('mcpregistry.Configuration').objects.values().get().items() "
    "if key != 'revision'})"
)
_DIGESTS = (
    "[(t.label, t.tally('default').digest) for t in __import__('controlplane.backups.schema').backups.schema.tables("
    "__import__('controlplane.backups.schema').backups.schema.list_applied_migrations('default'))]"
)


def digests(site: elsewhere.Site) -> dict[str, str]:
    """Of every table of a site, by label, but the one of counters that a site on SQLite alone has.

    The revision is left out of the configuration: it rises with a move, so that processes read
    everything again.
    """
    found = {
        label: digest for label, digest in site.shown(_DIGESTS) if label != "mcpregistry.change"
    }
    return found | {"mcpregistry.configuration": site.shown(_CONFIGURATION)}


def lived_in() -> None:
    """Rows of many tables, with JSON, decimals, times, secrets and an audit log that holds."""
    server = confirmed()
    agent = agents.save_agent(agent=Agent(slug="ann"), actor=ACTOR)
    grants.grant_access(agent=agent, server=server, actor=ACTOR)
    tokens.issue_token(name="t", agent=agent, actor=ACTOR)
    credentials.save_credential(credential=Credential(name="github"), value="s3cret", actor=ACTOR)
    provider = Provider.objects.create(
        slug="p", kind="scripted", options={"z": [1e16, None, {"a": 1.0}], "a": "ü"}
    )
    LanguageModel.objects.create(provider=provider, name="m", input_price=Decimal("0.1"))
    Configuration.objects.update(variable_scope={"TOKEN": ["server:echo"]})


def url(site: elsewhere.Site) -> str:
    return site.env.get("DATABASE_URL", f"sqlite:///{site.var / 'slipsnisse.sqlite3'}")


@pytest.mark.exhaustive
@pytest.mark.postgres_only
@pytest.mark.e2e
@pytest.mark.usefixtures("live_db")
def test_a_site_goes_to_sqlite_and_back_to_postgresql_with_every_row(tmp_path):
    lived_in()
    sealed_anew()  # by the key of the site that is moved
    here = elsewhere.here()
    before = digests(here)
    var = {"SLIPSNISSE_VAR": here.env["SLIPSNISSE_VAR"]}  # the keys stay where they are
    small = elsewhere.Site(here.env | {"DATABASE_URL": f"sqlite:///{tmp_path / 'moved.sqlite3'}"})
    code, said = here.run("moveto", url(small))
    assert code == 0, said
    assert "The audit log and all invariants are intact" in said
    assert "Set DATABASE_URL" in said
    assert digests(small) == before
    small.assert_whole()
    verified = digests(small)  # which notes what was verified
    big = elsewhere.Site(elsewhere.on_postgres(tmp_path / "big").env | var)
    code, said = small.run("moveto", "-", stdin=url(big) + "\n")
    assert code == 0, said
    assert digests(big) == verified
    big.assert_whole()
    assert big.shown("apps.get_model('mcpregistry.Credential').objects.get().value") == "s3cret"
    assert (
        big.shown("apps.get_model('mcpregistry.Server').objects.create(slug='next').pk")
        > Server.objects.get().pk
    )


@pytest.mark.exhaustive
@pytest.mark.usefixtures("live_db")
def test_nothing_is_moved_into_a_database_with_rows_and_everything_stays(tmp_path):
    lived_in()
    before = digests(elsewhere.here())
    code, said = elsewhere.here().run("moveto", url(elsewhere.here()))
    assert code == 1
    assert "The database is not empty" in said
    assert "Nothing was moved" in said
    assert digests(elsewhere.here()) == before


def test_an_address_that_is_none_is_refused_before_anything_is_read(tmp_path):
    code, said = elsewhere.on_sqlite(tmp_path).run("moveto", "mysql://somewhere")
    assert code == 1
    assert "must start with postgres:// or sqlite:///" in said


def test_a_site_that_runs_is_not_moved(tmp_path):
    """`up` holds the folder's lock."""
    from controlplane.embedded_site import hold_site_lock

    site = elsewhere.on_sqlite(tmp_path / "site")
    with hold_site_lock(site.var):
        code, said = site.run("moveto", f"sqlite:///{tmp_path / 'other.sqlite3'}")
    assert code == 1
    assert "already running" in said
    assert not (tmp_path / "other.sqlite3").exists()


@pytest.mark.exhaustive
@pytest.mark.usefixtures("live_db")
def test_nobody_writes_while_a_site_moves(tmp_path, monkeypatch):
    """Else what they wrote would stay behind unseen: a writer is still waiting when the last row
    was read."""
    from threading import Thread

    from django.db import connections

    from controlplane.backups import dumping

    done: list[str] = []

    def write() -> None:
        try:
            # its own 20 seconds may be over before a slow machine has read all rows
            if connection.vendor == "sqlite":
                with connection.cursor() as cursor:
                    cursor.execute(f"PRAGMA busy_timeout = {HANG_LIMIT * 1000:.0f}")
            Server.objects.create(slug="late")
            done.append("late")
        finally:
            connections.close_all()

    counted = dumping._table
    thread = Thread(target=write)

    def table(each: BackupTable, *rest: object) -> int:
        if not thread.ident:
            thread.start()
            eventually(waits)
        assert done == []
        return counted(each, *rest)  # type: ignore[arg-type]

    def waits() -> bool:
        """On PostgreSQL the lock is seen; on SQLite, whose waiting nobody sees, nobody else can
        take it."""
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
                return bool(cursor.fetchone()[0])
        return thread.ident is not None

    monkeypatch.setattr(dumping, "_table", table)
    with (tmp_path / "stream").open("wb") as stream:
        dumping.dump(stream, elsewhere.PASSPHRASE, lambda _: None, alone=True)
    thread.join(HANG_LIMIT)
    assert done == ["late"]
