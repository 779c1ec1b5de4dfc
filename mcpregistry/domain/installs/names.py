"""Names and versions of packages, checked before any program sees them: none is an option, an
address or a path."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from pathlib import PurePath

from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.servers.launch import check_url


class Ecosystem(StrEnum):
    """Where a package comes from. A bundle (MCPB) has an address and a SHA-256 in place of a name
    and a version."""

    NPM = "npm"
    PYPI = "pypi"
    MCPB = "mcpb"


_NAMES = {
    Ecosystem.NPM: re.compile(r"(?:@[a-z0-9][a-z0-9._~-]*/)?[a-z0-9][a-z0-9._~-]*"),
    Ecosystem.PYPI: re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"),
}
_VERSIONS = {
    Ecosystem.NPM: re.compile(r"\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?", re.ASCII),
    Ecosystem.PYPI: re.compile(r"(?:\d+!)?\d+(?:\.\d+)*[0-9A-Za-z.+_-]*", re.ASCII),
}
_SHA256 = re.compile(r"[0-9a-f]{64}")
_EXAMPLES = {
    Ecosystem.NPM: "@modelcontextprotocol/server-everything",
    Ecosystem.PYPI: "mcp-server-time",
}
_RUNNERS = {Ecosystem.NPM: "npx", Ecosystem.PYPI: "uvx"}
# Options by which they are told the package itself, and others that take a word of their own.
_FROM = {Ecosystem.NPM: {"-p", "--package"}, Ecosystem.PYPI: {"--from"}}
_WITH_VALUE = {
    Ecosystem.NPM: {"-c", "--call", "-w", "--workspace"},
    Ecosystem.PYPI: {
        "-p",
        "--python",
        "-w",
        "--with",
        "--with-requirements",
        "--index",
        "--default-index",
        "--directory",
    },
}
_NUMBERS = re.compile(r"\d{1,18}(?:\.\d{1,18})*", re.ASCII)
_PRE_RELEASE = re.compile(
    r"(?:^|[\d.])-?_?(?:a|b|c|rc|alpha|beta|pre|preview|dev)\.?\d*|-", re.IGNORECASE
)
_RELEASE = re.compile(r"(?<=.)(?:==|@).*")  # behind a name; not the scope of one of npm
MOST_SIGNS = 214
MOST_VERSION_SIGNS = 64
MOST_ADDRESS_SIGNS = 500
_PROGRAM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


def check_ecosystem(word: str) -> Ecosystem:
    """The ecosystem of this name. Raises ConfigInvalid."""
    try:
        return Ecosystem(word)
    except ValueError as error:
        raise ConfigInvalid(
            error_texts.say_not_valid(f"{word:.40}", "a kind of package"),
            remedy="Choose npm, pypi or mcpb.",
        ) from error


def check_name(ecosystem: Ecosystem, name: str) -> str:
    """The package's plain name. Raises ConfigInvalid for addresses, paths, options, versions and
    tags.

    Of a bundle its address, which has to be one of http or https.
    """
    if ecosystem == Ecosystem.MCPB:
        return _check_address(name)
    if len(name) > MOST_SIGNS or not _NAMES[ecosystem].fullmatch(name):
        raise ConfigInvalid(
            error_texts.say_not_valid(f"{name:.100}", f"a valid {ecosystem} package name"),
            remedy=f"Enter only the name, for example {_EXAMPLES[ecosystem]}, without address, path, option or version.",
        )
    return name


def check_version(ecosystem: Ecosystem, version: str) -> str:
    """One exact version; empty for the newest; of a bundle the SHA-256 of its file. Raises
    ConfigInvalid for anything else."""
    if ecosystem == Ecosystem.MCPB:
        return _check_sha256(version)
    if version and (
        len(version) > MOST_VERSION_SIGNS or not _VERSIONS[ecosystem].fullmatch(version)
    ):
        raise ConfigInvalid(
            error_texts.say_not_valid(f"{version:.80}", "an exact version"),
            remedy="Enter a version, for example 1.2.3, or leave the version empty to get the newest version.",
        )
    return version


def _check_address(address: str) -> str:
    if len(address) > MOST_ADDRESS_SIGNS:
        raise ConfigInvalid(
            error_texts.say_too_long("The bundle's address", MOST_ADDRESS_SIGNS, len(address)),
            remedy="Use a shorter address for the same file.",
        )
    return check_url(address, ("http", "https"))


def _check_sha256(sha256: str) -> str:
    if not _SHA256.fullmatch(sha256):
        raise ConfigInvalid(
            f'The version of a bundle must be the SHA-256 hash of its file (got "{sha256:.80}").',
            remedy="Enter the SHA-256 hash as 64 hexadecimal digits (0-9 and a-f).",
        )
    return sha256


def check_program(name: str) -> str:
    """The name of a program in the package; empty where the package has one only. Raises
    ConfigInvalid."""
    if name and not _PROGRAM.fullmatch(name):
        raise ConfigInvalid(
            error_texts.say_not_valid(f"{name:.80}", "a valid program name"),
            remedy="Enter only the name, without a path.",
        )
    return name


def normalize_name(ecosystem: Ecosystem, name: str) -> str:
    """The one spelling by which two names of the same package are equal."""
    return re.sub(r"[-_.]+", "-", name).lower() if ecosystem == Ecosystem.PYPI else name


def is_newer(version: str, than: str) -> bool:
    """Whether its numbers are higher (``1.10.0`` than ``1.9``). A pre-release is never newer,
    whatever its numbers."""
    return not _PRE_RELEASE.search(version) and _parse_version_numbers(
        version
    ) > _parse_version_numbers(than)


def _parse_version_numbers(version: str) -> tuple[int, tuple[int, ...]]:
    epoch, _, rest = version.rpartition("!")
    match = _NUMBERS.match(rest)
    found = [int(each) for each in match[0].split(".")] if match else []
    while found and not found[-1]:
        found.pop()
    return int(epoch or 0), tuple(found)


def list_runner_arguments(ecosystem: Ecosystem, package: str, command: Sequence[str]) -> list[str]:
    """What stands behind the program where npx or uvx starts it (``["uvx", "mcp-server-git", "-r",
    "/x"]``).

    Empty for other commands, and for other packages.
    """
    if not command or PurePath(command[0]).name != _RUNNERS.get(ecosystem):
        return []
    words = iter(command[1:])
    named = ""
    for word in words:
        option, _, value = word.partition("=")
        if option in _FROM[ecosystem]:
            named = value or next(words, "")
        elif word in _WITH_VALUE[ecosystem]:
            next(words, "")
        elif not word.startswith("-"):
            started = normalize_name(ecosystem, _RELEASE.sub("", named or word))
            return list(words) if started == normalize_name(ecosystem, package) else []
    return []
