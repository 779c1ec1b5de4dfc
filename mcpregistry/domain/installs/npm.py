"""npm's ``package-lock.json``, version 3: what is in it, and what is refused.

https://docs.npmjs.com/cli/configuring-npm/package-lock-json
"""

from __future__ import annotations

import json
import re
from typing import Any

from mcpregistry.domain.installs.lock import Locked, LockRefused, PackageLock, check_size
from mcpregistry.domain.installs.names import Ecosystem, check_name

_ELSEWHERE = (
    "This site installs only packages from the npm registry, and it checks their hashes. "
    "Ask the developers for a version that needs only such packages."
)
_RESOLVE_AGAIN = "Request the installation again. The site then makes a new lock."
_INTEGRITY = re.compile(r"sha(?:256|384|512)-[A-Za-z0-9+/]+={0,2}")  # SHA-1 alone names no file


def read(text: str, package: str) -> PackageLock:
    """The lock of one package with all it needs. Raises LockRefused, with the package at fault."""
    check_size(text)
    entries = _parse_lock_entries(text)
    check_size(text, len(entries))
    packages = tuple(_read_locked_package(path, entry) for path, entry in entries.items() if path)
    top = next((each for each in packages if each.path == f"node_modules/{package}"), None)
    root = entries.get("") or {}
    if top is None or list(root.get("dependencies") or {}) != [package] or root.get("workspaces"):
        raise LockRefused(
            f"The lock was not made for the package {package}.", remedy=_RESOLVE_AGAIN
        )
    return PackageLock(Ecosystem.NPM, top, packages)


def read_requested_package(text: str) -> dict[str, str]:
    """What the lock was made from: the package with the version as it was asked for."""
    found: dict[str, str] = _parse_lock_entries(text)[""]["dependencies"]
    return found


def write_manifest(package: str, version: str) -> str:
    """The ``package.json`` that asks for this package alone."""
    return json.dumps(
        {
            "name": "installed",
            "version": "1.0.0",
            "private": True,
            "dependencies": {package: version or "latest"},
        }
    )


def _parse_lock_entries(text: str) -> dict[str, dict[str, Any]]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LockRefused("The npm lock file is not valid JSON.", remedy=_RESOLVE_AGAIN) from error
    entries = document.get("packages") if isinstance(document, dict) else None
    if not isinstance(entries, dict) or document.get("lockfileVersion") != 3:
        raise LockRefused(
            "The npm lock file is not in format version 3.",
            remedy="Install npm 9 or newer on the machine of the worker, then request the installation again.",
        )
    if not all(isinstance(entry, dict) for entry in entries.values()):
        raise LockRefused(
            "The npm lock file does not have the expected format.", remedy=_RESOLVE_AGAIN
        )
    return entries


def _read_locked_package(path: str, entry: dict[str, Any]) -> Locked:
    name = _parse_package_name(path)
    version = entry.get("version")
    integrity = entry.get("integrity")
    if entry.get("link"):
        raise LockRefused(f"The package {name} is a link to a folder.", remedy=_ELSEWHERE)
    if resolved := entry.get("resolved"):
        raise LockRefused(
            f"The package {name} comes from {_describe_source(str(resolved))} instead of the npm registry.",
            remedy=_ELSEWHERE,
        )
    if not isinstance(version, str) or not isinstance(integrity, str):
        raise LockRefused(
            f"The npm registry does not provide a hash of the package {name}, so the download cannot be verified.",
            remedy=_ELSEWHERE,
        )
    hashes = tuple(word for word in integrity.split() if _INTEGRITY.fullmatch(word))
    if not hashes:
        raise LockRefused(
            f"The npm registry does not provide a hash of the package {name}, so the download cannot be verified.",
            remedy=_ELSEWHERE,
        )
    if entry.get("hasInstallScript"):
        raise LockRefused(
            f"The package {name} {version} needs to run a script during the installation (for example postinstall).",
            remedy="This site does not run such scripts. Choose a version or a server that does not need a script.",
        )
    check_name(Ecosystem.NPM, str(entry.get("name", name)))  # an alias has its real name here
    return Locked(
        str(entry.get("name", name)),
        version,
        hashes,
        _read_licence(entry),
        path,
        _read_programs(name, entry),
    )


def _parse_package_name(path: str) -> str:
    """``node_modules/a/node_modules/@b/c`` is the place of ``@b/c``."""
    if not path.startswith("node_modules/") or ".." in path.split("/"):
        raise LockRefused(
            f"'{path:.100}' is a folder, not a package from the npm registry.", remedy=_ELSEWHERE
        )
    return check_name(Ecosystem.NPM, path.rpartition("node_modules/")[2])


def _describe_source(address: str) -> str:
    """What kind of address it is, in words; the address itself may hold a token."""
    kind = address.partition(":")[0].lower()
    if kind.startswith(("git", "ssh")) or address.endswith(".git") or ".git#" in address:
        return "a git repository"
    return "a file" if kind == "file" else "another address"


def _read_licence(entry: dict[str, Any]) -> str:
    said = entry.get("license")
    return said[:100] if isinstance(said, str) else ""


def _read_programs(name: str, entry: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    said = entry.get("bin")
    if isinstance(said, str):
        said = {name.rpartition("/")[2]: said}
    pairs = said.items() if isinstance(said, dict) else ()
    return tuple((key, value) for key, value in pairs if isinstance(value, str))
