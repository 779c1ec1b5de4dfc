"""Looks at a live site and says what is wrong with it, each time with the remedy.

Every probe returns a Finding and never raises: a broken database must not hide a broken broker.
"""

from __future__ import annotations

import asyncio
import site as python_site
import sysconfig
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from django.conf import settings
from django.core.checks import run_checks
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db import Error as DatabaseError

from controlplane import checks, health
from controlplane.all_exposed_secrets import REMEDY, list_open_secrets
from controlplane.celery import app
from controlplane.keys import DERIVED
from controlplane.unclaimed_work import find_unclaimed_work
from mcpregistry.domain.text.display import number_of
from mcpregistry.models.guards import find_altered_guards, find_unknown_guards
from mcpregistry.services.upkeep import completeness

if TYPE_CHECKING:
    from mcpregistry.domain.servers.sandbox import Protection


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """What one probe saw: fine or not, in a sentence, and what to do."""

    ok: bool
    what: str
    remedy: str = ""


# Code that Python runs at every start from site-packages: only what these well-known packages put
# there.
_KNOWN_STARTUP_CODE = {
    "distutils-precedence.pth": "_distutils_hack",  # setuptools
    "_virtualenv.pth": "_virtualenv",
    "a1_coverage.pth": "coverage",
}


_SEALS_ON_THE_WAY = 3  # two are made in a minute


def examine() -> list[DoctorFinding]:
    """All findings of all probes, in the order in which they are printed."""
    probes: list[Callable[[], Iterable[DoctorFinding]]] = [
        _check_settings,
        _check_database,
        _check_migrations,
        _check_keys,
        _check_audit_keys,
        _check_exposed_secrets,
        _check_change_feed,
        _check_connections,
        _check_machines,
        _check_broker,
        _check_work,
        _check_channels,
        _check_checkpoints,
        _check_startup_code,
        _check_sandbox,
        find_hidden_processes,
        _check_installers,
    ]
    return [finding for probe in probes for finding in probe()]


def _check_settings() -> Iterable[DoctorFinding]:
    problems = run_checks(tags=[checks.TAG])
    if not problems:
        yield DoctorFinding(
            True, f"the settings, the keys and the file modes in {settings.VAR_DIR} are correct"
        )
    for problem in problems:
        yield DoctorFinding(False, problem.msg, problem.hint or "")


def _check_database() -> Iterable[DoctorFinding]:
    """Writes and rolls back: a read-only disk or role shows only then."""
    connection = connections[DEFAULT_DB_ALIAS]
    table = f"doctor_{uuid.uuid4().hex}"
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"CREATE TABLE {table} (n integer)")
            transaction.set_rollback(True)
    except DatabaseError as error:
        yield DoctorFinding(
            False,
            f"the site cannot write to the database ({type(error).__name__})",
            _database_remedy(),
        )
    else:
        yield DoctorFinding(True, f"the site can write to the database ({connection.vendor})")


def _database_remedy() -> str:
    if connections[DEFAULT_DB_ALIAS].vendor == "sqlite":
        return f"Check the free space, and the owner of {settings.DATABASES['default']['NAME']} and its folder."
    return "Check DATABASE_URL, that the database server runs, and that the role can create tables."


def _check_migrations() -> Iterable[DoctorFinding]:
    try:
        missing = health.list_unapplied_migrations()
        lacking = "" if missing else completeness.explain_interrupted_migration()
        altered = [] if missing or lacking else find_altered_guards()
        unknown = [] if missing else find_unknown_guards()
    except DatabaseError as error:
        yield DoctorFinding(
            False, f"the migrations cannot be read ({type(error).__name__})", _database_remedy()
        )
        return
    if missing:
        yield DoctorFinding(
            False,
            f"{number_of(len(missing), 'migration is', 'migrations are')} not applied",
            "Run `manage.py migrate`.",
        )
    elif lacking:
        yield DoctorFinding(False, lacking)
    elif altered:
        yield DoctorFinding(
            False,
            f"{number_of(len(altered), 'trigger of the database was', 'triggers of the database were')} changed, for example {altered[0]}",
            "Find out who changed them, then run `manage.py migrate`.",
        )
    elif unknown:
        yield DoctorFinding(
            False,
            f"the tables of the site have {number_of(len(unknown), 'trigger or rule that does', 'triggers or rules that do')} not belong to the site, for example {unknown[0]}",
            "Find out who created them and what they do. Drop them, unless they were created on purpose.",
        )
    else:
        yield DoctorFinding(True, "all migrations are applied, and all triggers and roles exist")


def _check_keys() -> Iterable[DoctorFinding]:
    """Whether every secret opens with a key that is here, and whether older keys are still
    needed."""
    from mcpregistry.services.upkeep.resealing import count_key_uses

    try:
        used = count_key_uses()
    except DatabaseError:
        return  # said already
    newest = next(iter(settings.SLIPSNISSE_KEYS))
    for key, count in sorted(used.items()):
        if key not in settings.SLIPSNISSE_KEYS:
            remedy = "Add that key to SLIPSNISSE_KEYS (or var/keys.json) again, or enter the secrets again."
            yield DoctorFinding(
                False,
                f"{number_of(count, 'secret is', 'secrets are')} encrypted with the key '{key}', which this site does not have",
                remedy,
            )
        elif key != newest:
            yield DoctorFinding(
                False,
                f"{number_of(count, 'secret is', 'secrets are')} still encrypted with the old key '{key}'",
                "Run `manage.py rekey`.",
            )
    if {*used} <= {newest}:
        yield DoctorFinding(True, "all secrets are encrypted with the newest key")


def _check_audit_keys() -> Iterable[DoctorFinding]:
    from mcpregistry.services.records.seals import list_missing_keys

    try:
        missing = list_missing_keys()
    except DatabaseError:
        return  # said already
    for key in missing:
        yield DoctorFinding(
            False,
            f"the audit log cannot be verified: parts of it are signed with the key '{key}', which this site does not have",
            _audit_key_remedy(key),
        )


def _audit_key_remedy(key: str) -> str:
    if not key.startswith(DERIVED):
        return f"Add the key '{key}' to SLIPSNISSE_AUDIT_KEYS again."
    source = key.removeprefix(DERIVED)
    return (
        f"Add the encryption key '{source}' to SLIPSNISSE_KEYS (or var/keys.json) again, or its derived key '{key}' to "
        "SLIPSNISSE_AUDIT_KEYS (see docs/rotate-keys.md)."
    )


def _check_exposed_secrets() -> Iterable[DoctorFinding]:
    """Which servers and providers have a secret in a command or an address, where nothing seals
    it."""
    try:
        found = list_open_secrets()
    except DatabaseError:
        return  # said already
    if found:
        what = f"the command or address contains a secret that is not encrypted, in backups and versions too: {', '.join(found)}"
        yield DoctorFinding(True, what, REMEDY)


def _check_change_feed() -> Iterable[DoctorFinding]:
    """Sends itself a notification and must hear it: LISTEN succeeds behind a pooler that delivers
    nothing."""
    from mcpregistry.calls.watch import sources

    if connections[DEFAULT_DB_ALIAS].vendor == "sqlite":
        return
    try:
        heard = sources.check_delivery()
    except DatabaseError:
        return  # said already
    if heard:
        yield DoctorFinding(
            True,
            "PostgreSQL delivers notifications (NOTIFY), so changes reach processes immediately",
        )
    else:
        yield DoctorFinding(
            False,
            "PostgreSQL does not deliver notifications (NOTIFY), so processes ask for changes every second",
            sources.REMEDY,
        )


def _check_connections() -> Iterable[DoctorFinding]:
    """Whether one web and one worker process may fill their pools."""
    connection = connections[DEFAULT_DB_ALIAS]
    if connection.vendor == "sqlite":
        return
    pool = settings.DATABASES[DEFAULT_DB_ALIAS]["OPTIONS"]["pool"]["max_size"]
    needed = 2 * (pool + 2)  # two more for the change feed
    try:
        with connection.cursor() as cursor:
            cursor.execute("SHOW max_connections")
            most = int(cursor.fetchone()[0])
    except DatabaseError:
        return  # said already
    if most >= needed:
        yield DoctorFinding(
            True,
            f"PostgreSQL allows {most} connections; a web process and a worker use up to {needed}",
        )
    else:
        remedy = (
            "Raise max_connections, use a connection pooler, or lower SLIPSNISSE_DATABASE_POOL."
        )
        yield DoctorFinding(
            False,
            f"PostgreSQL allows only {most} connections; a web process and a worker use up to {needed}",
            remedy,
        )


def _check_machines() -> Iterable[DoctorFinding]:
    """Whether the processes of several machines reach each other, as sessions with one connection
    need it."""
    from mcpregistry.downstream.peers import sockets
    from mcpregistry.services.servers import placement

    try:
        machines = placement.list_machines()
        addresses = placement.list_addresses()
    except DatabaseError:
        return  # said already
    if len(machines) > 1:
        remedy = "Set SLIPSNISSE_PEER_ADDRESS on every machine, and restart the processes (see docs/several-machines.md)."
        what = f"the {len(machines)} machines of this site do not share connections, so a session has a separate connection to a server on each machine"
        yield DoctorFinding(False, what, remedy)
    if not settings.PEER_ADDRESS:
        return
    sockets.identify(settings.SLIPSNISSE_KEYS.values())
    for address in addresses:
        if trouble := asyncio.run(sockets.explain_unreachable(address)):
            remedy = "Check that this process runs, that the network allows the connection, and that all machines have the same SLIPSNISSE_KEYS."
            yield DoctorFinding(
                False, f"the process of this site at {address} cannot be reached: {trouble}", remedy
            )
        else:
            yield DoctorFinding(True, f"the process of this site at {address} can be reached")


def _check_broker() -> Iterable[DoctorFinding]:
    try:
        with app.connection_for_read() as connection:
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=3)
        # All that answer at once are counted; a worker that loads or is starved may take longer to
        # say that it is there.
        answers = app.control.ping(timeout=2) or app.control.ping(timeout=8, limit=1)
    except Exception as error:  # noqa: BLE001 (each transport throws its own)
        remedy = "Start the site with `manage.py up`, or check CELERY_BROKER_URL."
        yield DoctorFinding(False, f"the broker does not answer ({type(error).__name__})", remedy)
        return
    yield DoctorFinding(True, "the broker answers")
    if answers:
        yield DoctorFinding(
            True, f"{len(answers)} worker process{'es answer' if len(answers) > 1 else ' answers'}"
        )
    else:
        remedy = "Start one with `manage.py up` or `celery -A controlplane worker -P threads`. Its log shows why it ended."
        yield DoctorFinding(False, "no worker answers", remedy)


def _check_work() -> Iterable[DoctorFinding]:
    """Whether workers take what there is to do: one that answers may still have its hands full."""
    try:
        found = find_unclaimed_work()
    except DatabaseError:
        return  # said already
    for each in found:
        remedy = "If no worker answers, start one. If a worker answers, its log shows what it waits for: a server, a model or the database."
        yield DoctorFinding(False, f"{each.count} {each.words}", remedy)
    if not found:
        yield DoctorFinding(True, "no work waits for a worker")


def _check_channels() -> Iterable[DoctorFinding]:
    from mcpregistry.services.notifications.outbox import list_failing_channels

    try:
        failing = list_failing_channels()
    except DatabaseError:
        return  # said already
    for name, error in failing:
        yield DoctorFinding(
            False,
            f"the channel '{name}' cannot send messages: {error}",
            "Correct the channel, then send a test message.",
        )
    if not failing:
        yield DoctorFinding(True, "all notification channels work")


def _check_checkpoints() -> Iterable[DoctorFinding]:
    """Whether what is kept out of the database's reach is up to date, where that is asked for."""
    from mcpregistry.services.records import remote_sinks

    for name, url in remote_sinks.list_configured_sinks():
        if remote_sinks.check_sink_settings(name, url):  # a system check says what is wrong with it
            continue
        try:
            lacking = remote_sinks.count_undelivered(name, url)
        except DatabaseError:
            return  # said already
        remedy = f"The log of the worker shows why (audit.not_kept_outside). Check SLIPSNISSE_AUDIT_{name.upper()} and its keys."
        behind = lacking > _SEALS_ON_THE_WAY
        yield DoctorFinding(
            not behind,
            f"the {name} lacks {number_of(lacking, 'checkpoint')} of the audit log",
            remedy if behind else "",
        )


def _check_startup_code() -> Iterable[DoctorFinding]:
    paths = [path for folder in _folders() for path in sorted(folder.glob("*.pth"))]
    strange = [path for path in paths if not _harmless(path)]
    if not strange:
        yield DoctorFinding(True, "no unknown code runs when Python starts (.pth files)")
    for path in strange:
        remedy = "Find out which package installed it. If you do not know it, rebuild .venv from the lock file."
        yield DoctorFinding(False, f"{path} runs unknown code whenever Python starts", remedy)


def _check_sandbox() -> Iterable[DoctorFinding]:
    """How far this kernel can confine local servers, and which of those that run are not."""
    from mcpregistry.services.servers import sandbox

    try:
        open_ones = sandbox.list_unconfined_servers()
        strict_ones = sandbox.list_strict_servers()
    except DatabaseError:
        return  # said already
    said = sandbox.find_local_protection()
    if said.level == "full":
        yield DoctorFinding(
            True, "the sandbox of local servers is complete on this machine (Landlock, seccomp)"
        )
    else:
        remedy = (
            "Use Linux 6.12 or newer with Landlock enabled (lsm=landlock,…), on x86-64 or ARM64."
        )
        yield DoctorFinding(
            False, f"the sandbox of local servers is incomplete on this machine: {said}", remedy
        )
    yield from _check_strict_sandbox(sandbox.find_local_protection(strict=True), strict_ones)
    if open_ones:
        yield DoctorFinding(
            True,
            f"local servers without a sandbox: {', '.join(open_ones)} (docs/sandbox.md explains how to enable it)",
        )


def _check_strict_sandbox(said: Protection, strict_ones: list[str]) -> Iterable[DoctorFinding]:
    """Whether servers can have namespaces of their own; an error only where one is to have them."""
    from mcpregistry.downstream.transports import bubblewrap

    if said.level == "full":
        yield DoctorFinding(
            True, "local servers can use the strict sandbox, with their own namespaces (bubblewrap)"
        )
    elif strict_ones:
        yield DoctorFinding(
            False,
            f"servers with a strict sandbox cannot run ({', '.join(strict_ones)}): {said}",
            bubblewrap.REMEDY,
        )
    else:
        yield DoctorFinding(
            True,
            f"the strict sandbox is not available, but no server uses it: {said}. {bubblewrap.REMEDY}",
        )


def find_hidden_processes() -> Iterable[DoctorFinding]:
    """Whether the site can see all processes, by which it recognizes programs in its sandboxes."""
    from mcpregistry.downstream.transports import sandbox_callers

    if sandbox_callers.are_processes_hidden():
        yield DoctorFinding(
            False,
            "/proc hides processes from this site (hidepid). While a sandbox runs, the pages and the REST API refuse connections "
            "from programs on this machine that the site cannot see, for example an SSH tunnel",
            "Mount /proc with the option gid=GROUP and run the site in that group, or mount it without hidepid "
            "(see docs/sandbox.md).",
        )


def _check_installers() -> Iterable[DoctorFinding]:
    """What servers' packages are installed with."""
    from mcpregistry.domain.errors import SlipsnisseError
    from mcpregistry.downstream.installers import programs

    for name, find in (("uv", programs.find_uv), ("npm", programs.find_npm)):
        try:
            found = programs.read_version(find())
        except SlipsnisseError as error:
            # of npm no defect: who installs none from there needs none
            yield DoctorFinding(
                name == "npm",
                f"packages cannot be installed with {name}: {error.message}",
                error.remedy,
            )
        else:
            yield DoctorFinding(
                bool(found), f"packages can be installed with {name} {found}".strip()
            )


def _folders() -> list[Path]:
    return [
        Path(folder)
        for folder in sorted({sysconfig.get_path("purelib"), *python_site.getsitepackages()})
    ]


def _harmless(path: Path) -> bool:
    """Lines that begin with ``import`` are executed (module ``site``); all others only name
    folders."""
    code = [
        line
        for line in path.read_text(errors="replace").splitlines()
        if line.startswith(("import ", "import\t"))
    ]
    expected = _KNOWN_STARTUP_CODE.get(path.name)
    return not code or (
        expected is not None and len(code) == 1 and len(code[0]) < 300 and expected in code[0]
    )
