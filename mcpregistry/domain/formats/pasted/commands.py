"""Pasted command lines: what starts a server, or what adds one to a host (``claude mcp add …``). No
shell is involved."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import Any

from mcpregistry.domain.formats.document import Document
from mcpregistry.domain.formats.pasted import add_commands
from mcpregistry.domain.formats.pasted.common_entries import (
    make_refusal,
    name_from_address,
    name_from_command,
    read_common_entries,
)
from mcpregistry.domain.formats.pasted.files import read as read_file

_NOTHING_STARTED = "The text sets variables but starts no program."
_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_PROMPT = re.compile(r"^\s*(?:\$|%|>|PS [^>]*>)\s+")
_OPERATORS = {"&&", "||", "|", ";", "&", ">", ">>", "<", "2>&1"}
_GAP = re.compile(r"<[A-Za-z][^<>\n]*>")  # <your token>: one word to be filled in
# A variable, or a part of a line in which a dollar is only a dollar.
_VARIABLE = re.compile(r"'[^']*'|\\.|\$([A-Za-z_][A-Za-z0-9_]*)")


@dataclass
class _Line:
    """A command line, taken apart: what it sets, where it goes, what it starts."""

    words: list[str]
    env: dict[str, str] = field(default_factory=dict)
    cwd: str = ""


def read(text: str) -> tuple[str, Document]:
    """What it was taken for, and the entry. Raises FileInvalid."""
    line = _parse_line(text)
    words = line.words
    if words[1:] and "--add-mcp" in words:  # code --add-mcp '{"name": …}'
        what, document, _ = read_file(words[min(words.index("--add-mcp") + 1, len(words) - 1)])
        return f"a command that adds {what}", document
    if (added := add_commands.read_add_command(words)) is not None:
        name, entry = added
        return (
            f"a command that adds a server to {add_commands.HOSTS[_find_program_name(words[0])]}",
            _build_document(name, entry, line),
        )
    if re.match(r"https?://|wss?://", words[0]):
        return "an address", _build_document("", {"url": words[0]}, line)
    return "a command line", _build_document("", {"command": words[0], "args": words[1:]}, line)


def _build_document(name: str, entry: dict[str, Any], line: _Line) -> Document:
    if _is_a_command(entry):
        env = {**line.env, **entry.get("env", {})}
        entry["args"], env = _hide_container_values(entry["command"], entry.get("args", []), env)
        entry |= {"env": env} if env else {}
        entry |= {"cwd": line.cwd} if line.cwd else {}
        name = (
            name
            or name_from_command([entry["command"], *entry["args"]])
            or name_from_command([line.cwd or "server"])
        )
    return read_common_entries({name or name_from_address(str(entry.get("url", ""))): entry})


def _is_a_command(entry: dict[str, Any]) -> bool:
    """Not for what is of a wrong type: that is refused by name where entries are read."""
    args = entry.get("args", [])
    env = entry.get("env", {})
    listed = isinstance(args, list) and all(isinstance(word, str) for word in args)
    return isinstance(entry.get("command"), str) and listed and isinstance(env, dict)


def _parse_line(text: str) -> _Line:
    """One command with what was set for it before. Raises FileInvalid for several, and for what
    needs a shell."""
    env: dict[str, str] = {}
    found: list[list[str]] = []
    for raw in re.sub(r"\\\n\s*", " ", text).split("\n"):
        words = _split_words(_PROMPT.sub("", raw))
        while (
            words
            and words[0] in ("export", "set", "env")
            and all(_ASSIGNED.fullmatch(word) for word in words[1:])
        ):
            words = words[1:]
        if words and all(_ASSIGNED.fullmatch(word) for word in words):
            env |= dict(word.split("=", 1) for word in words)
        elif words:
            found.append(words)
    if len(found) != 1:
        raise make_refusal(
            "The text contains more than one command." if found else _NOTHING_STARTED,
            "Paste the one line that starts the server or adds it to a host.",
        )
    line = _Line(found[0], env)
    _parse_prefixes(line)
    return line


def _split_words(raw: str) -> list[str]:
    if raw.strip().startswith("#"):
        return []
    raw = _GAP.sub(lambda gap: re.sub(r"\s+", "-", gap[0]), raw)
    try:
        words = shlex.split(
            _VARIABLE.sub(lambda found: f"${{{found[1]}}}" if found[1] else found[0], raw)
        )
    except ValueError:
        raise make_refusal(
            "A quotation mark is not closed.", "Paste the whole line, with both quotation marks."
        ) from None
    return words


def _parse_prefixes(line: _Line) -> None:
    """``cd FOLDER &&``, ``env`` and ``NAME=value`` before the program become what they mean."""
    words = line.words
    if words[0] == "cd" and len(words) > 3 and words[2] in ("&&", ";"):
        line.cwd = words[1]
        words = words[3:]
    if words[0] == "env":
        words = words[1:]
    while words and (assigned := _ASSIGNED.fullmatch(words[0])):
        line.env[assigned[1]] = assigned[2]
        words = words[1:]
    if not words:
        raise make_refusal(_NOTHING_STARTED, "Paste the line that starts the program.")
    if any(word in _OPERATORS or word.endswith(";") for word in words) or any(
        "$(" in word for word in words
    ):
        raise make_refusal(
            "The line needs a shell, but servers are started without a shell.",
            "Paste one program with its arguments, or write a script that does the rest, and paste the command that starts this script.",
        )
    line.words = words


def _hide_container_values(
    program: str, args: list[str], env: dict[str, str]
) -> tuple[list[str], dict[str, str]]:
    """``-e NAME=value`` of a container becomes ``-e NAME`` and a variable: its value stays off the
    command line."""
    if _find_program_name(program) not in ("docker", "podman", "nerdctl"):
        return args, env
    words = [*args]
    env = {**env}
    for place, word in enumerate(words):
        option, _, joined = word.partition("=")
        if option == "--env" and (assigned := _ASSIGNED.fullmatch(joined)):
            words[place] = f"--env={assigned[1]}"
        elif (
            place
            and words[place - 1] in ("-e", "--env")
            and (assigned := _ASSIGNED.fullmatch(word))
        ):
            words[place] = assigned[1]
        else:
            continue
        env[assigned[1]] = assigned[2]
    return words, env


def _find_program_name(word: str) -> str:
    return re.split(r"[\\/]", word)[-1].lower()
