"""Recognises connections to this site that a program inside one of its own sandboxes has opened.

A launcher (``launcher.py``) stays the ancestor of all that its server starts, which the kernel
ensures. So processes below a launcher are inside, all others outside, and whoever holds the socket
has opened the connection. A program can hide a socket from ``/proc``, but cannot make a process
outside hold it. So a connection that nobody seems to hold comes from inside, unless a process
outside cannot be looked into, such as that of an SSH tunnel: then it may be that one's. If
``/proc`` is mounted with ``hidepid``, such processes are not seen at all, and their connections
count as ones from inside.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

Address = tuple[str, int]
_PROCESSES = "/proc"
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LAUNCHER = "mcpregistry/downstream/transports/launcher.py"
# words of a launcher's command line: python -I -S launcher.py CONTROL POLICY ARGV…
_PROGRAM = 3
_POLICY = 5
_WORD = 8  # hexadecimal digits of 32 bits of an address


@dataclass(frozen=True, slots=True)
class _SocketRow:
    """One socket in the kernel's table. ``inode`` is 0 for one that no program holds any more."""

    local: Address
    remote: Address
    user: int
    inode: int


@dataclass(frozen=True, slots=True)
class _Process:
    """``user`` is its effective one; of one that has ended (``is_zombie``) only the number is
    left."""

    pid: int
    parent: int
    user: int
    is_zombie: bool


def are_processes_hidden() -> bool:
    """Whether ``/proc`` shows only some processes to this one, as it does if it is mounted with
    ``hidepid``."""
    return os.path.isdir(_PROCESSES) and not _read_file(f"{_PROCESSES}/1/stat")


def is_from_sandbox(client: Address, server: Address) -> bool:
    """Return whether a confined server, or what it started, has opened this TCP connection to
    ``server``.

    Looks through the processes of this machine, which takes some milliseconds.
    """
    if not _is_of_this_machine(client[0]):
        return False
    processes = [*_iterate_processes()]
    launchers = [each.pid for each in processes if _is_confining(each.pid)]
    if not launchers:
        return False
    inside = _find_inside(
        processes, launchers
    )  # perhaps nobody: a program can hide itself if /proc is mounted with ``hidepid``
    rows = _find_rows(_normalize_address(client), _normalize_address(server))
    if rows and all(row.inode and row.user != os.geteuid() for row in rows):
        return False  # of another user, so not of a server
    sockets = {f"socket:[{row.inode}]" for row in rows if row.inode}
    if any(_has_socket(pid, sockets) for pid in inside):
        return True
    return not _can_be_outside(_iterate_outside(processes, inside), sockets)


def _can_be_outside(others: Iterator[int], sockets: set[str]) -> bool:
    """Whether one of these processes holds a socket, or, if none does, cannot be looked into."""
    is_closed = False
    for pid in others:
        answer = _has_socket(pid, sockets)
        if answer:
            return True
        is_closed |= answer is None
    return bool(sockets) and is_closed


def _iterate_outside(processes: list[_Process], inside: set[int]) -> Iterator[int]:
    """Processes of this user outside of the sandboxes; not the first of the machine, which opens no
    connections."""
    for each in reversed(processes):  # whoever connects was often started last
        if (
            each.pid not in inside
            and each.user == os.geteuid()
            and each.pid != 1
            and not each.is_zombie
        ):
            yield each.pid


def _iterate_processes() -> Iterator[_Process]:
    """All of this machine; none on systems without ``/proc``, which have no sandboxes either."""
    names = os.listdir(_PROCESSES) if os.path.isdir(_PROCESSES) else []
    for name in filter(str.isdecimal, names):
        try:
            with open(f"{_PROCESSES}/{name}/stat", "rb") as file:
                # its name may have brackets as well
                state, parent = file.read().rpartition(b")")[2].split()[:2]
            yield _Process(
                int(name), int(parent), os.stat(f"{_PROCESSES}/{name}").st_uid, state == b"Z"
            )
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            # has ended, or is hidden from this user
            continue


def _find_inside(processes: list[_Process], launchers: list[int]) -> set[int]:
    """Descendants of these launchers."""
    children: dict[int, list[int]] = {}
    for each in processes:
        children.setdefault(each.parent, []).append(each.pid)
    found = [child for pid in launchers for child in children.get(pid, [])]
    for pid in found:  # grows in the loop
        found += children.get(pid, [])
    return set(found)


def _is_confining(pid: int) -> bool:
    """Whether it is a launcher whose policy has a line for the sandbox; those for limits begin with
    a capital."""
    words = _read_file(f"{_PROCESSES}/{pid}/cmdline").decode(errors="replace").split("\0")
    if len(words) <= _POLICY or not words[_PROGRAM].endswith(_LAUNCHER):
        return False
    return any(line[:1].islower() for line in words[_POLICY].split("\n"))


def _is_of_this_machine(host: str) -> bool:
    """Whether it is an address of this machine: only such a one can be bound."""
    with socket.socket(
        socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM
    ) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


def _find_rows(client: Address, server: Address) -> list[_SocketRow]:
    """The client's sockets. A rule of the firewall may have led it here from another port: then all
    with its address count."""
    found = [row for row in _iterate_sockets(client[1]) if row.local == client]
    return [row for row in found if row.remote == server] or found


def _iterate_sockets(port: int) -> Iterator[_SocketRow]:
    """Those with this port of their own."""
    for table in _TABLES:
        for line in _read_file(table).decode().splitlines()[1:]:
            words = line.split()
            if not words[1].endswith(f":{port:04X}"):
                continue
            yield _SocketRow(
                _parse_address(words[1]), _parse_address(words[2]), int(words[7]), int(words[9])
            )


def _parse_address(text: str) -> Address:
    """An address of the kernel's table: words of 32 bits in this machine's byte order."""
    digits, _, port = text.partition(":")
    words = [int(digits[start : start + _WORD], 16) for start in range(0, len(digits), _WORD)]
    packed = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    return _normalize_address((str(ip_address(packed)), int(port, 16)))


def _normalize_address(address: Address) -> Address:
    """Without the name of an interface; one of IPv4 as such, also if it was written as one of
    IPv6."""
    parsed = ip_address(address[0].partition("%")[0])
    inner = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return str(inner or parsed), address[1]


def _has_socket(pid: int, sockets: set[str]) -> bool | None:
    """Whether any thread of the process holds one of these sockets; None if it cannot be looked
    into."""
    try:
        return any(
            _has_link_to(f"{_PROCESSES}/{pid}/task/{thread}/fd", sockets)
            for thread in _list_threads(pid)
        )
    except PermissionError:
        return None


def _list_threads(pid: int) -> list[str]:
    """Each may have descriptors of its own, and may live on after the first."""
    try:
        return os.listdir(f"{_PROCESSES}/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return []


def _has_link_to(folder: str, sockets: set[str]) -> bool:
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return any(_read_link(f"{folder}/{name}") in sockets for name in names)


def _read_link(link: str) -> str:
    try:
        return os.readlink(link)
    except (FileNotFoundError, ProcessLookupError):  # closed meanwhile
        return ""


def _read_file(path: str) -> bytes:
    """The file's content; empty if its process has ended, or it is not for us."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
