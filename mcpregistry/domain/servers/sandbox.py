"""What a local server may touch, as people set it; and in words, how much of that a kernel can enforce."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from mcpregistry.domain.errors import ConfigInvalid

MOST_PATHS = 100
NEVER_COVERED = (
    "names, sizes and modes of files, and when they change (it may change mode, times and attributes of what belongs to this site's user, not"
    " the content)",
    "command lines of other processes in /proc, and its lists of connections and mounts",
    "how many processes it starts, how much memory and processor they take, and the priority of this user's others",
)
OPEN_NETWORK = "the network is open to it (TCP and UDP), this machine's own ports included"


@dataclass(frozen=True, slots=True)
class Policy:
    """A server's sandbox. Off: the rest counts for nothing."""

    enforced: bool = False
    network: bool = True
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()

    def no_wider_than(self, other: Policy) -> bool:
        """Whether a server under this policy may touch nothing that it could not under the ``other``."""
        if not other.enforced:
            return True
        readable = (*other.read, *other.write)
        return (
            self.enforced
            and self.network <= other.network
            and all(_within(path, other.write) for path in self.write)
            and all(_within(path, readable) for path in self.read)
        )

    def facts(self) -> dict[str, Any]:
        """For the launch that a person confirms."""
        return {"network": "all" if self.network else "none", "read": list(self.read), "write": list(self.write)}


@dataclass(frozen=True, slots=True)
class Protection:
    """``level``: full, partial or none. ``missing``: what this kernel cannot do; ``uncovered``: what is open anyway."""

    level: str
    missing: tuple[str, ...] = ()
    uncovered: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.level}: {'; '.join(self.missing)}" if self.missing else self.level


def check_paths(paths: Any, private: tuple[str, ...] = ()) -> list[str]:
    """Absolute paths in their plain spelling, none of which holds or lies in a ``private`` one, else ConfigInvalid."""
    if not isinstance(paths, list) or len(paths) > MOST_PATHS:
        raise ConfigInvalid(
            f"The sandbox's paths must be a list of at most {MOST_PATHS}.", remedy='Write e.g. ["/srv/docs"].'
        )
    for path in paths:
        if not isinstance(path, str) or not path.startswith("/") or any(sign < " " for sign in path):
            raise ConfigInvalid(f"'{path!s:.200}' is no absolute path.", remedy="Write e.g. /srv/docs.")
        if path != posixpath.normpath(path) or path.startswith("//"):
            raise ConfigInvalid(f"'{path}' has parts without a meaning.", remedy=f"Write {posixpath.normpath(path)}.")
        for own in private:
            if _within(own, (path,)) or _within(path, (own,)):
                raise ConfigInvalid(
                    f"'{path}' would open this site's own data or programs, or the kernel's, to the server.",
                    remedy=f"Name folders outside {own}.",
                )
    return paths


def protection(policy: Policy, *, abi: int, filtered: bool) -> Protection:
    """What is enforced where the kernel has this version of Landlock (0: none), with seccomp or without."""
    if not policy.enforced:
        return Protection("none", ("its sandbox is off: it runs with the rights of this site's user",))
    if not abi:
        return Protection("none", ("this kernel has no Landlock, so the server is not started",))
    missing = []
    if abi < 3:
        missing.append("files outside may be emptied (Landlock before version 3)")
    if abi < 6:
        missing.append(
            "signals reach other processes, its supervisor among them: what it starts may outlive it"
            " (Landlock before version 6)"
        )
    if abi < 4 and not policy.network and not filtered:
        missing.append("TCP is open (Landlock before version 4)")
    if not filtered:
        missing.append(
            "no filter of system calls on this machine: UDP and further protocols, sockets of other programs, namespaces,"
            " shared memory and queues, limits of other processes, the kernel's keys and log are open"
        )
    uncovered = (*((OPEN_NETWORK,) if policy.network else ()), *NEVER_COVERED)
    return Protection("partial" if missing else "full", tuple(missing), uncovered)


def _within(path: str, folders: tuple[str, ...]) -> bool:
    return any(PurePosixPath(path).is_relative_to(folder) for folder in folders)
