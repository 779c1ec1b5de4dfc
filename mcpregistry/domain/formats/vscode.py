"""VS Code's ``.vscode/mcp.json``: ``servers`` and ``inputs``, prompts for values.

An input becomes a credential of the same name; ``${input:id}`` becomes ``${cred:id}`` and back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from mcpregistry.domain.formats.document import Document, Json, JsonObject, Written
from mcpregistry.domain.formats.entry_reader import read_servers
from mcpregistry.domain.formats.entry_writer import compose, write_servers
from mcpregistry.domain.formats.format import Format, object_at, park_root, report_left_out
from mcpregistry.domain.formats.keys import NO_WEBSOCKET, Keys, OauthKeys, slug
from mcpregistry.domain.formats.notes import Report, pointer
from mcpregistry.domain.formats.placeholders import Dialect

FILE = ".vscode/mcp.json"
ROOT = "servers"
KEYS = Keys(
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
    """A map under ``servers`` that is VS Code's by its ``inputs``, its path, or a ``type`` in an entry."""
    servers = data.get(ROOT)
    if not isinstance(servers, dict):
        return False
    typed = any(isinstance(entry, dict) and "type" in entry for entry in servers.values())
    return "inputs" in data or path.replace("\\", "/").endswith(FILE) or typed


def read(data: JsonObject, path: str) -> Document:
    """The file as a document; each input becomes a credential that waits for its value."""
    report = Report(path)
    parked = park_root(data, [ROOT, "inputs"], report)
    inputs = tuple(_inputs(data.get("inputs", []), report))
    servers = read_servers(KEYS, object_at(data, ROOT, report), f"/{ROOT}", report)
    return Document(servers, inputs=inputs, parked={KEYS.family: parked}, notes=tuple(report.notes))


def _inputs(inputs: Json, report: Report) -> Iterator[JsonObject]:
    if not isinstance(inputs, list):
        report.refuse("/inputs", "The value is not a list.", "Write it as [ … ].")
        return
    for index, item in enumerate(inputs):
        at = pointer("inputs", index)
        if not isinstance(item, dict) or not isinstance(item.get("id"), str):
            report.refuse(at, "The input has no id.", 'Write it as {"id": "…", "type": "promptString"}.')
        elif slug(item["id"]) != item["id"]:
            report.refuse(at + "/id", "The id is no name for a credential.", "Use letters, digits, dots and dashes.")
        else:
            report.add("translated", at, f"Becomes the credential {item['id']}; give it a value.")
            yield item


def write(document: Document) -> Written:
    """The document as such a file, with an input for every credential that the servers use."""
    report = Report(FILE)
    report_left_out(document, report, written=["inputs"])
    servers = write_servers(KEYS, document.servers, f"/{ROOT}", report)
    asked = {item["id"] for item in document.inputs}
    new = [_prompt(name) for name in dict.fromkeys(_prompted(servers)) if name not in asked]
    inputs = [*document.inputs, *new]
    must = {"inputs": inputs, ROOT: servers} if inputs else {ROOT: servers}
    return Written(compose(document.parked_for(KEYS.family), must, {"inputs": []}), tuple(report.notes))


def _prompted(data: Json) -> Iterator[str]:
    """Ids of the inputs that the written servers speak of."""
    if isinstance(data, str):
        yield from re.findall(r"\$\{input:([^}\s:]+)\}", data)
    elif isinstance(data, dict | list):
        for item in data.values() if isinstance(data, dict) else data:
            yield from _prompted(item)


def _prompt(name: str) -> JsonObject:
    return {"id": name, "type": "promptString", "description": f"Value of {name}", "password": True}


VSCODE = Format("vscode", "VS Code", FILE, KEYS.family, recognise, read, write)
