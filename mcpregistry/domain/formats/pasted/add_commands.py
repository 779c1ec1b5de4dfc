"""``claude mcp add …`` and its kin: the commands by which hosts are given a server, read word by
word."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mcpregistry.domain.formats.pasted.common_entries import make_refusal

HOSTS = {
    "claude": "Claude Code",
    "codex": "Codex",
    "gemini": "Gemini CLI",
    "qwen": "Qwen Code",
    "copilot": "Copilot CLI",
    "opencode": "opencode",
    "amp": "Amp",
    "droid": "Factory",
    "cursor-agent": "Cursor",
    "q": "Amazon Q",
    "kiro-cli": "Kiro",
}
_ENV = "env"
_HEADER = "header"
_URL = "url"
_KIND = "kind"
_BEARER = "bearer"
_OPTIONS = {
    "-e": _ENV,
    "--env": _ENV,
    "-H": _HEADER,
    "--header": _HEADER,
    "--url": _URL,
    "-t": _KIND,
    "--transport": _KIND,
    "--type": _KIND,
    "--bearer-token-env-var": _BEARER,
    # What concerns the host alone: taken with its value, and left out.
    **dict.fromkeys(
        (
            "-s",
            "--scope",
            "--timeout",
            "--client-id",
            "--callback-port",
            "--tools",
            "--description",
            "--include-tools",
            "--exclude-tools",
            "--name",
            "--oauth-client-id",
            "--cwd",
            "--agent",
            "--workspace",
        ),
        "",
    ),
}
_ASSIGNED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_ADDRESS = re.compile(r"(?:https?|wss?)://", re.IGNORECASE)


@dataclass
class _Said:
    """What the options and the words between them said."""

    plain: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    url: str = ""
    kind: str = ""


def read_add_command(words: Sequence[str]) -> tuple[str, dict[str, Any]] | None:
    """The server's name and entry; None where the words add nothing to a host. Raises
    FileInvalid."""
    host = re.split(r"[\\/]", words[0])[-1].lower()
    if (
        host not in HOSTS
        or len(words) < 3
        or words[1] != "mcp"
        or words[2] not in ("add", "add-json")
    ):
        return None
    if words[2] == "add-json":
        return _read_add_json([word for word in words[3:] if not word.startswith("-")])
    said = _parse_add_options(words[3:])
    if not said.plain:
        raise make_refusal("The command does not name a server.", "Paste the whole line.")
    name, *rest = said.plain
    url = said.url or next((word for word in rest[:1] if _ADDRESS.match(word)), "")
    if url:
        kind = {"type": said.kind} if said.kind in ("http", "sse") else {}
        return name, {"url": url} | kind | ({"headers": said.headers} if said.headers else {})
    if not rest:
        raise make_refusal(
            "The command contains neither a program to start nor an address.",
            "Paste the whole line.",
        )
    return name, {"command": rest[0], "args": rest[1:]} | ({"env": said.env} if said.env else {})


def _read_add_json(words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    try:
        name = words[0]
        text = words[1]
        entry = json.loads(text)
    except (IndexError, ValueError, RecursionError):
        entry = None
    if not isinstance(entry, dict):
        raise make_refusal(
            "The JSON in the command is not valid.",
            "Paste the whole line, with the quotation marks around the JSON.",
        )
    return name, entry


def _parse_add_options(words: Sequence[str]) -> _Said:
    """Options until the program begins; from there on, and behind ``--``, every word is the
    server's own."""
    said = _Said()
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        option, joined, value = word.partition("=")
        if word == "--":
            said.plain += waiting
            break
        if option in _OPTIONS:
            if not joined and waiting:
                value = waiting.pop(0)
            _take(said, _OPTIONS[option], value)
            while _OPTIONS[option] == _ENV and waiting and _ASSIGNED.fullmatch(waiting[0]):
                _take(said, _ENV, waiting.pop(0))
        elif not word.startswith("-"):
            said.plain.append(word)
            if len(said.plain) == 2 and not _ADDRESS.match(word):
                said.plain += waiting[1:] if waiting[:1] == ["--"] else waiting
                break
    return said


def _take(said: _Said, what: str, value: str) -> None:
    if what == _ENV:
        name, _, text = value.partition("=")
        said.env[name] = text
    elif what == _HEADER:
        name, _, text = re.sub(r"\s*[:=]\s*", "\0", value, count=1).partition("\0")
        said.headers[name.strip()] = text.strip()
    elif what == _BEARER:
        said.headers["Authorization"] = f"Bearer ${{{value}}}"
    elif what == _URL:
        said.url = value
    elif what == _KIND:
        said.kind = value.lower().replace("streamable-", "")
