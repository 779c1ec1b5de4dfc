"""Files of assistants in a terminal: Codex, Hermes Agent, Gemini CLI and Qwen Code, Crush."""

from __future__ import annotations

import re
from dataclasses import replace

from mcpregistry.domain.formats.document import Document, JsonObject
from mcpregistry.domain.formats.hosts.draft import (
    EntryDraft,
    convert_dollar_variables,
    define_host_format,
    find_map_entries,
    list_usual_keys,
    note_other_settings,
    read_places,
)
from mcpregistry.domain.formats.hosts.shapes import (
    find_value,
    has_path_ending,
    has_servers,
    list_entry_objects,
)
from mcpregistry.domain.formats.notes import Note
from mcpregistry.domain.formats.toml import format_place

_NOT_FILLED_IN = "This host does not replace ${…}, but this site treats it as a variable."


def _warn_of_variables(draft: EntryDraft) -> None:
    for key in ("command", "args", "env", "url", "http_headers", "headers", "cwd"):
        if "${" in str(draft.entry.get(key, "")):
            draft.report.add("translated", f"{draft.at}/{key}", _NOT_FILLED_IN)


def _translate_codex(draft: EntryDraft) -> None:
    _warn_of_variables(draft)
    draft.rename("startup_timeout_ms", "startup_ms")
    draft.time("startup_ms", "startup", 1)
    draft.time("startup_timeout_sec", "startup", 1000)
    draft.time("tool_timeout_sec", "request", 1000)
    _forward_variables(draft)
    _translate_codex_headers(draft)
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


def _forward_variables(draft: EntryDraft) -> None:
    """``env_vars``: names of variables that the host passes on."""
    variables = draft.entry.pop("env_vars", None)
    if variables is None:
        return
    names = [
        each.get("name") if isinstance(each, dict) else each for each in _list_or_empty(variables)
    ]
    if not isinstance(variables, list) or not all(isinstance(name, str) for name in names):
        draft.refuse("env_vars", "The value is not a list of names.", 'Write it as ["NAME"].')
        return
    draft.entry["env"] = {str(name): f"${{{name}}}" for name in names} | draft.pairs("env")


def _list_or_empty(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _translate_codex_headers(draft: EntryDraft) -> None:
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
    rest = note_other_settings(data, path, "Codex", "mcp_servers")
    return read_places(
        "Codex",
        list_usual_keys("codex"),
        find_map_entries(data, "mcp_servers"),
        _translate_codex,
        path=path,
        extra=rest,
    )


def _translate_hermes(draft: EntryDraft) -> None:
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
    _translate_codex_headers(draft)


def _is_hermes(data: JsonObject, path: str) -> bool:
    return isinstance(data.get("mcp_servers"), dict) and not _is_codex(data, path)


def _read_hermes(data: JsonObject, path: str) -> Document:
    rest = note_other_settings(data, path, "Hermes Agent", "mcp_servers")
    return read_places(
        "Hermes Agent",
        list_usual_keys("hermes"),
        find_map_entries(data, "mcp_servers"),
        _translate_hermes,
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


def _translate_gemini_text(text: str) -> str:
    text = text.replace("${extensionPath}", "${workspace}").replace(
        "${workspacePath}", "${workspace}"
    )
    return convert_dollar_variables(text.replace("${/}", "/").replace("${pathSeparator}", "/"))


def _translate_gemini(draft: EntryDraft) -> None:
    draft.texts(_translate_gemini_text)
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
        or any(_GEMINI_KEYS & entry.keys() for entry in list_entry_objects(data, "mcpServers"))
        or has_path_ending(path, *_GEMINI_FILES)
    )


def _read_gemini(data: JsonObject, path: str) -> Document:
    allowed = find_value(data, "mcp", "allowed")
    excluded = find_value(data, "mcp", "excluded")

    def translate(draft: EntryDraft) -> None:
        _translate_gemini(draft)
        name = draft.at.rsplit("/", 1)[-1].replace("~1", "/").replace("~0", "~")
        is_off = (
            isinstance(allowed, list) and allowed and name not in allowed
        ) or name in _list_or_empty(excluded)
        if is_off and "disabled" not in draft.entry and "enabled" not in draft.entry:
            draft.entry["enabled"] = False
            draft.report.add(
                "translated", draft.at, "Disabled, because mcp.allowed or mcp.excluded excludes it."
            )

    rest = note_other_settings(data, path, "Gemini CLI", "mcpServers", "mcp")
    return read_places(
        "Gemini CLI",
        list_usual_keys("gemini"),
        find_map_entries(data, "mcpServers"),
        translate,
        path=path,
        extra=rest,
    )


_CRUSH_ROOTS = {"lsp", "options", "permissions", "providers", "models"}


def _translate_crush(draft: EntryDraft) -> None:
    draft.texts(convert_dollar_variables)
    draft.time("timeout", "request", 1000)
    draft.rename("enabled_tools", "includeTools")
    draft.remark("disabled_tools", "This key is not used: grants decide which tools are offered.")


def _is_crush(data: JsonObject, path: str) -> bool:
    """``mcp`` as opencode has it, but with the usual names of transports and one word as
    command."""
    servers = data.get("mcp")
    if not isinstance(servers, dict) or not has_servers(servers):
        return False
    kinds = {entry.get("type") for entry in list_entry_objects(data, "mcp")}
    if kinds & {"local", "remote"} or any(
        isinstance(entry.get("command"), list) for entry in list_entry_objects(data, "mcp")
    ):
        return False
    named = has_path_ending(path, "crush.json") or "crush" in str(data.get("$schema", ""))
    return named or bool(kinds & {"stdio", "http", "sse"}) or bool(_CRUSH_ROOTS & data.keys())


def _read_crush(data: JsonObject, path: str) -> Document:
    rest: list[Note] = note_other_settings(data, path, "Crush", "mcp")
    return read_places(
        "Crush",
        list_usual_keys("crush"),
        find_map_entries(data, "mcp"),
        _translate_crush,
        path=path,
        extra=rest,
    )


CODEX = replace(
    define_host_format("codex", "Codex", ".codex/config.toml", _is_codex, _read_codex),
    place=format_place,
)
HERMES = define_host_format(
    "hermes", "Hermes Agent", ".hermes/config.yaml", _is_hermes, _read_hermes
)
GEMINI = define_host_format(
    "gemini", "Gemini CLI", ".gemini/settings.json", _is_gemini, _read_gemini
)
CRUSH = define_host_format("crush", "Crush", "crush.json", _is_crush, _read_crush)
