"""Definitions as hosts can accept them: what a server lists, with what no host could read put
right.

Hosts on the official clients refuse a whole list, of all servers of an endpoint, for one definition
that does not follow the schema of the protocol. What is approved and pinned is the server's own
text; hosts are shown this form of it, which depends on that text alone.

Source: MCP 2025-11-25 and 2026-07-28, Tool, Prompt, Resource, ResourceTemplate.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mcpregistry.domain.definition_members import drop_misfits
from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.offer_kinds import KINDS, PROMPT, TOOL, build_arguments_schema
from mcpregistry.domain.schema.repair import Repaired, repair_schema
from mcpregistry.domain.schema.validation import check_arguments, check_schema

# A regular expression that JavaScript reads as our validator does, with the flag "u": no escapes
# but these, no named or inline groups. A schema of results with any other is shown without its
# patterns.
_PLAIN_PATTERN = re.compile(
    r"""(?:[^\\(]|\\[dDwWsSbBnrtfv0^$\\.*+?()\[\]{}|/]|\((?!\?)|\(\?[:=!])*"""
)
# The dialects that the official TypeScript client reads. It refuses calls of a tool whose
# outputSchema names another.
_DIALECT = re.compile(r"https?://json-schema\.org/(?:draft-0[67]|draft/20(?:19-09|20-12))/schema#?")
Definition = Mapping[str, Any]
# Marks the lines about changes among those about left-out definitions on a server's page.
WITH_CHANGES = "shown to hosts with changes"


@dataclass(frozen=True, slots=True)
class ShownDefinition:
    """``definition`` as hosts get it. ``remarks`` say what was changed, in short phrases."""

    definition: Definition
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MemberChange:
    """One member of a definition, as its server lists it and as hosts get it; None where it is
    absent."""

    name: str
    listed: Any
    shown: Any
    reasons: tuple[str, ...] = ()


def check_tool_is_usable(tool: Definition) -> str:
    """Return why no host could use the tool, so that it must be left out; empty where hosts can."""
    schema = tool.get("inputSchema")
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if (
        kind is None
        or kind == "object"
        or (isinstance(kind, list) and (not kind or "object" in kind))
    ):
        return ""
    return f"its inputSchema describes a value of type {str(kind)[:40]}, but arguments are always an object"


def check_call(kind: str, shown: Definition, arguments: Mapping[str, Any]) -> bool:
    """Check the arguments of a call against a definition as hosts get it.

    Returns False where a tool's schema cannot be used: then its server alone checks them. Raises
    ArgumentsInvalid for arguments that do not fit, and ConfigInvalid for a template of resources
    that cannot be used.
    """
    try:
        check_arguments(build_arguments_schema(kind, shown), arguments)
    except ConfigInvalid:
        if kind != TOOL:
            raise
        return False
    return True


def list_changes(kind: str, listed: Definition) -> tuple[str, ...]:
    """Return what hosts get that is not as the server lists it, and what is not checked here, in
    short phrases."""
    shown = repair_definition(kind, listed)
    if kind != TOOL:
        return shown.remarks
    try:
        check_schema(build_arguments_schema(kind, shown.definition))
    except ConfigInvalid as error:
        return (*shown.remarks, f"only the server checks its arguments ({error.message})")
    return shown.remarks


def compare_members(kind: str, listed: Definition) -> list[MemberChange]:
    """Return the members of a definition that hosts get in another form, each with both forms and
    the reasons.

    A reason that is about no single member comes last, with an empty name.
    """
    shown = repair_definition(kind, listed).definition
    names = [*listed, *(name for name in shown if name not in listed)]
    changed = [name for name in names if shown.get(name) != listed.get(name)]
    reasons = list_changes(kind, listed)
    found = [
        MemberChange(
            name, listed.get(name), shown.get(name), tuple(r for r in reasons if _is_about(r, name))
        )
        for name in changed
    ]
    rest = tuple(
        reason for reason in reasons if not any(_is_about(reason, name) for name in changed)
    )
    return [*found, *([MemberChange("", None, None, rest)] if rest else [])]


def _is_about(reason: str, member: str) -> bool:
    return re.match(rf"{re.escape(member)}\b", reason) is not None


def keep_left_out(listing: str) -> list[str]:
    """Return the lines about left-out definitions, without those about changes."""
    return [line for line in listing.splitlines() if WITH_CHANGES not in line]


def repair_definition(kind: str, listed: Definition) -> ShownDefinition:
    """Return a listed definition as hosts can accept it; the very same object where nothing had to
    be changed."""
    fixed = drop_misfits(dict(listed))
    remarks = [
        f"{key} does not follow the MCP specification"
        for key in listed
        if _is_member_changed(listed, fixed, key)
    ]
    if kind == TOOL:
        return _repair_tool(listed, fixed, remarks)
    identity = KINDS[kind].identity
    fixed = (
        _repair_prompt(fixed, remarks)
        if kind == PROMPT
        else _repair_resource(fixed, remarks, identity)
    )
    return ShownDefinition(listed if fixed == listed else fixed, tuple(remarks))


def _is_member_changed(listed: Definition, fixed: Definition, key: str) -> bool:
    """Whether a member was changed. One that is null, or has members that are, says nothing that
    could be lost."""
    said = listed[key]
    if isinstance(said, Mapping):
        said = {name: value for name, value in said.items() if value is not None}
    return said is not None and (key not in fixed or fixed[key] != said)


def _repair_tool(listed: Definition, fixed: dict[str, Any], remarks: list[str]) -> ShownDefinition:
    said = listed.get("inputSchema")
    schema = said if isinstance(said, Mapping) else {"type": "object"}
    repaired = repair_schema(schema)
    remarks += _prefix_remarks("inputSchema", repaired)
    typed = schema.get("type") == "object"
    fixed["inputSchema"] = repaired.schema if typed else {**repaired.schema, "type": "object"}
    if isinstance(said, Mapping) and not typed:
        remarks.append("inputSchema: the missing type 'object' was added")
    if "outputSchema" in listed:
        _repair_output(listed["outputSchema"], fixed, remarks)
    same = len(fixed) == len(listed) and all(
        fixed.get(key) is value for key, value in listed.items()
    )
    return ShownDefinition(listed if same else fixed, tuple(remarks))


def _repair_output(schema: object, fixed: dict[str, Any], remarks: list[str]) -> None:
    """Show the schema of results only where JavaScript hosts can compile it: they lose the whole
    list otherwise."""
    if not isinstance(schema, Mapping):
        del fixed["outputSchema"]
        if schema is not None:
            remarks.append("outputSchema is not an object; left out")
        return
    repaired = repair_schema(schema)
    if "$id" in repaired.schema and "$ref" not in str(repaired.schema):
        repaired.schema = {key: value for key, value in repaired.schema.items() if key != "$id"}
    dialect = repaired.schema.get("$schema")
    if dialect is not None and not _DIALECT.fullmatch(dialect):
        repaired.schema = {key: value for key, value in repaired.schema.items() if key != "$schema"}
        repaired.remarks.append(
            f"/$schema: hosts cannot read the dialect {dialect[:60]!r}; left out"
        )
    if reason := _check_compiles(repaired.schema):
        del fixed["outputSchema"]
        remarks.append(f"outputSchema: {reason}; left out")
        return
    remarks += _prefix_remarks("outputSchema", repaired)
    fixed["outputSchema"] = repaired.schema


def _check_compiles(schema: Mapping[str, Any]) -> str:
    """Return why hosts in JavaScript cannot compile it; empty if they can."""
    if odd := next(
        (each for each in _find_patterns(schema) if not _PLAIN_PATTERN.fullmatch(each)), None
    ):
        return f"JavaScript hosts cannot read its pattern {odd[:60]!r}"
    anchors = Counter(_find_anchors(schema))
    if twice := next((name for name, count in anchors.items() if count > 1), None):
        return f"it defines the anchor {twice[:60]!r} more than once"
    return ""


def _find_anchors(node: object) -> Iterator[str]:
    if isinstance(node, Mapping):
        yield from (
            node[word] for word in ("$anchor", "$dynamicAnchor") if isinstance(node.get(word), str)
        )
        for value in node.values():
            yield from _find_anchors(value)
    elif isinstance(node, list):
        for value in node:
            yield from _find_anchors(value)


def _find_patterns(node: object) -> Iterator[str]:
    if isinstance(node, Mapping):
        for word, value in node.items():
            if word == "pattern" and isinstance(value, str):
                yield value
            elif word == "patternProperties" and isinstance(value, Mapping):
                yield from value
            yield from _find_patterns(value)
    elif isinstance(node, list):
        for value in node:
            yield from _find_patterns(value)


def _prefix_remarks(member: str, repaired: Repaired) -> list[str]:
    return [f"{member}{remark}" for remark in repaired.remarks]


def _repair_prompt(fixed: dict[str, Any], remarks: list[str]) -> dict[str, Any]:
    arguments = fixed.get("arguments")
    if not isinstance(arguments, list):
        return fixed
    read = [_repair_argument(each) for each in arguments]
    if read == arguments:
        return fixed
    remarks.append("arguments do not follow the MCP specification")
    return fixed | {"arguments": read}


def _repair_argument(said: Mapping[str, Any]) -> dict[str, Any]:
    fixed = drop_misfits(dict(said))
    if "required" in fixed and not isinstance(fixed["required"], bool):
        fixed["required"] = fixed["required"] in ("true", "True", 1)
    return fixed


def _repair_resource(fixed: dict[str, Any], remarks: list[str], identity: str) -> dict[str, Any]:
    if isinstance(fixed.get("name"), str):
        return fixed
    remarks.append("it has no name; its URI is used instead")
    return fixed | {"name": fixed[identity]}
