"""``opencode.json`` in its two published versions, and the older shape with ``command`` and
``args``.

Version 1 holds the servers directly under ``mcp``, version 2 under ``mcp.servers``. The rest of the
file is opencode's own and is kept as it stands.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from mcpregistry.domain.formats.document import Document, JsonObject, ServerEntry, Written
from mcpregistry.domain.formats.entry_reader import read_servers
from mcpregistry.domain.formats.entry_writer import compose, write_servers
from mcpregistry.domain.formats.format import Format, park_root, read_object, report_left_out
from mcpregistry.domain.formats.keys import LOCAL_OR_REMOTE, FormatKeys, OauthKeys
from mcpregistry.domain.formats.notes import FormatReport, make_pointer
from mcpregistry.domain.formats.placeholders import Dialect, name_file_credential

FILE = "opencode.json"
ROOT = "mcp"
SCHEMA = "https://opencode.ai/config.json"

_V1 = FormatKeys(
    "opencode",
    LOCAL_OR_REMOTE,
    dialect=Dialect("brace", defaults=False),
    transport=("type", "transport"),
    says_stdio=True,
    command_as_array=True,
    env=("environment", "env"),
    enabled=("enabled", "disabled"),
    timeout="one",
    oauth=OauthKeys(
        "oauth",
        {
            "client_id": "clientId",
            "client_secret": "clientSecret",
            "scopes": "scope",
            "redirect_uri": "redirectUri",
        },
        scopes_as_text=True,
        may_be_off=True,
    ),
)
_V2 = replace(
    _V1,
    family="opencode2",
    cwd="cwd",
    enabled=("disabled", "enabled"),
    timeout="two",
    oauth=OauthKeys(
        "oauth",
        {
            "client_id": "client_id",
            "client_secret": "client_secret",
            "scopes": "scope",
            "redirect_uri": "redirect_uri",
        },
        scopes_as_text=True,
        may_be_off=True,
    ),
)


def is_version_2(data: JsonObject) -> bool:
    """Whether the servers stand under ``mcp.servers``; a version 1 server could be named "servers",
    hence the look inside.
    """
    servers = data["mcp"].get("servers") if isinstance(data.get(ROOT), dict) else None
    return isinstance(servers, dict) and all(isinstance(entry, dict) for entry in servers.values())


def recognise_v1(data: JsonObject, path: str) -> bool:
    """An object under ``mcp`` that is not version 2."""
    return isinstance(data.get(ROOT), dict) and not is_version_2(data)


def recognise_v2(data: JsonObject, path: str) -> bool:
    """``mcp.servers`` holds the servers."""
    return is_version_2(data)


def read_v1(data: JsonObject, path: str) -> Document:
    """A version 1 file as a document."""
    report = FormatReport(path)
    parked = park_root(data, [ROOT], report)
    entries, switches = _separate_switches(read_object(data, ROOT, report), f"/{ROOT}", report)
    parked = replace(parked, keys={**parked.keys, **({ROOT: switches} if switches else {})})
    servers = read_servers(_V1, entries, f"/{ROOT}", report)
    inputs = tuple(_collect_file_credentials(servers, _V1.family))
    return Document(servers, inputs=inputs, parked={_V1.family: parked}, notes=tuple(report.notes))


def read_v2(data: JsonObject, path: str) -> Document:
    """A version 2 file as a document."""
    report = FormatReport(path)
    parked = park_root(data, [ROOT], report)
    mcp = read_object(data, ROOT, report)
    inner = park_root(mcp, ["servers"], report, f"/{ROOT}")
    entries, switches = _separate_switches(
        read_object(mcp, "servers", report, at=f"/{ROOT}"), f"/{ROOT}/servers", report
    )
    inner = replace(inner, keys={**inner.keys, **({"servers": switches} if switches else {})})
    servers = read_servers(_V2, entries, f"/{ROOT}/servers", report)
    whole = replace(parked, spelling={ROOT: inner.to_json()})
    inputs = tuple(_collect_file_credentials(servers, _V2.family))
    return Document(servers, inputs=inputs, parked={_V2.family: whole}, notes=tuple(report.notes))


def _collect_file_credentials(
    servers: tuple[ServerEntry, ...], family: str
) -> Iterator[JsonObject]:
    """A credential for each file whose content opencode puts in: ``{file:path}``."""
    kinds: list[str] = []
    for server in servers:
        for found in server.get_parked(family).spelling.get("placeholders", {}).values():
            kinds += found
    for path in dict.fromkeys(
        kind.removeprefix("file:") for kind in kinds if kind.startswith("file:")
    ):
        about = f"Content of the file {path}"
        yield {
            "id": name_file_credential(path),
            "type": "promptString",
            "description": about,
            "password": True,
        }


def _separate_switches(
    entries: JsonObject, at: str, report: FormatReport
) -> tuple[JsonObject, JsonObject]:
    """The entries, and apart from them those that only switch a server which another file
    describes."""
    switches = {
        key: entry
        for key, entry in entries.items()
        if isinstance(entry, dict) and entry and entry.keys() <= {"enabled", "disabled"}
    }
    for key in switches:
        report.add(
            "parked",
            at + make_pointer(key),
            "This entry only enables or disables a server of another file. It does not add a server.",
        )
    return {key: entry for key, entry in entries.items() if key not in switches}, switches


def write(document: Document, *, keys: FormatKeys) -> Written:
    """The document as a file of the version that ``keys`` are for; what it has no place for is
    reported."""
    report = FormatReport(FILE)
    report_left_out(document, report, written=["inputs"])
    parked = document.get_parked(keys.family)
    at = f"/{ROOT}/servers" if keys is _V2 else f"/{ROOT}"
    mcp = write_servers(keys, document.servers, at, report)
    if keys is _V2:
        mcp = compose(type(parked).from_json(parked.spelling.get(ROOT, {})), {"servers": mcp}, {})
    fresh: JsonObject = {} if parked.order else {"$schema": SCHEMA}
    return Written(compose(parked, {**fresh, ROOT: mcp}, {}), tuple(report.notes))


OPENCODE = Format(
    "opencode",
    "opencode (version 1)",
    FILE,
    "opencode",
    recognise_v1,
    read_v1,
    partial(write, keys=_V1),
)
OPENCODE2 = Format(
    "opencode2",
    "opencode (version 2)",
    FILE,
    "opencode2",
    recognise_v2,
    read_v2,
    partial(write, keys=_V2),
)
