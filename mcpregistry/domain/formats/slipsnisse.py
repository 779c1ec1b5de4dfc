"""The Slipsnisse file, YAML or JSON: ``mcps`` and the expert ``tools`` that use them.

Strict reading gives exactly the verdicts of ``schemas/slipsnisse.schema.json`` (draft-07), which
has no closed object: unknown keys are legal and kept. The extended variant also has remote servers,
model providers, fallbacks and limits per tool. Beyond the schema: tools are unique, their names
legal for MCP, they use only servers of the same file, and no provider's key stands in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Literal

from mcpregistry.domain.formats.document import Document, Json, JsonObject, Written
from mcpregistry.domain.formats.entry_reader import read_servers
from mcpregistry.domain.formats.entry_writer import compose, write_servers
from mcpregistry.domain.formats.format import Format, park_root, read_object, report_left_out
from mcpregistry.domain.formats.keys import ALL_BY_NAME, ONLY_STDIO, FormatKeys, make_slug
from mcpregistry.domain.formats.notes import FormatReport, Note, make_pointer
from mcpregistry.domain.formats.placeholders import is_reference
from mcpregistry.domain.formats.verdicts import load_schema, validate_file
from mcpregistry.domain.text.secret_names import is_secret_name

FILE = "slipsnisse.config.yaml"
Variant = Literal["slipsnisse", "slipsnisse-extended"]

_STRICT = FormatKeys("slipsnisse", ONLY_STDIO, remote=False, args_required=True)
_EXTENDED = replace(_STRICT, transports=ALL_BY_NAME, remote=True, transport=("transport",))
_USE_EXTENDED = (
    "On the command line, use --extended. "
    "In the admin and over REST, choose the format slipsnisse-extended."
)
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


def build_input_schema(arguments: Json) -> JsonObject:
    """The JSON Schema of a tool's input from either notation of ``arguments``.

    ``{type: object, properties: {…}}`` is a schema already. Otherwise it maps names to schemas or
    to type names, and every name is required that has no ``default`` and no ``optional: true``.
    """
    if not isinstance(arguments, dict):
        return {"type": "object", "properties": {}}
    if arguments.get("type") == "object" and isinstance(arguments.get("properties"), dict):
        return arguments
    plain = {
        name: {"type": item} if isinstance(item, str) else item for name, item in arguments.items()
    }
    required = [name for name, item in plain.items() if not _may_be_absent(item)]
    properties = {name: _drop_optional(item) for name, item in plain.items()}
    return {
        "type": "object",
        "properties": properties,
        **({"required": required} if required else {}),
    }


def _may_be_absent(item: Json) -> bool:
    return isinstance(item, dict) and ("default" in item or item.get("optional") is True)


def _drop_optional(item: Json) -> Json:
    is_ours = isinstance(item, dict) and isinstance(item.get("optional"), bool)
    return {key: value for key, value in item.items() if key != "optional"} if is_ours else item


def recognise(data: JsonObject, path: str) -> bool:
    """``mcps`` at the root; the extended variant is never guessed, it must be named."""
    return "mcps" in data


def read(data: JsonObject, path: str, *, variant: Variant) -> Document:
    """The file as a document; a file that its JSON Schema refuses gives notes alone."""
    if problems := validate_file(data, path, variant):
        return Document(notes=problems + _suggest_extended_format(data, path, variant))
    report = FormatReport(path)
    keys = _STRICT if variant == "slipsnisse" else _EXTENDED
    extended = variant == "slipsnisse-extended"
    parked = park_root(data, ["mcps", "tools", *(["providers"] if extended else [])], report)
    servers = read_servers(keys, read_object(data, "mcps", report), "/mcps", report)
    providers = data.get("providers", {}) if extended else {}
    _check_providers(providers, report)
    _check_tools(data, report)
    if not extended:
        _note_extended_keys(data["tools"], report)
    return Document(
        servers,
        expert_tools=tuple(data["tools"]),
        model_providers=providers,
        parked={keys.family: parked},
        notes=tuple(report.notes),
    )


def _suggest_extended_format(data: JsonObject, path: str, variant: Variant) -> tuple[Note, ...]:
    if variant == "slipsnisse" and not validate_file(data, path, "slipsnisse-extended"):
        return (
            Note(
                "refused",
                path,
                "",
                "The file is only valid in the extended format.",
                _USE_EXTENDED,
            ),
        )
    return ()


def _check_tools(data: JsonObject, report: FormatReport) -> None:
    names: set[str] = set()
    for index, tool in enumerate(data["tools"]):
        at = make_pointer("tools", index)
        name = tool["name"]
        if not _TOOL_NAME.fullmatch(name):
            report.refuse(
                at + "/name",
                "MCP does not allow this name.",
                "Use 1 to 128 of the characters A-Z a-z 0-9 _ . and -.",
            )
        if name in names:
            report.refuse(
                at + "/name", "Another tool has the same name.", "Rename one of the two tools."
            )
        for server in tool["internal_tools"]:
            if server not in data["mcps"]:
                place = at + make_pointer("internal_tools", server)
                report.refuse(
                    place,
                    "No server with this name is under mcps.",
                    "Add the server, or correct the name.",
                )
        names.add(name)


def list_tool_keys(variant: Variant) -> frozenset[str]:
    """The keys of a tool that mean something in this variant; others are kept and written back."""
    return frozenset(load_schema(variant)["properties"]["tools"]["items"]["properties"])


def _note_extended_keys(tools: list[JsonObject], report: FormatReport) -> None:
    more = list_tool_keys("slipsnisse-extended") - list_tool_keys("slipsnisse")
    for index, tool in enumerate(tools):
        for key in tool.keys() & more:
            sentence = "The value is kept, but not used: only the extended format supports it."
            report.add(
                "parked",
                make_pointer("tools", index, key),
                sentence,
                _USE_EXTENDED,
            )


def _check_providers(providers: JsonObject, report: FormatReport) -> None:
    """Keys and secret headers are references: a file lies about, is copied and mailed."""
    remedy = (
        "Replace it with ${VARIABLE} or ${cred:NAME}, or leave it out and enter it in the admin."
    )
    for name, provider in providers.items():
        at = make_pointer("providers", name)
        if not is_reference(provider.get("key", "")):
            report.refuse(at + "/key", "A file must not contain the key of a provider.", remedy)
        for header, value in provider.get("headers", {}).items():
            if is_secret_name(header) and not is_reference(value):
                place = at + make_pointer("headers", header)
                report.refuse(place, "A file must not contain a secret.", remedy)


def write(document: Document, *, variant: Variant) -> Written:
    """The document as such a file, checked against its own JSON Schema."""
    report = FormatReport(FILE)
    keys = _STRICT if variant == "slipsnisse" else _EXTENDED
    extended = variant == "slipsnisse-extended"
    report_left_out(
        document, report, written=["expert_tools", *(["model_providers"] if extended else [])]
    )
    servers = write_servers(keys, document.servers, "/mcps", report)
    must: JsonObject = {"mcps": servers, "tools": _write_tools(document, variant, report)}
    providers = _drop_provider_keys(document.model_providers, report) if extended else {}
    if providers:
        must["providers"] = providers
    data = compose(
        document.get_parked(keys.family), must, {"providers": providers} if extended else {}
    )
    return Written(data, (*report.notes, *validate_file(data, FILE, variant)))


def _drop_provider_keys(providers: Mapping[str, JsonObject], report: FormatReport) -> JsonObject:
    """A key that another format has written out stays where it was taken to."""
    written = {}
    for name, entry in providers.items():
        written[name] = {
            key: value for key, value in entry.items() if key != "key" or is_reference(value)
        }
        if written[name] != entry:
            at = make_pointer("providers", name, "key")
            report.add(
                "parked",
                at,
                "The key of a provider is not written to files.",
                column="model_providers",
            )
    return written


def _write_tools(document: Document, variant: Variant, report: FormatReport) -> list[JsonObject]:
    """The expert tools whose servers are all written; a reader of the file would refuse the
    others."""
    known = {server.key for server in document.servers}
    more = list_tool_keys("slipsnisse-extended") - list_tool_keys(variant)
    tools: list[JsonObject] = []
    for index, tool in enumerate(document.expert_tools):
        missing = [
            server for server in tool.get("internal_tools", {}) if make_slug(server) not in known
        ]
        if missing:
            sentence = f"The tool is left out, because the server {missing[0]} is not exported."
            report.add(
                "parked",
                make_pointer("tools", index),
                sentence,
                "Export this server as well.",
                column="expert_tools",
            )
            continue
        for key in tool.keys() & more:
            sentence = "Only the extended format supports this key."
            report.add(
                "parked",
                make_pointer("tools", index, key),
                sentence,
                _USE_EXTENDED,
                column="expert_tools",
            )
        tools.append(dict(tool))
    return tools


def _define_format(variant: Variant, title: str) -> Format:
    found = recognise if variant == "slipsnisse" else (lambda data, path: False)
    return Format(
        variant,
        title,
        FILE,
        "slipsnisse",
        found,
        partial(read, variant=variant),
        partial(write, variant=variant),
    )


SLIPSNISSE = _define_format("slipsnisse", "Slipsnisse")
SLIPSNISSE_EXTENDED = _define_format("slipsnisse-extended", "Slipsnisse, extended")
