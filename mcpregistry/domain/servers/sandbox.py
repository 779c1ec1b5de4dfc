"""What a local server may touch and use, as people set it; and in words, how much of that a machine
can enforce."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.servers.target import Ports, ResourceBounds

MOST_PATHS = 100
MOST_PORTS = 100
LAST_PORT = 65_535
NAMES = (
    "names, sizes, modes and change times of files (the server can change mode, times and attributes of the files of this"
    " site's user, but not their content)"
)
OTHERS = (
    "command lines of other processes in /proc, the lists of connections and mounts there, and the priority of other"
    " processes of this user"
)
OPEN_NETWORK = "the network is open (TCP and UDP), including ports of this machine"
SOME_PORTS = (
    "its TCP ports are open at every address, including this machine; UDP is closed, so host names can only be resolved"
    " over TCP (port 53)"
)
ANY_LISTENING = "it can also listen on a port that the kernel chooses"


@dataclass(frozen=True, slots=True)
class SandboxPolicy:
    """A server's sandbox. Off: the rest counts for nothing. ``ports``: of a network, these
    alone."""

    enforced: bool = False
    network: bool = True
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    ports: Ports | None = None
    strict: bool = False

    def is_within(self, other: SandboxPolicy) -> bool:
        """Whether a server under this policy may touch nothing that it could not under the
        ``other``."""
        if not other.enforced:
            return True
        readable = (*other.read, *other.write)
        return (
            self.enforced
            and self.strict >= other.strict
            and self._is_reach_within(other)
            and all(_is_within(path, other.write) for path in self.write)
            and all(_is_within(path, readable) for path in self.read)
        )

    def _is_reach_within(self, other: SandboxPolicy) -> bool:
        if not self.network or not other.network or other.ports is None:
            return self.network <= other.network
        mine = self.ports
        theirs = other.ports
        return (
            mine is not None
            and {*mine.connect} <= {*theirs.connect}
            and {*mine.listen} <= {*theirs.listen}
        )

    def facts(self) -> dict[str, Any]:
        """Return what a person confirms of it, as part of the launch."""
        facts: dict[str, Any] = {
            "network": self.reach(),
            "read": list(self.read),
            "write": list(self.write),
        }
        if self.network and self.ports is not None:
            facts |= {"connect": list(self.ports.connect), "listen": list(self.ports.listen)}
        return facts | ({"strict": True} if self.strict else {})

    def reach(self) -> str:
        """all, ports or none."""
        if not self.network:
            return "none"
        return "all" if self.ports is None else "ports"


@dataclass(frozen=True, slots=True)
class Machine:
    """What a machine has to confine with: Landlock's version (0: none), a filter of system calls,
    and bubblewrap.

    ``no_namespaces``: why there are none of its own for a server; empty where there are.
    """

    abi: int
    filtered: bool
    no_namespaces: str = ""


@dataclass(frozen=True, slots=True)
class Protection:
    """``level``: full, partial or none. ``missing``: what this kernel cannot do; ``uncovered``:
    what is open anyway."""

    level: str
    missing: tuple[str, ...] = ()
    uncovered: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.level}: {'; '.join(self.missing)}" if self.missing else self.level


def check_paths(paths: Any, private: tuple[str, ...] = ()) -> list[str]:
    """Absolute paths in their plain spelling, none of which holds or lies in a ``private`` one,
    else ConfigInvalid."""
    if not isinstance(paths, list) or len(paths) > MOST_PATHS:
        raise ConfigInvalid(
            f"The paths that the sandbox allows must be a list with at most {MOST_PATHS} entries.",
            remedy=error_texts.advise_form("a list", '["/srv/docs"]'),
        )
    for path in paths:
        if (
            not isinstance(path, str)
            or not path.startswith("/")
            or any(sign < " " for sign in path)
        ):
            raise ConfigInvalid(
                error_texts.say_not_valid(f"{path!s:.200}", "an absolute path"),
                remedy=error_texts.advise_form("a path that starts with /", "/srv/docs"),
            )
        if path != posixpath.normpath(path) or path.startswith("//"):
            raise ConfigInvalid(
                error_texts.say_not_valid(path, "a path in its shortest form"),
                remedy=f"Write {posixpath.normpath(path)}.",
            )
        for own in private:
            if _is_within(own, (path,)) or _is_within(path, (own,)):
                raise ConfigInvalid(
                    f"With '{path}', the server could access data or programs of this site, or data of the kernel.",
                    remedy=f"Choose folders outside {own}.",
                )
    return paths


def check_ports(ports: Any) -> list[int]:
    """Numbers of TCP ports, each once, else ConfigInvalid."""
    if not isinstance(ports, list) or len(ports) > MOST_PORTS:
        raise ConfigInvalid(
            f"The ports that the sandbox allows must be a list with at most {MOST_PORTS} entries.",
            remedy=error_texts.advise_form("a list", "[443]"),
        )
    for port in ports:
        if type(port) is not int or not 1 <= port <= LAST_PORT:
            raise ConfigInvalid(
                error_texts.say_not_valid(f"{port!s:.50}", "a TCP port"),
                remedy=f"Use a number from 1 to {LAST_PORT}.",
            )
    if len({*ports}) < len(ports):
        raise ConfigInvalid(
            "The sandbox's ports contain the same port more than once.",
            remedy="List each port once.",
        )
    return ports


def describe_protection(
    policy: SandboxPolicy, machine: Machine, bounds: ResourceBounds | None = None
) -> Protection:
    """What is enforced on this ``machine``."""
    bounds = bounds or ResourceBounds()
    if not policy.enforced:
        return Protection(
            "none", ("its sandbox is disabled: it runs with the rights of this site's user",)
        )
    if policy.strict and machine.no_namespaces:
        return Protection("none", (f"{machine.no_namespaces}, so the server is not started",))
    if not policy.strict and not machine.abi:
        return Protection("none", ("this kernel has no Landlock, so the server is not started",))
    missing = (
        *_list_missing_port_rules(policy, machine),
        *(_list_missing_strict_protection if policy.strict else _list_missing_protection)(
            policy, machine
        ),
    )
    return Protection(
        "partial" if missing else "full",
        missing,
        (*_list_open_access(policy, machine), *_describe_missing_limits(bounds)),
    )


def _list_missing_port_rules(policy: SandboxPolicy, machine: Machine) -> tuple[str, ...]:
    if policy.reach() != "ports" or (machine.abi >= 4 and machine.filtered):
        return ()
    if machine.abi >= 4:
        return (
            "without a system-call filter, its TCP ports can be bypassed (TCP Fast Open), and UDP is open",
        )
    return ("every TCP port is open, not only the listed ones (Landlock before version 4)",)


def _list_missing_protection(policy: SandboxPolicy, machine: Machine) -> tuple[str, ...]:
    missing = []
    if machine.abi < 3:
        missing.append("files outside its folders can be truncated (Landlock before version 3)")
    if machine.abi < 6:
        missing.append(
            "signals can reach other processes, including the supervisor of the server, so processes that the server starts may"
            " continue to run after the server has ended (Landlock before version 6)"
        )
    if not policy.network and not machine.filtered:
        way = (
            "Landlock before version 4"
            if machine.abi < 4
            else "with TCP Fast Open, which bypasses Landlock"
        )
        missing.append(f"TCP is open ({way})")
    if not machine.filtered:
        missing.append(
            "this machine has no system-call filter: UDP and other protocols, sockets of other programs, namespaces,"
            " shared memory and queues, limits of other processes, and the kernel's keys and log are open"
        )
    return tuple(missing)


def _list_missing_strict_protection(policy: SandboxPolicy, machine: Machine) -> tuple[str, ...]:
    """What is left to the filter alone where files, processes and shared memory are the server's
    own."""
    if machine.filtered:
        return ()
    sockets = "abstract sockets of other programs, " if policy.network and machine.abi < 6 else ""
    return (
        f"this machine has no system-call filter: other protocols, {sockets}nested namespaces, and the kernel's keys and"
        " log are open",
    )


def _list_open_access(policy: SandboxPolicy, machine: Machine) -> tuple[str, ...]:
    network = {"all": (OPEN_NETWORK,), "ports": (SOME_PORTS,), "none": ()}[policy.reach()]
    if policy.reach() == "ports" and policy.ports and policy.ports.listen:
        network = (*network, ANY_LISTENING)
    return network if policy.strict else (*network, NAMES, OTHERS)


def _describe_missing_limits(bounds: ResourceBounds) -> tuple[str, ...]:
    """Of what it uses, that which has no limit."""
    named = (
        ("memory", bounds.memory_mb),
        ("processes", bounds.processes),
        ("processor time", bounds.cpu_seconds),
    )
    free = [name for name, most in named if not most]
    return (f"it can use any amount of: {', '.join(free)} (no limit is set)",) if free else ()


def _is_within(path: str, folders: tuple[str, ...]) -> bool:
    return any(PurePosixPath(path).is_relative_to(folder) for folder in folders)
