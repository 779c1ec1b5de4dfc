"""VS Code's ``.vscode/mcp.json``: ``servers`` and ``inputs``, prompts for values.

An input becomes a credential of the same name; ``${input:id}`` becomes ``${cred:id}`` and back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from mcpregistry.domain.formats.document import (
    Document,
    Json,
    JsonObject,
    Parked,
    ServerEntry,
    Written,
)
from mcpregistry.domain.formats.entry_reader import read_servers
from mcpregistry.domain.formats.entry_writer import compose, write_servers
from mcpregistry.domain.formats.format import Format, park_root, read_object, report_left_out
from mcpregistry.domain.formats.hosts.shapes import has_servers
from mcpregistry.domain.formats.keys import NO_WEBSOCKET, FormatKeys, OauthKeys, make_slug
from mcpregistry.domain.formats.notes import FormatReport, make_pointer
from mcpregistry.domain.formats.placeholders import Dialect

FILE = ".vscode/mcp.json"
ROOT = "servers"
OTHER_ROOT = "mcpServers"
KEYS = FormatKeys(
    "vscode",
    NO_WEBSOCKET,
    dialect=Dialect("env", defaults=False, inputs=True, folders=True),
    transport=("type", "transport"),
    says_stdio=True,
    env_file="envFile",
    cwd="cwd",
    enabled=("disabled", "enabled"),
    auto_approve=("autoApprove", "alwaysAllow"),
    oauth=OauthKeys("oauth", {"client_id": "clientId"}),
    unofficial=frozenset({"enabled", "auto_approve"}),
)


def recognise(data: JsonObject, path: str) -> bool:
    """A map under ``servers`` in which no entry is spelled as Dispatch alone spells it."""
    servers = data.get(ROOT)
    if not isinstance(servers, dict):
        return False
    entries = [entry for entry in servers.values() if isinstance(entry, dict)]
    typed = any("type" in entry for entry in entries)
    is_dispatch = path.replace("\\", "/").endswith(".dispatch/mcp.json") or any(
        "transport" in each for each in entries
    )
    return "inputs" in data or typed or not is_dispatch


def read(data: JsonObject, path: str) -> Document:
    """The file as a document; each input becomes a credential that waits for its value.

    A file may also hold servers for other hosts, under ``mcpServers``; they are read too.
    """
    more = [OTHER_ROOT] if has_servers(data.get(OTHER_ROOT)) else []
    report = FormatReport(path)
    parked = park_root(data, [ROOT, "inputs", *more], report)
    inputs = tuple(_build_inputs(_get_inputs(data), report))
    servers = read_servers(KEYS, read_object(data, ROOT, report), f"/{ROOT}", report)
    document = Document(
        servers, inputs=inputs, parked={KEYS.family: parked}, notes=tuple(report.notes)
    )
    return document.merge_document(_read_other_root(data, path)) if more else document


def _read_other_root(data: JsonObject, path: str) -> Document:
    report = FormatReport(path)
    servers = read_servers(KEYS, data[OTHER_ROOT], f"/{OTHER_ROOT}", report)
    return Document(tuple(map(_mark_other_root, servers)), notes=tuple(report.notes))


def _mark_other_root(server: ServerEntry) -> ServerEntry:
    parked = server.get_parked(KEYS.family)
    marked = replace(parked, spelling={**parked.spelling, "root": OTHER_ROOT})
    return replace(server, parked={**server.parked, KEYS.family: marked})


def read_block(block: JsonObject, path: str, at: str) -> Document:
    """A part of another file of VS Code that holds ``servers`` and ``inputs``, at this JSON
    pointer."""
    report = FormatReport(path)
    inputs = tuple(_build_inputs(_get_inputs(block), report, at))
    servers = read_servers(KEYS, read_object(block, ROOT, report, at=at), f"{at}/{ROOT}", report)
    return Document(servers, inputs=inputs, notes=tuple(report.notes))


def _get_inputs(block: JsonObject) -> Json:
    return [] if block.get("inputs") is None else block["inputs"]


def _build_inputs(inputs: Json, report: FormatReport, within: str = "") -> Iterator[JsonObject]:
    if not isinstance(inputs, list):
        report.refuse(within + "/inputs", "The value is not a list.", "Write it as [ … ].")
        return
    for index, item in enumerate(inputs):
        at = within + make_pointer("inputs", index)
        if not isinstance(item, dict) or not isinstance(item.get("id"), str):
            report.refuse(
                at, "The input needs an id.", 'Write it as {"id": "…", "type": "promptString"}.'
            )
        elif make_slug(item["id"]) != item["id"]:
            report.refuse(
                at + "/id",
                "The id is not a valid name for a credential.",
                "Use letters, digits, dots and dashes.",
            )
        else:
            report.add(
                "translated", at, f"The input becomes the credential {item['id']}. Enter its value."
            )
            yield item


def write(document: Document) -> Written:
    """The document as such a file, with an input for every credential that the servers use."""
    report = FormatReport(FILE)
    report_left_out(document, report, written=["inputs"])
    parked = document.get_parked(KEYS.family)
    others = [server for server in document.servers if _is_under_other_root(server, parked)]
    here = [server for server in document.servers if server not in others]
    servers = write_servers(KEYS, here, f"/{ROOT}", report)
    asked = {item["id"] for item in document.inputs}
    new = [
        _build_prompt(name) for name in dict.fromkeys(_find_input_ids(servers)) if name not in asked
    ]
    inputs = [*document.inputs, *new]
    must: JsonObject = {"inputs": inputs, ROOT: servers} if inputs else {ROOT: servers}
    if others:
        must[OTHER_ROOT] = write_servers(KEYS, others, f"/{OTHER_ROOT}", report)
    return Written(compose(parked, must, {"inputs": []}), tuple(report.notes))


def _is_under_other_root(server: ServerEntry, parked: Parked) -> bool:
    """Whether it was read from ``mcpServers`` of a file that had both roots."""
    return (
        OTHER_ROOT in parked.order
        and server.get_parked(KEYS.family).spelling.get("root") == OTHER_ROOT
    )


def _find_input_ids(data: Json) -> Iterator[str]:
    """Ids of the inputs that the written servers speak of."""
    if isinstance(data, str):
        yield from re.findall(r"\$\{input:([^}\s:]+)\}", data)
    elif isinstance(data, dict | list):
        for item in data.values() if isinstance(data, dict) else data:
            yield from _find_input_ids(item)


def _build_prompt(name: str) -> JsonObject:
    return {"id": name, "type": "promptString", "description": f"Value of {name}", "password": True}


VSCODE = Format("vscode", "VS Code", FILE, KEYS.family, recognise, read, write)
