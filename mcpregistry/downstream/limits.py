"""Bounds on what a server says, checked on the raw JSON, and the repair of what older servers say.

The SDK's models are not used here: they refuse servers that work, and the SDK's own check of a
result against the server's output schema runs the server's regular expressions on our event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from mcpregistry.domain import error_texts
from mcpregistry.domain.definitions.definition import select_visible_fields
from mcpregistry.domain.errors import (
    ProtocolError,
    ResourceLimit,
)
from mcpregistry.domain.host_definitions import check_tool_is_usable
from mcpregistry.domain.offer_kinds import KINDS, PROMPT, TOOL
from mcpregistry.domain.servers.target import ServerLimits
from mcpregistry.domain.text.canonical import measure_json
from mcpregistry.downstream.repairs import repair_answer

MAX_DEPTH = 128
MAX_NAME = 256
# of a fixed resource or a template; with its kind in front it is a name in the record (500)
MAX_URI = 490
SCHEMA_BYTES = 256 * 1024


def has_excess_depth(value: object, limit: int = MAX_DEPTH) -> bool:
    """Whether JSON nests deeper than ``limit`` levels. Iterative, so that depth cannot hurt us."""
    level: list[object] = [value]
    for _ in range(limit):
        level = [inner for outer in level for inner in _list_containers(outer)]
        if not level:
            return False
    return True


def _list_containers(value: object) -> list[object]:
    if type(value) is dict:
        return [item for item in value.values() if type(item) in (dict, list)]
    if type(value) is list:
        return [item for item in value if type(item) in (dict, list)]
    return []


def check_result(
    result: dict[str, Any], limits: ServerLimits, kind: str = TOOL, name: str = ""
) -> dict[str, Any]:
    """Return the result of a call of ``name`` (a read: its URI) if it is within bounds, as hosts
    can read it.

    Raises ResourceLimit, or ProtocolError for what no host could read.
    """
    content = result.get(KINDS[kind].answer)
    if type(content) is list and len(content) > limits.max_items:
        raise ResourceLimit(
            f"The answer has {len(content):,} content items. At most {limits.max_items:,} are allowed.",
            remedy="Request less data.",
            sent=True,
        )
    check_depth(result)
    return repair_answer(result, kind, name)


def check_depth(result: dict[str, Any]) -> dict[str, Any]:
    """The very same. Raises ResourceLimit for what nests too deeply."""
    if has_excess_depth(result):
        raise make_too_deep_error()
    return result


def make_too_deep_error() -> ResourceLimit:
    """The error for JSON that nests too deeply."""
    return ResourceLimit(
        f"The answer is nested more than {MAX_DEPTH} levels deep.",
        remedy="Request less data.",
        sent=True,
    )


def check_tools(
    listed: list[Any],
    beyond: int,
    limits: ServerLimits,
    unusable: Callable[[Mapping[str, Any]], str] = lambda tool: "",
) -> tuple[list[dict[str, Any]], list[str]]:
    """Usable tools, repaired, and a sentence for each that is left out, and for those ``beyond``
    what is taken; ``unusable`` gives further reasons.
    """
    tools = []
    problems = []
    for raw in listed:
        try:
            tool = check_tool(raw, limits)
        except (ResourceLimit, ProtocolError) as error:
            problems.append(error.message)
            continue
        if reason := unusable(tool):
            problems.append(reason)
        else:
            tools.append(tool)
    return tools, [*problems, *_describe_excess(TOOL, beyond, limits)]


def check_others(
    kind: str, listed: list[Any], beyond: int, limits: ServerLimits
) -> tuple[list[dict[str, Any]], list[str]]:
    """The same of prompts, resources and templates."""
    found = []
    problems = []
    check = check_prompt if kind == PROMPT else partial(_check_item, kind)
    for raw in listed:
        try:
            found.append(check(raw, limits))
        except (ResourceLimit, ProtocolError) as error:
            problems.append(error.message)
    return found, [
        *problems,
        *_describe_excess(kind, beyond, limits),
    ]


def limit_bytes(
    listed: Mapping[str, list[dict[str, Any]]], instructions: str, limits: ServerLimits
) -> tuple[dict[str, tuple[dict[str, Any], ...]], list[str]]:
    """Definitions, by kind, that fit into the server's limit together, and a sentence for each kind
    with some left out.

    Tools come first, with the server's instructions, which are part of each. If there is not enough
    room, the first by name are kept, whatever order the server lists them in, so that the same ones
    are kept every time.
    """
    kept: dict[str, tuple[dict[str, Any], ...]] = {}
    problems: list[str] = []
    left = limits.definition_bytes
    for kind, items in listed.items():
        sizes = [measure_json(select_visible_fields(item, instructions, kind)) for item in items]
        if sum(sizes) <= left:
            kept[kind] = tuple(items)
            left -= sum(sizes)
            continue
        chosen, left = _select_first_by_name(kind, items, sizes, left)
        kept[kind] = tuple(chosen)
        problems.append(
            f"{kind.capitalize()}s that are not used: {len(items) - len(chosen):,} of {len(items):,}. All definitions of the server "
            f"together are larger than {limits.definition_bytes:,} bytes, so only the first ones in alphabetical order are used. "
            "Raise “Size limit of definitions” on the page of the server, or use a server with fewer definitions."
        )
    return kept, problems


def _select_first_by_name(
    kind: str, items: list[dict[str, Any]], sizes: list[int], left: int
) -> tuple[list[dict[str, Any]], int]:
    """The items that fit, in their order, and the room that is left: none for what comes after the
    first that does not fit."""
    by_name = sorted(range(len(items)), key=lambda place: str(items[place][KINDS[kind].identity]))
    fitting: set[int] = set()
    for place in by_name:
        if sizes[place] > left:
            return [items[each] for each in sorted(fitting)], 0
        fitting.add(place)
        left -= sizes[place]
    return items, left


def _describe_excess(kind: str, beyond: int, limits: ServerLimits) -> list[str]:
    """What is said of those beyond the limit."""
    if not beyond:
        return []
    return [
        f"The number of {kind}s exceeds the limit of {limits.max_tools:,} by {beyond:,}. Only the first ones in alphabetical order are used. "
        "Raise “Tool limit” on the page of the server, or use a server with fewer definitions."
    ]


def check_tool(tool: object, limits: ServerLimits) -> dict[str, Any]:
    """One listed tool within bounds. Raises ResourceLimit or ProtocolError with the reason."""
    found = repair_tool(_check_item(TOOL, tool, limits))
    if why := check_tool_is_usable(found):
        raise ProtocolError(f"Tool {found['name']}: {why}.")
    return found


def check_prompt(prompt: object, limits: ServerLimits) -> dict[str, Any]:
    """One listed prompt within bounds, whose arguments have names. Raises ResourceLimit or
    ProtocolError."""
    found = _check_item(PROMPT, prompt, limits)
    arguments = found.get("arguments")
    if type(arguments) is list:
        listed = arguments
    elif arguments is None:
        listed = []
    else:
        listed = [arguments]
    if not all(isinstance(each, dict) and type(each.get("name")) is str for each in listed):
        raise ProtocolError(
            f"The arguments of prompt {found['name']} are not a list of objects with a name."
        )
    return found


def _check_item(what: str, item: object, limits: ServerLimits) -> dict[str, Any]:
    key = KINDS[what].identity
    most = MAX_NAME if what in (TOOL, PROMPT) else MAX_URI
    if (
        type(item) is not dict
        or type(name := item.get(key)) is not str
        or not 0 < len(name) <= most
    ):
        raise ProtocolError(
            f"The server lists a {what} without a valid {key} (1 to {most} characters)."
        )
    description = item.get("description")
    if isinstance(description, str) and len(description.encode()) > limits.max_description:
        raise ResourceLimit(
            f"The description of {what} {name} is larger than {limits.max_description:,} bytes."
        )
    if has_excess_depth(item):
        raise ResourceLimit(
            f"The definition of {what} {name} is nested more than {MAX_DEPTH} levels deep."
        )
    if len(msgspec.json.encode(item)) > SCHEMA_BYTES + limits.max_description:
        raise ResourceLimit(
            f"The definition of {what} {name} is larger than {SCHEMA_BYTES:,} bytes."
        )
    return item


def check_instructions(instructions: str, limits: ServerLimits) -> None:
    """A server's instructions within bounds: they become part of every definition of it. Raises
    ResourceLimit."""
    if len(instructions.encode(errors="replace")) > limits.max_description:
        raise ResourceLimit(
            f"The server's instructions are larger than {limits.max_description:,} bytes.",
            remedy="Ask the developers of the server to shorten the instructions.",
        )


def repair_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """Early servers said ``parameters`` for ``inputSchema``; some say nothing, which means no
    arguments."""
    if type(tool.get("inputSchema")) is dict:
        return tool
    rest = {key: value for key, value in tool.items() if key not in ("parameters", "inputSchema")}
    parameters = tool.get("parameters")
    return {**rest, "inputSchema": parameters if type(parameters) is dict else {"type": "object"}}


def check_arguments(arguments_json: bytes) -> bytes:
    """The stored argument bytes as one line, ready to be spliced in. Raises ProtocolError (nothing
    sent)."""
    try:
        _decode_object(arguments_json)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(
            "The arguments are not a valid JSON object.",
            remedy=error_texts.advise_form("an object", "{}"),
        ) from error
    # only ever between tokens: strings escape them
    if b"\n" in arguments_json or b"\r" in arguments_json:
        arguments_json = arguments_json.replace(b"\n", b" ").replace(b"\r", b" ")
    return arguments_json


_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


def drop_private_meta(meta: Mapping[str, Any] | None) -> dict[str, Any]:
    """The caller's ``_meta`` without what belongs to one hop: progress tokens and protocol keys."""
    if not meta:
        return {}
    return {
        key: value
        for key, value in meta.items()
        if key not in ("progressToken", "progress_token")
        and not key.startswith("io.modelcontextprotocol/")
    }


def make_too_large_error(limit: int) -> ResourceLimit:
    """The error for a message beyond the limit."""
    return ResourceLimit(
        f"The server's answer is larger than the limit of {limit:,} bytes.",
        remedy="Request less data, or raise “Max message bytes” on the page of the server.",
        sent=True,
    )
