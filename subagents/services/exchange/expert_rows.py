"""Between a Slipsnisse file's entries and the records of expert tools, providers and models.

An entry is plain JSON, valid by the schema of its format. What a file does not say is left as it
is; what an export need not say, because it is the default and no file has said it, is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from mcpregistry.domain.formats.document import JsonObject, Parked
from mcpregistry.domain.formats.keys import make_slug
from mcpregistry.domain.formats.placeholders import is_reference
from mcpregistry.models import Tool
from subagents.models import ExpertTool, LanguageModel, Provider
from subagents.models.provider import ProviderKind

# Where providers' own programs look for their keys; a file that names a provider and no key means
# these.
KEY_VARIABLES: Mapping[str, str] = {
    ProviderKind.OPENAI: "OPENAI_API_KEY",
    ProviderKind.ANTHROPIC: "ANTHROPIC_API_KEY",
    ProviderKind.GOOGLE: "GEMINI_API_KEY",
    ProviderKind.OPENROUTER: "OPENROUTER_API_KEY",
}

# The file's key -> the record's field.
TOOL_FIELDS = {
    "description": "description",
    "arguments": "arguments",
    "system_prompt": "system_prompt",
    "max_steps": "max_steps",
    "timeout": "max_seconds",
    "max_tokens": "max_tokens",
    "max_cost": "max_cost",
    "max_energy": "max_energy",
    "max_calls": "max_calls",
    "parallelism": "parallelism",
    "parallel": "parallel",
    "output_schema": "output_schema",
    "tool_instructions": "tool_instructions",
    "on_server_death": "on_server_death",
    "max_result_bytes": "max_result_bytes",
    "cache_seconds": "cache_seconds",
    "temperature": "temperature",
    "enabled": "enabled",
}
PROVIDER_FIELDS = (
    "kind",
    "base_url",
    "allowed_networks",
    "options",
    "tool_choice",
    "timeout",
    "enabled",
)
MODEL_FIELDS = (
    "context_window",
    "max_output",
    "buffer_tokens",
    "tokenizer",
    "input_price",
    "output_price",
    "cache_read_price",
    "cache_write_price",
    "free",
    "overrides",
    "tool_choice",
    "enabled",
)


def key_reference(kind: str) -> str:
    """``${…}`` of the variable that this kind's key usually lies in; empty for kinds that need
    none."""
    name = KEY_VARIABLES.get(kind)
    return f"${{{name}}}" if name else ""


def fill(row: Any, entry: Mapping[str, Any], fields: Mapping[str, str] | Iterable[str]) -> None:
    """Set the fields of ``row`` to what the entry says, unsaved; ``fields`` maps our names to the
    entry's."""
    names = fields if isinstance(fields, Mapping) else {name: name for name in fields}
    for key, field in names.items():
        if key in entry:
            value = entry[key]
            is_money = field.endswith(("_price", "_cost")) and value is not None
            setattr(row, field, Decimal(str(value)) if is_money else value)


def _dump_row(
    row: Any, fields: Mapping[str, str] | Iterable[str], stated: Collection[str]
) -> JsonObject:
    """What the row says of these fields, but defaults that nobody has stated."""
    names = fields if isinstance(fields, Mapping) else {name: name for name in fields}
    blank = type(row)()
    found = {}
    for key, field in names.items():
        value = getattr(row, field)
        if value != getattr(blank, field) or (key in stated and value is not None):
            found[key] = _number(value) if isinstance(value, Decimal | float) else value
    return found


def _number(value: Decimal | float) -> int | float:
    return int(value) if value == int(value) else float(value)


def model_entry(row: LanguageModel, stated: Collection[str] = ()) -> JsonObject:
    """The model as a file says it; of defaults only those that are ``stated``."""
    return _dump_row(row, MODEL_FIELDS, stated)


def provider_entry(
    row: Provider,
    stated: Collection[str] = (),
    *,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> JsonObject:
    """The provider as a file says it, without its models.

    A key that is no reference is in no file. ``headers``: those that may be written.
    """
    found = {"kind": row.kind} | _dump_row(row, PROVIDER_FIELDS, stated)
    key = row.key if key is None else key
    if key and is_reference(key):
        found["key"] = key
    return found | (
        {"headers": dict(headers)}
        if headers or (headers is not None and "headers" in stated)
        else {}
    )


def plain_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that hold no secret: those that are references."""
    return {name: text for name, text in headers.items() if is_reference(text)}


def mask_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers with values that are no references masked."""
    return {name: text if is_reference(text) else "(hidden)" for name, text in headers.items()}


def tool_entry(
    row: ExpertTool,
    *,
    targets: Sequence[tuple[str, str]],
    whitelist: Iterable[str],
    users: Iterable[str],
    endpoints: Iterable[str],
    kept: Parked,
) -> JsonObject:
    """The tool as a file says it, in the order and with the spelling that ``kept`` remembers.

    ``targets``: (provider, model) in order; ``whitelist``: ``server::tool``.
    """
    said = _dump_row(row, TOOL_FIELDS, set(kept.order) - set(kept.keys))
    first, *rest = targets or [("", "")]
    must = {"name": row.name, "description": row.description, **said}
    must |= {"internal_tools": _whitelist(whitelist, kept), "provider": first[0], "model": first[1]}
    for key, value in (
        ("fallbacks", [{"provider": provider, "model": model} for provider, model in rest]),
        ("users", _as_spelled("users", sorted(users), kept)),
        ("endpoints", _as_spelled("endpoints", sorted(endpoints), kept)),
    ):
        if value or (key in kept.order and key not in kept.keys):
            must[key] = value
    whole = {**kept.keys, **must}
    return {key: whole[key] for key in (*kept.order, *whole) if key in whole}


def _as_spelled(key: str, values: list[str], kept: Parked) -> list[str]:
    spelled = kept.spelling.get(key)
    return list(spelled) if spelled is not None and sorted(spelled) == values else values


def _whitelist(names: Iterable[str], kept: Parked) -> JsonObject:
    wanted = set(names)
    spelled = kept.spelling.get("internal_tools", {})
    if set(list_whitelist(spelled)) == wanted:
        return dict(spelled)
    found: dict[str, list[str]] = {}
    for name in sorted(wanted):
        server, _, tool = name.partition("::")
        found.setdefault(server, []).append(tool)
    return dict(found)


def list_whitelist(internal_tools: Mapping[str, Sequence[str]]) -> list[str]:
    """``server::tool`` for each tool, in order, each once."""
    return list(
        dict.fromkeys(
            f"{make_slug(server)}::{name}"
            for server, names in internal_tools.items()
            for name in names
        )
    )


def key_of(tool: Tool) -> str:
    """``server::tool``."""
    return f"{tool.server.slug}::{tool.name}"
