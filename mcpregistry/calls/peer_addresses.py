"""Names this machine, and says where this process takes calls of the others.

Processes that can reach each other by a socket, on Linux those of a machine or of a container of
it, have the same name of a machine.
"""

from __future__ import annotations

import hashlib
import os
import socket
import tempfile
from functools import cache
from pathlib import Path

from django.conf import settings

from mcpregistry.downstream.peers.neighbours import is_alive
from mcpregistry.downstream.peers.sockets import PeerAddress

_LONGEST_SOCKET = 100  # bytes; unix(7) allows 107


@cache
def get_machine_name() -> str:
    """Name what the processes share that can reach each other: on Linux a machine, or a container
    of it."""
    try:
        here = f"{Path('/proc/sys/kernel/random/boot_id').read_text()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        here = ""
    name = socket.gethostname()
    return f"{name[:60]} {hashlib.sha256(f'{name} {here}'.encode()).hexdigest()[:16]}"


def choose_peer_address() -> Path | PeerAddress:
    """Where this process takes calls of the others: at the machine's address, or else at a socket.

    The socket lies in the site's folder, or elsewhere if the path would be too long.
    """
    if settings.PEER_ADDRESS:
        return PeerAddress(*settings.PEER_ADDRESS)
    path = Path(settings.VAR_DIR, "run", f"{get_machine_name()[-16:]}-{os.getpid()}.sock")
    if len(os.fsencode(path)) < _LONGEST_SOCKET:
        return path
    return Path(tempfile.mkdtemp(prefix="slipsnisse-"), "peer.sock")


def get_marker_path() -> Path:
    """The file by which other processes of this machine find this one."""
    return Path(settings.VAR_DIR, "run", f"{get_machine_name()[-16:]}-{os.getpid()}.peer")


def is_running_here(process: str) -> bool:
    """Whether the process with this name, of this machine, is alive."""
    pid = process.rpartition(":")[2]
    return pid.isdecimal() and is_alive(int(pid))
