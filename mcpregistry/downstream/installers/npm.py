"""npm: a lock of one package, and an installation strictly from such a lock. No script of any
package is run."""

from __future__ import annotations

from pathlib import Path

from mcpregistry.domain.installs import npm as locks
from mcpregistry.domain.installs.lock import Lock
from mcpregistry.domain.installs.reasons import InstallFailed
from mcpregistry.downstream.installers import programs
from mcpregistry.downstream.installers.ending import ended
from mcpregistry.downstream.installers.running import Place, run

_QUIET = ("--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund")
_MANIFEST = "package.json"
_LOCK = "package-lock.json"


def resolve(*, package: str, version: str, registry: str, place: Place) -> str:
    """The text of a lock, not yet read. Raises InstallFailed."""
    Path(place.build, _MANIFEST).write_text(locks.manifest(package, version))
    _npm(["install", "--package-lock-only"], registry, place)
    try:
        return Path(place.build, _LOCK).read_text()
    except (OSError, ValueError) as error:
        raise InstallFailed(
            "npm did not write a lock file.", remedy="Retry the installation."
        ) from error


def install(*, lock: Lock, text: str, registry: str, place: Place) -> None:
    """What the lock says, and nothing else, into ``place.build``. Raises InstallFailed."""
    asked = locks.asked_for(text)
    Path(place.build, _MANIFEST).write_text(
        locks.manifest(lock.package.name, asked[lock.package.name])
    )
    Path(place.build, _LOCK).write_text(text)
    _npm(["ci"], registry, place)


def programs_of(lock: Lock, build: str) -> dict[str, list[str]]:
    """The command of each program that the package names, as a file below ``build``."""
    return {
        name: [programs.node(), str(Path(build, lock.package.path, file))]
        for name, file in lock.package.programs
    }


def _npm(verb: list[str], registry: str, place: Place) -> None:
    argv = [programs.npm(), *verb, *_QUIET]
    programs.node()
    env = programs.for_npm(place.home, registry)
    ended(*run(argv, place=place, env=env, read=programs.readable()), verb="npm " + verb[0])
