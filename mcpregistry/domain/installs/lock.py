"""A lock: every package that an installation consists of, by version and hash; and how two locks
differ."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.installs.names import Ecosystem

MOST_PACKAGES = 2_000
MOST_BYTES = 4 << 20


class LockRefused(ConfigInvalid):
    """What was resolved may not be installed here, whoever approves it."""

    code = "LOCK_REFUSED"


@dataclass(frozen=True, slots=True)
class Locked:
    """One package of a lock. ``hashes`` are those of all files that may stand for it; ``path`` is
    npm's place of it."""

    name: str
    version: str
    hashes: tuple[str, ...]
    licence: str = ""
    path: str = ""
    programs: tuple[tuple[str, str], ...] = ()  # name and file, as npm's lock says it


@dataclass(frozen=True, slots=True)
class PackageLock:
    """What ``npm.read`` and ``pypi.read`` make of a lock's text, with the package that was asked
    for."""

    ecosystem: Ecosystem
    package: Locked
    packages: tuple[Locked, ...]


@dataclass(frozen=True, slots=True)
class PackageChange:
    """What became of one package between two locks; an empty version: it is in one of them
    alone."""

    name: str
    before: str
    after: str
    hashes: bool  # other files under the same version

    def __str__(self) -> str:
        if not self.before:
            return f"{self.name} {self.after} was added"
        if not self.after:
            return f"{self.name} {self.before} was removed"
        if self.before == self.after:
            return f"{self.name} {self.after} has other files with the same version"
        return f"{self.name} {self.before} → {self.after}"


def hash_lock(text: str) -> str:
    """The SHA-256 of a lock's text, in hexadecimal: it names the folder that is made from it."""
    return hashlib.sha256(text.encode()).hexdigest()


def check_size(text: str, packages: int = 0) -> None:
    """Raises LockRefused for a lock that nobody could look through."""
    if len(text) > MOST_BYTES or packages > MOST_PACKAGES:
        raise LockRefused(
            f"The server needs more than {MOST_PACKAGES:,} packages, or its lock is larger than {MOST_BYTES >> 20} MB.",
            remedy="Choose a server that needs fewer packages.",
        )


def compare_locks(before: PackageLock | None, after: PackageLock) -> list[PackageChange]:
    """Every package that is not the same in both, by name; all of them where there is no lock
    before."""
    old = _group_by_name(before)
    new = _group_by_name(after)
    changes = [
        _compare_package(name, old.get(name, {}), new.get(name, {}))
        for name in sorted({*old, *new})
    ]
    return [change for change in changes if change is not None]


def _group_by_name(lock: PackageLock | None) -> dict[str, dict[str, set[str]]]:
    found: dict[str, dict[str, set[str]]] = {}
    for each in lock.packages if lock else ():  # npm may have several versions of one package
        found.setdefault(each.name, {}).setdefault(each.version, set()).update(each.hashes)
    return found


def _compare_package(
    name: str, before: dict[str, set[str]], after: dict[str, set[str]]
) -> PackageChange | None:
    if before == after:
        return None
    return PackageChange(
        name, ", ".join(sorted(before)), ", ".join(sorted(after)), hashes={*before} == {*after}
    )
