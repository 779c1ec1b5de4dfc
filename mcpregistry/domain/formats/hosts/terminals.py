"""Files of assistants in a terminal: Codex, Hermes Agent, Gemini CLI and Qwen Code, Crush."""

from __future__ import annotations

import re
from dataclasses import replace

from mcpregistry.domain.formats.document import Document, JsonObject
from mcpregistry.domain.formats.hosts.draft import (
    Draft,
    dollars,
    host,
    in_map,
    keys_of,
    not_servers,
    read_places,
)
from mcpregistry.domain.formats.hosts.shapes import at, ends_with, entries_of, has_servers
from mcpregistry.domain.formats.notes import Note
from mcpregistry.domain.formats.toml import place

_NOT_FILLED_IN = "This host does not replace ${…}, but this site treats it as a variable."


def _warn_of_variables(draft: Draft) -> None:
    for key in ("command", "args", "env", "url", "http_headers", "headers", "cwd"):
        if "${" in str(draft.entry.get(key, "")):
            draft.report.add("translated", f"{draft.at}/{key}", _NOT_FILLED_IN)


def _codex(draft: Draft) -> None:
    _warn_of_variables(draft)
    draft.rename("startup_timeout_ms", "startup_ms")
    draft.time("startup_ms", "startup", 1)
    draft.time("startup_timeout_sec", "startup", 1000)
    draft.time("tool_timeout_sec", "request", 1000)
    _forward_variables(draft)
    _sign(draft)
    if "tools" in draft.entry:
        draft.remark("tools", "Only Codex uses this key. Add rules for single tools instead.")
    draft.rename("enabled_tools", "includeTools")
    draft.remark("disabled_tools", "This key is not used: grants decide which tools are offered.")
    if mode := draft.entry.get("default_tools_approval_mode"):
        draft.remark(
            "default_tools_approval_mode",
            f"This value is not used ({mode!s:.20}): rules decide which calls need an approval.",
        )
    if draft.entry.get("bearer_token"):
        headers = draft.pairs("headers")
        draft.entry["headers"] = {
            "Authorization": f"Bearer {draft.entry.pop('bearer_token')}"
        } | headers


def _forward_variables(draft: Draft) -> None:
    """``env_vars``: names of variables that the host passes on."""
    variables = draft.entry.pop("env_vars", None)
    if variables is None:
        return
    names = [each.get("name") if isinstance(each, dict) else each for each in _listed(variables)]
    if not isinstance(variables, list) or not all(isinstance(name, str) for name in names):
        draft.refuse("env_vars", "The value is not a list of names.", 'Write it as ["NAME"].')
        return
    draft.entry["env"] = {str(name): f"${{{name}}}" for name in names} | draft.pairs("env")


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _sign(draft: Draft) -> None:
    """Codex has three ways to write headers."""
    draft.rename("http_headers", "headers")
    variables = draft.pairs("env_http_headers")
    headers = draft.pairs("headers")
    draft.entry.pop("env_http_headers", None)
    if token := draft.entry.pop("bearer_token_env_var", None):
        headers.setdefault("Authorization", f"Bearer ${{{token}}}")
    headers = {name: f"${{{variable}}}" for name, variable in variables.items()} | headers
    if headers or "headers" in draft.entry:
        draft.entry["headers"] = headers


def _is_codex(data: JsonObject, path: str) -> bool:
    return isinstance(data.get("mcp_servers"), dict) and path.lower().endswith(".toml")


def _read_codex(data: JsonObject, path: str) -> Document:
    rest = not_servers(data, path, "Codex", "mcp_servers")
    return read_places(
        "Codex", keys_of("codex"), in_map(data, "mcp_servers"), _codex, path=path, extra=rest
    )


def _hermes(draft: Draft) -> None:
    draft.time("timeout", "request", 1000)
    draft.time("connect_timeout", "startup", 1000)
    tools = draft.entry.pop("tools", None)
    if isinstance(tools, dict) and tools.get("include"):
        draft.entry["includeTools"] = tools["include"]
        draft.own["includeTools"] = "tools/include"
    elif isinstance(tools, dict) and tools.get("exclude"):
        draft.report.add(
            "parked",
            f"{draft.at}/tools/exclude",
            "This key is not used: grants decide which tools are offered.",
        )
    _sign(draft)


def _is_hermes(data: JsonObject, path: str) -> bool:
    return isinstance(data.get("mcp_servers"), dict) and not _is_codex(data, path)


def _read_hermes(data: JsonObject, path: str) -> Document:
    rest = not_servers(data, path, "Hermes Agent", "mcp_servers")
    return read_places(
        "Hermes Agent",
        keys_of("hermes"),
        in_map(data, "mcp_servers"),
        _hermes,
        path=path,
        extra=rest,
    )


_PERCENT = re.compile(r"%([A-Za-z_][A-Za-z0-9_]{2,})%")
_GEMINI_KEYS = {"httpUrl", "trust", "includeTools", "excludeTools", "tcp", "authProviderType"}
_GEMINI_FILES = (
    ".gemini/settings.json",
    ".qwen/settings.json",
    "gemini-extension.json",
    "qwen-extension.json",
)


def _gemini_text(text: str) -> str:
    text = text.replace("${extensionPath}", "${workspace}").replace(
        "${workspacePath}", "${workspace}"
    )
    return dollars(text.replace("${/}", "/").replace("${pathSeparator}", "/"))


def _gemini(draft: Draft) -> None:
    draft.texts(_gemini_text)
    draft.texts(lambda text: _PERCENT.sub(r"${\1}", text), "env")
    if "httpUrl" in draft.entry and "url" not in draft.entry:
        draft.rename("httpUrl", "url")
        draft.entry.setdefault("type", "http")
    draft.time("timeout", "request", 1)
    draft.remark("excludeTools", "This key is not used: grants decide which tools are offered.")


def _is_gemini(data: JsonObject, path: str) -> bool:
    if not isinstance(data.get("mcpServers"), dict):
        return False
    lists = data.get("mcp")
    by_lists = isinstance(lists, dict) and lists.keys() <= {"allowed", "excluded", "serverCommand"}
    return (
        by_lists
        or any(_GEMINI_KEYS & entry.keys() for entry in entries_of(data, "mcpServers"))
        or ends_with(path, *_GEMINI_FILES)
    )


def _read_gemini(data: JsonObject, path: str) -> Document:
    allowed = at(data, "mcp", "allowed")
    excluded = at(data, "mcp", "excluded")

    def translate(draft: Draft) -> None:
        _gemini(draft)
        name = draft.at.rsplit("/", 1)[-1].replace("~1", "/").replace("~0", "~")
        is_off = (isinstance(allowed, list) and allowed and name not in allowed) or name in _listed(
            excluded
        )
        if is_off and "disabled" not in draft.entry and "enabled" not in draft.entry:
            draft.entry["enabled"] = False
            draft.report.add(
                "translated", draft.at, "Disabled, because mcp.allowed or mcp.excluded excludes it."
            )

    rest = not_servers(data, path, "Gemini CLI", "mcpServers", "mcp")
    return read_places(
        "Gemini CLI",
        keys_of("gemini"),
        in_map(data, "mcpServers"),
        translate,
        path=path,
        extra=rest,
    )


_CRUSH_ROOTS = {"lsp", "options", "permissions", "providers", "models"}


def _crush(draft: Draft) -> None:
    draft.texts(dollars)
    draft.time("timeout", "request", 1000)
    draft.rename("enabled_tools", "includeTools")
    draft.remark("disabled_tools", "This key is not used: grants decide which tools are offered.")


def _is_crush(data: JsonObject, path: str) -> bool:
    """``mcp`` as opencode has it, but with the usual names of transports and one word as
    command."""
    servers = data.get("mcp")
    if not isinstance(servers, dict) or not has_servers(servers):
        return False
    kinds = {entry.get("type") for entry in entries_of(data, "mcp")}
    if kinds & {"local", "remote"} or any(
        isinstance(entry.get("command"), list) for entry in entries_of(data, "mcp")
    ):
        return False
    named = ends_with(path, "crush.json") or "crush" in str(data.get("$schema", ""))
    return named or bool(kinds & {"stdio", "http", "sse"}) or bool(_CRUSH_ROOTS & data.keys())


def _read_crush(data: JsonObject, path: str) -> Document:
    rest: list[Note] = not_servers(data, path, "Crush", "mcp")
    return read_places(
        "Crush", keys_of("crush"), in_map(data, "mcp"), _crush, path=path, extra=rest
    )


CODEX = replace(host("codex", "Codex", ".codex/config.toml", _is_codex, _read_codex), place=place)
HERMES = host("hermes", "Hermes Agent", ".hermes/config.yaml", _is_hermes, _read_hermes)
GEMINI = host("gemini", "Gemini CLI", ".gemini/settings.json", _is_gemini, _read_gemini)
CRUSH = host("crush", "Crush", "crush.json", _is_crush, _read_crush)
