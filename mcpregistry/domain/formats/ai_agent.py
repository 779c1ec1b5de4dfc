"""``.ai-agent.json``: providers with models, servers, and defaults for both.

``defaults.toolTimeout`` is the request timeout of every server of the file.
"""

from __future__ import annotations

from dataclasses import replace

from mcpregistry.domain.formats.ai_agent_providers import read_providers, write_providers
from mcpregistry.domain.formats.document import Document, JsonObject, ServerEntry, Written
from mcpregistry.domain.formats.entry_reader import read_servers
from mcpregistry.domain.formats.entry_writer import compose, write_servers
from mcpregistry.domain.formats.format import Format, park_root, read_object, report_left_out
from mcpregistry.domain.formats.keys import ALL_BY_NAME, FormatKeys
from mcpregistry.domain.formats.notes import Action, FormatReport, make_pointer
from mcpregistry.domain.formats.verdicts import validate_file

FILE = ".ai-agent.json"
ROOT = "mcpServers"
TOOL_TIMEOUT = "toolTimeout"
_DEFAULTS = {
    TOOL_TIMEOUT: "The value becomes the request timeout of every server.",
    "llmTimeout": "The value becomes the timeout of every provider of this file.",
    "temperature": "The value is sent with every request to the providers of this file.",
    "topP": "The value is sent with every request to the providers of this file.",
    "parallelToolCalls": "The value is sent with every request to the providers of this file that support it.",
    "contextWindowBufferTokens": "The value becomes the buffer of each model of this file that does not set a buffer.",
}
KEYS = FormatKeys(
    "ai-agent", ALL_BY_NAME, transport=("type",), says_stdio=True, enabled=("enabled", "disabled")
)


def recognise(data: JsonObject, path: str) -> bool:
    """``mcpServers`` beside ``providers`` or ``defaults``."""
    return isinstance(data.get(ROOT), dict) and ("providers" in data or "defaults" in data)


def read(data: JsonObject, path: str) -> Document:
    """The file as a document. Invalid providers or defaults refuse the whole file."""
    if problems := validate_file(
        {key: data[key] for key in ("providers", "defaults") if key in data}, path, "ai-agent"
    ):
        return Document(notes=problems)
    report = FormatReport(path)
    parked = park_root(data, ["providers", ROOT, "defaults"], report)
    providers, defaults = (
        read_object(data, key, report, required=False) for key in ("providers", "defaults")
    )
    models = read_providers(providers, defaults, report)
    for name in defaults:
        action: Action = "translated" if name in _DEFAULTS else "parked"
        report.add(
            action,
            make_pointer("defaults", name),
            _DEFAULTS.get(name, "The value is kept, but this site does not use it."),
        )
    timeout = defaults.get(TOOL_TIMEOUT)
    servers = read_servers(
        KEYS, read_object(data, ROOT, report, required=False), f"/{ROOT}", report
    )
    if timeout is not None:
        servers = tuple(replace(server, request_timeout_ms=timeout) for server in servers)
    return Document(
        servers,
        model_providers=models,
        providers=providers,
        defaults=defaults,
        parked={KEYS.family: parked},
        notes=tuple(report.notes),
    )


def write(document: Document) -> Written:
    """The document as such a file; what it has no place for is reported."""
    report = FormatReport(FILE)
    report_left_out(document, report, written=["providers", "model_providers", "defaults"])
    shared, servers = _extract_shared_timeout(document, report)
    providers = write_providers(
        dict(document.providers), dict(document.defaults), document.model_providers, report
    )
    must: JsonObject = {"providers": providers} if providers else {}
    written = write_servers(KEYS, servers, f"/{ROOT}", report)
    must |= {ROOT: written} if written or KEYS.family not in document.parked else {}
    defaults = {**document.defaults, **({} if shared is None else {TOOL_TIMEOUT: shared})}
    must |= {"defaults": defaults} if defaults else {}
    optional: JsonObject = {"providers": {}, ROOT: {}, "defaults": {}}
    return Written(compose(document.get_parked(KEYS.family), must, optional), tuple(report.notes))


def _extract_shared_timeout(
    document: Document, report: FormatReport
) -> tuple[int | None, list[ServerEntry]]:
    """The one tool timeout that the file can state, and the servers without it; others are
    reported."""
    times = [server.request_timeout_ms for server in document.servers]
    stated = document.defaults.get(TOOL_TIMEOUT)
    shared = times[0] if times and len(set(times)) == 1 else stated
    for server in document.servers:
        if server.request_timeout_ms != shared:
            sentence = "This format has one timeout for all servers. The timeout of this server is kept only on this site."
            report.add(
                "parked", make_pointer(ROOT, server.key), sentence, column="request_timeout_ms"
            )
    return shared, [replace(server, request_timeout_ms=None) for server in document.servers]


AI_AGENT = Format("ai-agent", ".ai-agent.json", FILE, KEYS.family, recognise, read, write)
