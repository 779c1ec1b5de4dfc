"""Secrets of a document become references to variables before it is written to a file.

Every literal value of ``env`` and ``headers`` counts as a secret; elsewhere the name of the key or
flag decides. Each becomes ``${VAR}``, so that the file works again once the variable is set, and
each is reported. Values that are references already stay.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from mcpregistry.domain.formats.document import Document, Json, JsonObject, Parked, ServerEntry
from mcpregistry.domain.formats.notes import FormatReport, make_pointer
from mcpregistry.domain.formats.placeholders import is_reference
from mcpregistry.domain.text.redaction import find_secret_spans
from mcpregistry.domain.text.secret_names import is_secret_name


def name_secret_variable(*words: str) -> str:
    """A name for the environment variable that shall hold a value, from the words that name its
    place."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", "_".join(words)).strip("_").upper()
    return name if name[:1].isalpha() else f"VALUE_{name}"


def redact(document: Document, file: str) -> tuple[Document, FormatReport]:
    """The document without secrets, and a note for each one that was taken out."""
    report = FormatReport(file)
    servers = tuple(_redact_server(server, report) for server in document.servers)
    plain = replace(
        document,
        servers=servers,
        expert_tools=tuple(
            _redact_tool(tool, index, report) for index, tool in enumerate(document.expert_tools)
        ),
        providers=_redact_plain_data(dict(document.providers), ("providers",), report),
        inputs=tuple(_redact_input(item, report) for item in document.inputs),
        parked=_redact_parked(document.parked, (), report),
    )
    return plain, report


# In an expert tool these hold schemas and names of others, so a secret-looking key there means no
# secret.
_NO_VALUES = ("arguments", "output_schema", "internal_tools")


def _redact_tool(tool: JsonObject, index: int, report: FormatReport) -> JsonObject:
    place = ("tools", str(index))
    return {
        key: value if key in _NO_VALUES else _redact_plain_data({key: value}, place, report)[key]
        for key, value in tool.items()
    }


def _redact_server(server: ServerEntry, report: FormatReport) -> ServerEntry:
    key = server.key
    env = {
        name: _make_reference(value, _name_secret(name), (key, "env", name), report, "env")
        for name, value in server.env.items()
    }
    headers = {
        name: _make_reference(
            value, name_secret_variable(key, name), (key, "headers", name), report, "headers"
        )
        for name, value in server.headers.items()
    }
    oauth = server.oauth
    if oauth and oauth.client_secret:
        name = name_secret_variable(key, "client_secret")
        oauth = replace(
            oauth,
            client_secret=_make_reference(
                oauth.client_secret, name, (key, "client_secret"), report, "oauth"
            ),
        )
    return replace(
        server,
        env=env,
        headers=headers,
        oauth=oauth,
        command=_redact_command(server, report),
        url=_redact_url(server, report),
        parked=_redact_parked(server.parked, (key,), report),
    )


def _name_secret(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) else name_secret_variable(name)


def _make_reference(
    value: str, name: str, place: tuple[str, ...], report: FormatReport, column: str = ""
) -> str:
    if is_reference(value):
        return value
    report.add(
        "translated",
        make_pointer(*place),
        f"The value is not written. The file refers to ${{{name}}} instead.",
        f"Set {name} where the file is used, or export with --include-secrets.",
        column=column,
    )
    return f"${{{name}}}"


def _redact_command(server: ServerEntry, report: FormatReport) -> tuple[str, ...]:
    """Flags, headers and addresses lose what in them is secret by its name or shape."""
    words = server.command
    return tuple(
        _redact_word((server.key, "command", str(index)), before, word, report)
        for index, (before, word) in enumerate(zip(("", *words), words, strict=False))
    )


def _redact_word(place: tuple[str, ...], before: str, word: str, report: FormatReport) -> str:
    for span in reversed(find_secret_spans(before, word)):
        value = _make_reference(
            word[span.start : span.end],
            name_secret_variable(place[0], span.name),
            place,
            report,
            place[1],
        )
        word = f"{word[: span.start]}{value}{word[span.end :]}"
    return word


def _redact_url(server: ServerEntry, report: FormatReport) -> str:
    """Passwords and values of secret-looking query parameters."""
    return _redact_word((server.key, "url"), "", server.url, report)


def _redact_input(item: JsonObject, report: FormatReport) -> JsonObject:
    """A prompt's default is a secret when the prompt is for a password."""
    if not item.get("password") or not item.get("default"):
        return item
    report.add(
        "translated",
        make_pointer("inputs", item["id"], "default"),
        "The default of a password is not written.",
    )
    return {key: value for key, value in item.items() if key != "default"}


def _redact_parked(
    parked: Mapping[str, Parked], place: tuple[str, ...], report: FormatReport
) -> dict[str, Parked]:
    return {
        family: replace(item, keys=_redact_plain_data(dict(item.keys), place, report))
        for family, item in parked.items()
    }


def _redact_plain_data(data: Json, place: tuple[str, ...], report: FormatReport) -> Json:
    """Plain data with every text under a secret-looking key, or inside ``env`` and ``headers``,
    replaced."""
    if isinstance(data, list):
        return [
            _redact_plain_data(item, (*place, str(index)), report)
            for index, item in enumerate(data)
        ]
    if not isinstance(data, dict):
        return data
    inside = bool(place) and place[-1] in ("env", "environment", "headers", "extraHeaders")
    return {
        key: _make_reference(item, name_secret_variable(*place[-2:], key), (*place, key), report)
        if isinstance(item, str) and (inside or is_secret_name(key))
        else _redact_plain_data(item, (*place, key), report)
        for key, item in data.items()
    }
