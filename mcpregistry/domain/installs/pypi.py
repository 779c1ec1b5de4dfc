"""Requirements that are pinned and have their hashes, as ``uv pip compile --generate-hashes``
writes them."""

from __future__ import annotations

import re

from mcpregistry.domain.installs.lock import Locked, LockRefused, PackageLock, check_size
from mcpregistry.domain.installs.names import Ecosystem, check_name, check_version, normalize_name

_PINNED = re.compile(r"([A-Za-z0-9._-]+)==([^\s;]+)")
_HASH = re.compile(r"--hash=(sha256:[0-9a-f]{64})")
_ELSEWHERE = (
    "This site installs only packages from the Python package index, and it checks their hashes. "
    "Ask the developers for a version that needs only such packages."
)


def read(text: str, package: str) -> PackageLock:
    """The lock of one package with all it needs. Raises LockRefused, with the line at fault."""
    check_size(text)
    lines = [
        line
        for line in text.replace("\\\n", " ").splitlines()
        if line.strip() and not line.lstrip().startswith("#")
    ]
    check_size(text, len(lines))
    packages = tuple(_read_locked_line(line) for line in lines)
    wanted = normalize_name(Ecosystem.PYPI, package)
    top = next(
        (each for each in packages if normalize_name(Ecosystem.PYPI, each.name) == wanted), None
    )
    if top is None:
        raise LockRefused(
            f"The lock does not contain the package {package}.",
            remedy="Request the installation again. The site then makes a new lock.",
        )
    return PackageLock(Ecosystem.PYPI, top, packages)


def write_requirement(package: str, version: str) -> str:
    """The one line from which a lock is made."""
    return f"{package}=={version}\n" if version else f"{package}\n"


def _read_locked_line(line: str) -> Locked:
    first, *rest = line.split()
    pinned = _PINNED.fullmatch(first.rstrip(";"))
    if pinned is None or "@" in rest:
        raise LockRefused(
            f"{_name_requirement(line)} does not come from the Python package index, or has no exact version.",
            remedy=_ELSEWHERE,
        )
    name, version = pinned.groups()
    hashes = tuple(_HASH.findall(line))
    unknown = [word for word in rest if word.startswith("-") and not _HASH.fullmatch(word)]
    if unknown or not hashes:
        raise LockRefused(
            f"The Python package index does not provide a hash of the package {name}, so the download cannot be verified.",
            remedy=_ELSEWHERE,
        )
    return Locked(check_name(Ecosystem.PYPI, name), check_version(Ecosystem.PYPI, version), hashes)


def _name_requirement(line: str) -> str:
    """The name at the line's beginning; never an address, which may hold a password."""
    name = re.match(r"\s*([A-Za-z0-9._-]+)\s*(?:\[|@|=|<|>|$)", line)
    return f"The package {name.group(1)[:100]}" if name else "A package"
