"""How a trial sees the tools that a server defines, and which of them it may call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from mcpregistry.domain.definitions.definition import select_visible_fields
from mcpregistry.domain.definitions.findings import Severity
from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.host_definitions import repair_definition
from mcpregistry.domain.offer_kinds import TOOL
from mcpregistry.domain.schema.validation import check_schema
from mcpregistry.domain.text.canonical import clean_text, encode_lossy_json, hash_parts
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.domain.trials.arguments import Impossible, make_arguments
from mcpregistry.domain.trials.report import Called, ToolSeen

if TYPE_CHECKING:
    from mcpregistry.domain.definitions.scanner import Scanner

MOST_CALLS = 10
MOST_FOUND = 3
MOST_SHORTENED = 50
LONGEST_SCHEMA = 4_000


def inspect_tools(
    tools: Iterable[dict[str, Any]],
    *,
    instructions: str,
    others: frozenset[str],
    count: Callable[[str], int],
) -> list[ToolSeen]:
    """Every tool scanned, checked and counted; ``others`` are the names of other servers' tools,
    ``count`` counts tokens."""
    listed = list(tools)
    own = frozenset(str(tool["name"]) for tool in listed)
    # 6 MB, and few processes look at what is new
    from mcpregistry.domain.definitions.scanner import Scanner

    scanner = Scanner(own=own, others=others)
    return [
        _inspect_tool(tool, select_visible_fields(tool, instructions), scanner, count)
        for tool in listed
    ]


def _inspect_tool(
    tool: dict[str, Any], body: dict[str, Any], scanner: Scanner, count: Callable[[str], int]
) -> ToolSeen:
    found = scanner.scan(body)
    text = encode_lossy_json(body)
    said = tool.get("annotations")
    claims = said if isinstance(said, dict) else {}
    return ToolSeen(
        name=clean_text(str(tool["name"]), 500),
        hash=hash_parts(text),
        reads=claims.get("readOnlyHint") is True,
        destroys=claims.get("destructiveHint") is True,
        closed_world=claims.get("openWorldHint") is False,
        tokens=count(text),
        severity=max((int(finding.severity) for finding in found), default=0),
        found=[
            clean_text(f"{each.why} ({each.where}: {each.excerpt})", 500)
            for each in found[:MOST_FOUND]
        ],
        schema=_explain_unusable_schema(tool),
        call=Called(),
    )


def _explain_unusable_schema(tool: dict[str, Any]) -> str:
    """Why its schemas cannot be used; empty where they can."""
    shown = repair_definition(TOOL, tool).definition
    for name in ("inputSchema", "outputSchema"):
        if shown.get(name) is not None:
            try:
                check_schema(shown[name])
            except ConfigInvalid as error:
                return clean_text(f"{name}: {show_invisible_characters(error.message, 400)}", 500)
    return ""


def choose_test_calls(
    tools: Sequence[dict[str, Any]], rows: Sequence[ToolSeen]
) -> dict[str, bytes]:
    """Arguments (JSON) for the tools that claim to read and raise no alarm, a few; in ``rows``
    stands why not of others."""
    found: dict[str, bytes] = {}
    for tool, row in zip(tools, rows, strict=True):
        if why := explain_skipped_call(row, len(found)):
            row["call"] = Called(outcome="skipped", why=why)
            continue
        try:
            found[str(tool["name"])] = msgspec.json.encode(
                make_arguments(repair_definition(TOOL, tool).definition["inputSchema"])
            )
        except Impossible as error:
            row["call"] = Called(
                outcome="skipped", why=clean_text(show_invisible_characters(str(error), 300), 300)
            )
    return found


def explain_skipped_call(row: ToolSeen, so_far: int) -> str:
    """Why a trial does not call it; empty where it may. ``so_far``: calls that it has made."""
    if not row["reads"]:
        return "it does not declare that it only reads"
    if row["destroys"]:
        return "it declares that it is destructive"
    if row["severity"] >= Severity.ALARM:
        return "its definition has findings"
    if row["schema"]:
        return "its schema cannot be used"
    return f"{MOST_CALLS} other tools were called before it" if so_far >= MOST_CALLS else ""


def shorten_definitions(tools: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Description and input schema by name, for a model that shall call them; of long schemas none,
    of many tools the first."""
    found: dict[str, dict[str, Any]] = {}
    for tool in [*tools][:MOST_SHORTENED]:
        schema = tool.get("inputSchema")
        short = {"description": clean_text(str(tool.get("description", "")), 300)}
        fits = len(encode_lossy_json(schema)) <= LONGEST_SCHEMA
        found[clean_text(str(tool["name"]), 500)] = short | (
            {"inputSchema": schema} if fits else {}
        )
    return found
