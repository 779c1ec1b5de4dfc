"""What the readers of pasted text share: how it is called in messages, and the name that a server
is proposed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from mcpregistry.domain.formats.document import Document, Json
from mcpregistry.domain.formats.keys import make_slug
from mcpregistry.domain.formats.mcpservers import MCPSERVERS
from mcpregistry.domain.formats.notes import FileInvalid

NAME = "pasted text"
_GENERIC = {
    "",
    "index",
    "main",
    "server",
    "mcp",
    "build",
    "dist",
    "src",
    "bin",
    "lib",
    "out",
    "app",
    "run",
    "start",
    "cli",
}
_ABOUT = re.compile(
    r"(?i)^(?:mcp[-_.]server[-_.]|server[-_.]|mcp[-_.])+|(?:[-_.]mcp[-_.]server|[-_.]server|[-_.]mcp)+$"
)
_RUNNERS = {
    "npx",
    "uvx",
    "bunx",
    "pnpm",
    "yarn",
    "uv",
    "node",
    "python",
    "python3",
    "deno",
    "bun",
    "dlx",
    "run",
    "tool",
    "exec",
    "pipx",
}
_CONTAINERS = {"docker", "podman", "nerdctl"}
# Options of containers that are followed by a value.
_VALUED = {
    "-e",
    "--env",
    "-v",
    "--volume",
    "--mount",
    "--name",
    "-p",
    "--publish",
    "--network",
    "--net",
    "--env-file",
    "-u",
    "--user",
    "-w",
    "--workdir",
    "--entrypoint",
    "--platform",
    "-l",
    "--label",
}
_PACKAGED = {
    "--from",
    "--with",
    "--directory",
    "--project",
    "--python",
    "-p",
    "--package",
    "--index",
    "--cwd",
    "--prefix",
}


def read_common_entries(entries: Mapping[str, Json]) -> Document:
    """Entries as most hosts spell them, read as a file of any of them would be."""
    return MCPSERVERS.read({"mcpServers": dict(entries)}, NAME)


def make_refusal(sentence: str, remedy: str) -> FileInvalid:
    """What was pasted cannot be used: why, and what to paste instead. It never repeats what was
    pasted."""
    return FileInvalid(NAME, sentence, remedy=remedy)


def name_from_command(words: Sequence[str]) -> str:
    """A short name for what a command line starts: of its package, image or script; empty where
    none tells."""
    program = _find_program_base(words[0])
    if program in _CONTAINERS:
        return _trim_package_name(_find_image(words[1:]))
    for word in _list_plain_arguments(words[1:]) if program in _RUNNERS else ():
        if _find_program_base(word) not in _RUNNERS and (found := _trim_package_name(word)):
            return found
    return "" if program in _RUNNERS else _trim_package_name(words[0])


def name_from_address(url: str) -> str:
    """A short name for what lies at an address: of its host."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        host = ""
    if re.fullmatch(r"[0-9.]+|.*:.*|localhost", host):
        return "local" if host else "server"
    labels = [
        label
        for label in host.split(".")[:-1]
        if label not in ("mcp", "api", "www", "co", "com", "server")
    ]
    return make_slug(labels[-1] if labels else host) or "server"


def _list_plain_arguments(words: Sequence[str]) -> list[str]:
    """The words that are no options and no values of options that we know."""
    found = []
    skip = False
    for word in words:
        if not skip and not word.startswith("-"):
            found.append(word)
        skip = word in _PACKAGED
    return found


def _find_image(words: Sequence[str]) -> str:
    skip = True  # the first word is "run"
    for word in words:
        if skip:
            skip = False
        elif word.startswith("-"):
            skip = word in _VALUED
        else:
            return word
    return ""


def _find_program_base(word: str) -> str:
    return re.split(r"[\\/]", word)[-1].lower().removesuffix(".exe").removesuffix(".cmd")


def _trim_package_name(word: str) -> str:
    """The telling part of a package's, image's or script's name; of a path with a generic end the
    folder before it."""
    parts = [
        part
        for part in re.split(r"[\\/]", word.split("#", 1)[0].rstrip("/"))
        if part not in ("", ".", "..")
    ]
    for part in reversed(parts):
        plain = re.sub(r"(?<=.)@.*$|[:@][^:@]*$|\.(?:js|mjs|cjs|ts|py|jar|sh|exe|git)$", "", part)
        plain = make_slug(_ABOUT.sub("", plain).replace("_", "-"))
        if plain.lower() not in _GENERIC and "${" not in part:
            return plain.lower()
    return ""
