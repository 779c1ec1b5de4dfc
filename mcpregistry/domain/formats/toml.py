"""TOML to plain data: Codex keeps its servers in it."""

from __future__ import annotations

import re
import tomllib
from datetime import date, time
from typing import Any

from mcpregistry.domain.formats.document import Json, JsonObject
from mcpregistry.domain.formats.notes import FileInvalid

_TABLE = re.compile(
    r"\[\[?\s*[A-Za-z0-9_-]+(?:\s*\.\s*(?:[A-Za-z0-9_-]+|\"[^\"\n]*\"|'[^'\n]*'))*\s*\]\]?\s*(?:#.*)?"
)
_VALUE = re.compile(r"[A-Za-z0-9_.-]+\s*=\s*(?:[\"'\[{]|[-+]?\d|true\b|false\b).*")


def is_toml(text: str) -> bool:
    """Whether the first line with content is a table or an assignment of TOML. JSON and YAML have
    no such line."""
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            return bool(_TABLE.fullmatch(line.strip()) or _VALUE.fullmatch(line.strip()))
    return False


def load_toml(text: str, file: str) -> JsonObject:
    """The root of a TOML file; its dates and times become text. Raises FileInvalid, which quotes no
    value."""
    try:
        return {key: _convert_plain(value) for key, value in tomllib.loads(text).items()}
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at [^)]*\)", str(error))  # the rest may quote a value
        sentence = f"The file is not valid TOML {place[0] if place else ''}".rstrip() + "."
        raise FileInvalid(file, sentence, remedy="Correct the TOML at this place.") from None
    except RecursionError:
        raise FileInvalid(
            file, "The values of the file are nested too deeply.", remedy="Use fewer levels."
        ) from None


def _convert_plain(value: Any) -> Json:
    if isinstance(value, dict):
        return {key: _convert_plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_convert_plain(each) for each in value]
    return value.isoformat() if isinstance(value, date | time) else value


def format_place(pointer: str) -> str:
    """A JSON pointer as TOML writes the place: ``[mcp_servers.git] command``."""
    parts = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    table = parts[:2]
    rest = parts[2:]
    named = ".".join(
        part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else f'"{part}"' for part in table
    )
    return f"[{named}] {'.'.join(rest)}".rstrip() if table else pointer
