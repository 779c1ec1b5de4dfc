"""The interpreter of a script, found as the kernel finds it (``fs/binfmt_script.c``).

The launcher lets a server read its interpreter, so whatever a first line can make us take for one,
the server can read. Its text comes from the package. So only what the kernel itself would start
counts, and nothing is guessed.
"""

from __future__ import annotations

import os
import shutil

from mcpregistry.domain.errors import ConfigInvalid

READ_BYTES = 256  # BINPRM_BUF_SIZE: the kernel looks no further
MOST_INTERPRETERS = 5  # beyond it the kernel says ELOOP
_ELF = b"\x7fELF"
_BLANKS = b" \t"


def find_interpreters(file: str, path: str, trusted: tuple[str, ...]) -> list[str]:
    """The files that run this script, the nearest first; empty for a program or a file that cannot
    be read.

    ``path``: where ``#!/usr/bin/env NAME`` looks for its program. An interpreter may be a script
    itself only in a folder of that path or in a ``trusted`` one. Raises ConfigInvalid, with what to
    write instead.
    """
    found: list[str] = []
    folders = tuple(map(os.path.realpath, [*filter(None, path.split(os.pathsep)), *trusted]))
    while first := _read_script_line(file):
        if len(found) >= MOST_INTERPRETERS:
            raise _make_refusal(
                file, f"needs a chain of more than {MOST_INTERPRETERS} interpreters"
            )
        name, argument = parse_first_line(first, file)
        _check_interpreter(file, name, folders)
        found.append(name)
        if os.path.basename(name) == "env" or os.path.basename(os.path.realpath(name)) == "env":
            name = _find_by_env(file, argument, path)
            _check_interpreter(file, name, folders)
            found.append(name)
        file = name
    return found


def parse_first_line(first: bytes, file: str) -> tuple[str, str]:
    """Interpreter and its one argument (empty: none) of a script's first 256 bytes. Raises
    ConfigInvalid.

    Everything behind the interpreter is a single argument, also where it contains blanks.
    """
    head = first[:READ_BYTES]
    line, newline, _ = head.partition(b"\n")
    text = line[2:].strip(_BLANKS)
    if any(byte < 0x20 and byte != 0x09 for byte in text):
        raise _make_refusal(file, "has control characters in its first line")
    name, _, argument = text.replace(b"\t", b" ").partition(b" ")
    if not name:
        raise _make_refusal(file, "does not name an interpreter in its first line")
    if not newline and len(head) >= READ_BYTES and not argument:
        raise _make_refusal(
            file, f"has an interpreter of more than {READ_BYTES} bytes in its first line"
        )
    try:
        return name.decode(), argument.strip(_BLANKS).decode()
    except UnicodeDecodeError:
        raise _make_refusal(file, "has a first line that is not UTF-8") from None


def _read_script_line(file: str) -> bytes:
    """The first bytes of a script; empty for anything else."""
    try:
        if not os.path.isfile(file):
            return b""
        with open(file, "rb") as opened:
            first = opened.read(READ_BYTES)
    except OSError:
        return b""
    return first if first.startswith(b"#!") else b""


def _find_by_env(file: str, argument: str, path: str) -> str:
    if not argument or any(sign in argument for sign in " =/\\'\"$") or argument.startswith("-"):
        raise _make_refusal(
            file,
            f"starts with '#!/usr/bin/env {argument[:100]}', but only '#!/usr/bin/env NAME' is supported",
        )
    found = shutil.which(argument, path=path)
    if found is None or not os.path.isabs(found):
        raise _make_refusal(file, f"needs '{argument[:100]}', which is not in PATH")
    return found


def _check_interpreter(file: str, name: str, folders: tuple[str, ...]) -> None:
    """It is a program, or a script where programs are expected: no file whose text its owner keeps
    to himself."""
    if not os.path.isabs(name):
        raise _make_refusal(file, f"names the interpreter '{name[:100]}' without an absolute path")
    try:
        place = os.path.realpath(name)
    except OSError:  # a link of another process's in /proc
        place = ""
    if not os.path.isfile(place) or not os.access(place, os.X_OK):
        raise _make_refusal(file, f"names the interpreter '{name[:100]}', which cannot be started")
    if not _is_program(place) and not (
        _read_script_line(place) and os.path.dirname(place) in folders
    ):
        raise _make_refusal(file, f"names the interpreter '{name[:100]}', which is not a program")


def _is_program(place: str) -> bool:
    try:
        with open(place, "rb") as opened:
            return opened.read(len(_ELF)) == _ELF
    except OSError:
        return False


def _make_refusal(file: str, why: str) -> ConfigInvalid:
    return ConfigInvalid(
        f"The script '{file[:200]}' {why}.",
        remedy='Put the interpreter into the command, for example ["/usr/bin/python3", "-u", "/srv/server.py"], '
        "or use the absolute path of the interpreter in the script's first line.",
    )
