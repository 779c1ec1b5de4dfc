"""A real PgBouncer in transaction mode before the test's PostgreSQL, where the machine has it
(``externals.PGBOUNCER``)."""

from __future__ import annotations

import os
import pwd
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from controlplane.child_processes import die_with_parent, stop
from tests.externals import PGBOUNCER
from tests.waiting import HANG_LIMIT, eventually

_PORT = 6432
_SETTINGS = """[databases]
* = host={server} port=5432

[pgbouncer]
pool_mode = transaction
listen_addr =
listen_port = {port}
unix_socket_dir = {folder}
auth_type = any
auth_file = {folder}/users
max_client_conn = 200
default_pool_size = 10
logfile = {folder}/log
"""


@contextmanager
def running(server: str, user: str) -> Iterator[str]:
    """Yields its address as DATABASE_URL wants it, for the database of the PostgreSQL that listens
    in ``server``."""
    with tempfile.TemporaryDirectory(prefix="slipsnisse-pgb-", dir="/tmp") as name:
        folder = Path(name)
        (folder / "users").write_text("")
        forced = _SETTINGS.replace(
            "* = host={server} port=5432", f"* = host={{server}} port=5432 user={user}"
        )
        (folder / "ini").write_text(forced.format(server=server, folder=folder, port=_PORT))
        process = _start(folder)
        try:
            eventually(lambda: process.poll() is not None or _answers(folder, user))
            assert process.poll() is None, (folder / "log").read_text()
            yield f"postgres://{user}@{name.replace('/', '%2F')}:{_PORT}/postgres"
        finally:
            stop(process, HANG_LIMIT)


def _start(folder: Path) -> subprocess.Popen[bytes]:
    """It refuses to run as root."""
    arm = die_with_parent()
    root = os.geteuid() == 0
    nobody = pwd.getpwnam("nobody")
    if root:
        for path in (folder, *folder.iterdir()):
            os.chown(path, nobody.pw_uid, nobody.pw_gid)

    def prepare() -> None:
        if root:
            os.setgroups([])
            os.setgid(nobody.pw_gid)
            os.setuid(nobody.pw_uid)
        arm()

    return subprocess.Popen(
        [str(PGBOUNCER.found), "--quiet", str(folder / "ini")],
        cwd=folder,
        preexec_fn=prepare,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _answers(folder: Path, user: str) -> bool:
    try:
        psycopg.connect(host=str(folder), port=_PORT, user=user, dbname="postgres").close()
    except psycopg.OperationalError:
        return False
    return True
