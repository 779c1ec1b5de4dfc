"""npm: a lock of one package, and an installation strictly from such a lock. No script of any
package is run."""

from __future__ import annotations

from pathlib import Path

from mcpregistry.domain.installs import npm as locks
from mcpregistry.domain.installs.lock import PackageLock
from mcpregistry.domain.installs.reasons import InstallFailed
from mcpregistry.downstream.installers import programs
from mcpregistry.downstream.installers.exit_check import check_exit
from mcpregistry.downstream.installers.installer_process import InstallerPlace, run_installer

_QUIET = ("--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund")
_MANIFEST = "package.json"
_LOCK = "package-lock.json"


def resolve(*, package: str, version: str, registry: str, place: InstallerPlace) -> str:
    """The text of a lock, not yet read. Raises InstallFailed."""
    Path(place.build, _MANIFEST).write_text(locks.write_manifest(package, version))
    _run_npm(["install", "--package-lock-only"], registry, place)
    try:
        return Path(place.build, _LOCK).read_text()
    except (OSError, ValueError) as error:
        raise InstallFailed(
            "npm did not write a lock file.", remedy="Request the installation again."
        ) from error


def install(*, lock: PackageLock, text: str, registry: str, place: InstallerPlace) -> None:
    """What the lock says, and nothing else, into ``place.build``. Raises InstallFailed."""
    asked = locks.read_requested_package(text)
    Path(place.build, _MANIFEST).write_text(
        locks.write_manifest(lock.package.name, asked[lock.package.name])
    )
    Path(place.build, _LOCK).write_text(text)
    _run_npm(["ci"], registry, place)


def list_programs(lock: PackageLock, build: str) -> dict[str, list[str]]:
    """The command of each program that the package names, as a file below ``build``."""
    return {
        name: [programs.find_node(), str(Path(build, lock.package.path, file))]
        for name, file in lock.package.programs
    }


def _run_npm(verb: list[str], registry: str, place: InstallerPlace) -> None:
    argv = [programs.find_npm(), *verb, *_QUIET]
    programs.find_node()
    env = programs.build_npm_env(place.home, registry)
    check_exit(
        *run_installer(argv, place=place, env=env, read=programs.list_readable_files()),
        verb="npm " + verb[0],
    )
