"""The sandbox of a stdio server on this machine: its folder, what its program needs to run, and the launcher's policy.

Every program may read the system's libraries and the few files of ``/etc`` that name hosts, users, time and
certificates; its own file and the ``lib`` folders beside it (a virtual environment, Node's prefix); nothing of
``/home``, ``/var``, ``/run``, ``/tmp``, ``/srv`` or ``/opt`` besides. What else it needs, its policy names.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import PurePath

from mcpregistry.domain.errors import ConnectionFailed
from mcpregistry.domain.servers.target import Sandbox, Target
from mcpregistry.downstream.transports import confinement

SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store", "/proc", "/sys/devices/system/cpu",
    "/dev/random", "/dev/urandom", "/etc/alternatives", "/etc/ca-certificates", "/etc/crypto-policies",
    "/etc/gai.conf", "/etc/gitconfig", "/etc/group", "/etc/host.conf", "/etc/hosts", "/etc/ld.so.cache", "/etc/ld.so.conf",
    "/etc/ld.so.conf.d", "/etc/localtime", "/etc/mime.types", "/etc/nsswitch.conf", "/etc/os-release", "/etc/passwd",
    "/etc/pki", "/etc/protocols", "/etc/resolv.conf", "/etc/services", "/etc/ssl", "/etc/timezone",
)  # fmt: skip
DEVICES = ("/dev/null", "/dev/zero", "/dev/full")
_BESIDE = ("lib", "lib64", "pyvenv.cfg")


def places(sandbox: Sandbox) -> dict[str, str]:
    """The environment by which a program finds its own folder instead of ours."""
    return {"HOME": sandbox.home, "TMPDIR": os.path.join(sandbox.home, "tmp")}


def prepare(target: Target, path: str) -> tuple[str, str]:
    """The launcher's policy (empty: no sandbox) and the directory to start in. Makes the server's folder.

    Raises ConnectionFailed (nothing sent) where nothing would confine it, or its folder cannot be made.
    """
    sandbox = target.sandbox
    if sandbox is None:
        return "", target.cwd
    if not confinement.abi():
        raise ConnectionFailed(
            "The server is to run in a sandbox, and this machine's kernel has none (Landlock).",
            remedy="Use a kernel of 5.13 or newer with Landlock switched on, or take the server's sandbox off.",
        )
    try:
        for folder in (sandbox.home, places(sandbox)["TMPDIR"]):
            os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as error:
        raise ConnectionFailed(
            f"The server's own folder {sandbox.home} cannot be made: {error.strerror}.", remedy="Check its owner."
        ) from error
    return policy_of(target, sandbox, path), target.cwd or sandbox.home


def policy_of(target: Target, sandbox: Sandbox, path: str) -> str:
    """The lines that ``confinement.apply`` takes.

    What lies in a folder that the server may write has no line of its own: the server could put a link there, and be
    let in behind it at its next start.
    """
    folders = (sandbox.home, *sandbox.write)
    needed = needed_by(target.argv[0], target.cwd, path, folders)
    read = dict.fromkeys((*SYSTEM, *(each for each in (*needed, *sandbox.read) if not _within(each, folders))))
    write = dict.fromkeys((*DEVICES, *(each for each in folders if not _within(os.path.dirname(each), folders))))
    return "\n".join([*(f"r{each}" for each in read), *(f"w{each}" for each in write), *(["n"] * sandbox.network)])


def _within(path: str, folders: tuple[str, ...]) -> bool:
    """Also where a link on the way leads into one of them."""
    real = [os.path.realpath(folder) for folder in folders]
    places = (path, os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path)))
    return any(PurePath(place).is_relative_to(folder) for place in places for folder in (*folders, *real))


def needed_by(command: str, cwd: str, path: str, writable: tuple[str, ...] = ()) -> list[str]:
    """Where a program's code lies: its file, its interpreters, and the libraries beside each.

    A file in a ``writable`` folder is not followed, for the server could make it lead elsewhere.
    """
    where = os.path.join(cwd, command) if os.sep in command else command
    found = shutil.which(where, path=path)
    needed: dict[str, None] = {}
    waiting = [found] if found else []
    while waiting:
        file = waiting.pop()
        if "\n" not in file and file not in needed:
            needed |= dict.fromkeys([file, *_libraries(file)])
            waiting += [] if _within(file, writable) else _leads_to(file, path)
    return list(needed)


def _libraries(file: str) -> Iterator[str]:
    folder = os.path.dirname(file)
    if os.path.basename(folder) == "bin":
        yield from (os.path.join(os.path.dirname(folder), name) for name in _BESIDE)


def _leads_to(file: str, path: str) -> list[str]:
    """The next file of a link, with every link between; the interpreter of a script, by its first line."""
    if os.path.islink(file):
        return [os.path.join(os.path.dirname(file), os.readlink(file)), os.path.realpath(file)]
    try:
        with open(file, "rb") as opened:
            first = opened.readline(1024)
    except OSError:
        return []
    words = first[2:].decode(errors="replace").split() if first.startswith(b"#!") else []
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    interpreter = shutil.which(words[0], path=path) if words else None
    return [interpreter] if interpreter else []
