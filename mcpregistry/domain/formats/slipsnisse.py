"""The Slipsnisse file, YAML or JSON: ``mcps`` and the expert ``tools`` that use them.

Strict reading gives exactly the verdicts of ``schemas/slipsnisse.schema.json`` (draft-07), which has no closed object:
unknown keys are legal and kept. The extended variant also has remote servers, any provider, and limits per tool.
Beyond the schema: tools are unique, their names legal for MCP, and they use only servers of the same file.
Expert tools are kept as they stand until the sub-agents serve them.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache, partial
from importlib.resources import files
from typing import Literal

import jsonschema_rs

from mcpregistry.domain.formats.document import Document, Json, JsonObject, Written
from mcpregistry.domain.formats.entry_reader import read_servers
from mcpregistry.domain.formats.entry_writer import compose, write_servers
from mcpregistry.domain.formats.format import Format, object_at, park_root, report_left_out
from mcpregistry.domain.formats.keys import ALL_BY_NAME, ONLY_STDIO, Keys, slug
from mcpregistry.domain.formats.notes import Note, Report, pointer

FILE = "slipsnisse.config.yaml"
Variant = Literal["slipsnisse", "slipsnisse-extended"]

_STRICT = Keys("slipsnisse", ONLY_STDIO, remote=False, args_required=True)
_EXTENDED = replace(_STRICT, transports=ALL_BY_NAME, remote=True, transport=("transport",))
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


@cache
def schema(variant: Variant) -> JsonObject:
    """The normative JSON Schema of the variant, also for others to validate with."""
    text = files(__package__).joinpath("schemas", f"{variant}.schema.json").read_text("utf-8")
    return dict(json.loads(text))


@cache
def _validator(variant: Variant) -> jsonschema_rs.Draft7Validator:
    return jsonschema_rs.Draft7Validator(schema(variant))


def verdict(data: Json, path: str, variant: Variant = "slipsnisse") -> tuple[Note, ...]:
    """Everything the schema has against the data, as refused notes; empty means valid."""
    report = Report(path)
    for error in _validator(variant).iter_errors(data):
        report.refuse(pointer(*error.instance_path), *_in_words(error))
    return tuple(report.notes)


def _in_words(error: jsonschema_rs.ValidationError) -> tuple[str, str]:
    """Sentence and remedy. The validator's own message is not used: it quotes the value, which may be a secret."""
    facts = error.kind.as_dict()
    match error.kind.name:
        case "required":
            return f"The key {facts['property']} is missing.", f"Add {facts['property']}."
        case "type":
            return f"The value is not of type {' or '.join(facts['types'])}.", "Correct the value."
        case "enum":
            return (
                f"The value is none of {', '.join(map(str, facts['options']))}.",
                "Choose one, or use the extended format.",
            )
        case "anyOf":
            return "The server has neither command and args nor a url.", "Say how it is started or reached."
        case _:
            return "The value is out of range.", "Correct the value."


def input_schema(arguments: Json) -> JsonObject:
    """The JSON Schema of a tool's input from either notation of ``arguments``.

    ``{type: object, properties: {…}}`` is a schema already. Otherwise it maps names to schemas or to type names, and
    every name is required that has no ``default`` and no ``optional: true``.
    """
    if not isinstance(arguments, dict):
        return {"type": "object", "properties": {}}
    if arguments.get("type") == "object" and isinstance(arguments.get("properties"), dict):
        return arguments
    plain = {name: {"type": item} if isinstance(item, str) else item for name, item in arguments.items()}
    required = [name for name, item in plain.items() if not _may_be_absent(item)]
    properties = {name: _without_optional(item) for name, item in plain.items()}
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


def _may_be_absent(item: Json) -> bool:
    return isinstance(item, dict) and ("default" in item or item.get("optional") is True)


def _without_optional(item: Json) -> Json:
    is_ours = isinstance(item, dict) and isinstance(item.get("optional"), bool)
    return {key: value for key, value in item.items() if key != "optional"} if is_ours else item


def recognise(data: JsonObject, path: str) -> bool:
    return "mcps" in data


def read(data: JsonObject, path: str, *, variant: Variant) -> Document:
    if problems := verdict(data, path, variant):
        return Document(notes=problems + _hint(data, path, variant))
    report = Report(path)
    keys = _STRICT if variant == "slipsnisse" else _EXTENDED
    parked = park_root(data, ["mcps", "tools"], report)
    servers = read_servers(keys, object_at(data, "mcps", report), "/mcps", report)
    _check_tools(data, report)
    tools = tuple(data["tools"])
    return Document(servers, expert_tools=tools, parked={keys.family: parked}, notes=tuple(report.notes))


def _hint(data: JsonObject, path: str, variant: Variant) -> tuple[Note, ...]:
    if variant == "slipsnisse" and not verdict(data, path, "slipsnisse-extended"):
        return (Note("refused", path, "", "The file is valid in the extended format only.", "Use --extended."),)
    return ()


def _check_tools(data: JsonObject, report: Report) -> None:
    names: set[str] = set()
    for index, tool in enumerate(data["tools"]):
        at, name = pointer("tools", index), tool["name"]
        if not _TOOL_NAME.fullmatch(name):
            report.refuse(at + "/name", "MCP does not allow this name.", "Use 1 to 128 of A-Z a-z 0-9 _ . and -.")
        if name in names:
            report.refuse(at + "/name", "Another tool has the same name.", "Rename one of them.")
        for server in tool["internal_tools"]:
            if server not in data["mcps"]:
                place = at + pointer("internal_tools", server)
                report.refuse(place, "There is no such server under mcps.", "Add the server or correct its name.")
        names.add(name)
        report.add("kept", at, "Kept for the expert tools, not yet served.")


def write(document: Document, *, variant: Variant) -> Written:
    report = Report(FILE)
    keys = _STRICT if variant == "slipsnisse" else _EXTENDED
    report_left_out(document, report, written=["expert_tools"])
    servers = write_servers(keys, document.servers, "/mcps", report)
    tools = _tools(document, report)
    data = compose(document.parked_for(keys.family), {"mcps": servers, "tools": tools}, {})
    return Written(data, (*report.notes, *verdict(data, FILE, variant)))


def _tools(document: Document, report: Report) -> list[JsonObject]:
    """The expert tools whose servers are all written; a reader of the file would refuse the others."""
    known = {server.key for server in document.servers}
    tools: list[JsonObject] = []
    for index, tool in enumerate(document.expert_tools):
        missing = [server for server in tool.get("internal_tools", {}) if slug(server) not in known]
        if missing:
            sentence = f"The tool is left out, since the server {missing[0]} is not written."
            report.add("parked", pointer("tools", index), sentence, "Export that server too.", column="expert_tools")
        else:
            tools.append(dict(tool))
    return tools


def _format(variant: Variant, title: str) -> Format:
    found = recognise if variant == "slipsnisse" else (lambda data, path: False)
    return Format(
        variant, title, FILE, "slipsnisse", found, partial(read, variant=variant), partial(write, variant=variant)
    )


SLIPSNISSE = _format("slipsnisse", "Slipsnisse")
SLIPSNISSE_EXTENDED = _format("slipsnisse-extended", "Slipsnisse, extended")
