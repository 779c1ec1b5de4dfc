"""uv: a lock of one package, and an installation strictly from such a lock. No package is built:
wheels only."""

from __future__ import annotations

import configparser
import email
import os
from pathlib import Path

from mcpregistry.domain.installs import pypi as locks
from mcpregistry.domain.installs.lock import PackageLock
from mcpregistry.domain.installs.names import Ecosystem, normalize_name
from mcpregistry.domain.installs.reasons import InstallFailed
from mcpregistry.downstream.installers import programs
from mcpregistry.downstream.installers.exit_check import check_exit
from mcpregistry.downstream.installers.installer_process import InstallerPlace, run_installer

_VENV = "venv"
_MOST_METADATA = 1 << 20


def resolve(*, package: str, version: str, index: str, place: InstallerPlace) -> str:
    """The text of a lock, not yet read. Raises InstallFailed."""
    Path(place.build, "asked").write_text(locks.write_requirement(package, version))
    _run_uv(
        [
            "pip",
            "compile",
            "asked",
            "--generate-hashes",
            "--no-emit-index-url",
            "--no-header",
            "--no-annotate",
            "--only-binary",
            ":all:",
            "--python",
            programs.find_python(),
            "--output-file",
            "lock",
        ],
        index,
        place,
    )
    try:
        return Path(place.build, "lock").read_text()
    except (OSError, ValueError) as error:
        raise InstallFailed(
            "uv did not write a lock file.", remedy="Request the installation again."
        ) from error


def install(*, text: str, index: str, place: InstallerPlace) -> None:
    """What the lock says, and nothing else, into a virtual environment below ``place.build``.
    Raises InstallFailed."""
    Path(place.build, "lock").write_text(text)
    _run_uv(
        ["venv", _VENV, "--relocatable", "--no-project", "--python", programs.find_python()],
        index,
        place,
    )
    python = str(Path(place.build, _VENV, "bin", "python"))
    _run_uv(
        ["pip", "sync", "lock", "--require-hashes", "--only-binary", ":all:", "--python", python],
        index,
        place,
    )
    _compile(place)


def list_programs(lock: PackageLock, build: str) -> dict[str, list[str]]:
    """The command of each program that the package names: its interpreter and its file below
    ``build``."""
    folder = Path(build, _VENV, "bin")
    return {
        name: [str(folder / "python"), str(folder / name)]
        for name in _find_scripts(lock.package.name, build)
    }


def read_licences(build: str) -> dict[str, str]:
    """What the installed packages say of their licences, by name; those that say nothing are left
    out."""
    found = {}
    for file in Path(build, _VENV).glob("lib/python*/site-packages/*.dist-info/METADATA"):
        said = email.message_from_string(
            file.read_bytes()[:_MOST_METADATA].decode(errors="replace")
        )
        licence = said.get("License-Expression") or said.get("License") or ""
        if (name := said.get("Name")) and licence:
            found[normalize_name(Ecosystem.PYPI, name)] = licence.splitlines()[0][:100]
    return found


def _find_scripts(package: str, build: str) -> list[str]:
    """The console scripts of the package itself, not of those that it needs."""
    wanted = normalize_name(Ecosystem.PYPI, package)
    for file in Path(build, _VENV).glob("lib/python*/site-packages/*.dist-info/entry_points.txt"):
        if normalize_name(Ecosystem.PYPI, file.parent.name.split("-")[0]) == wanted:
            return _read_console_scripts(file)
    return []


def _read_console_scripts(file: Path) -> list[str]:
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(file.read_bytes()[:_MOST_METADATA].decode(errors="replace"))
    except configparser.Error:
        return []
    return [*parser["console_scripts"]] if "console_scripts" in parser else []


def _compile(place: InstallerPlace) -> None:
    """Compile all modules now: the folder is read-only afterwards, and each start would compile
    them again.

    Not by the environment's own Python, which would run the ``.pth`` lines of what was just
    installed. A module that is no valid Python stays as it is.
    """
    argv = [
        programs.find_python(),
        "-I",
        "-S",
        "-m",
        "compileall",
        "-q",
        os.path.join(place.build, _VENV, "lib"),
    ]
    run_installer(argv, place=place, env={})


def _run_uv(verb: list[str], index: str, place: InstallerPlace) -> None:
    env = programs.build_uv_env(place.home, index)
    found = run_installer(
        [programs.find_uv(), *verb, "--quiet"],
        place=place,
        env=env,
        read=programs.list_readable_files(index, os.devnull),
    )
    check_exit(*found, verb="uv " + " ".join(verb[:2]))
