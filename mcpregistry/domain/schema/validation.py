"""Validation of arguments against an untrusted JSON Schema, within bounds.

python-jsonschema hangs on a hostile ``pattern`` and both libraries fetch remote ``$ref`` by
default; here regular expressions have a budget, nothing is ever fetched, and a schema beyond the
budget is refused before it is compiled. What would take too long to check is refused unchecked (see
``cost``), because a check cannot be interrupted and would stop every other call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

import jsonschema_rs

from mcpregistry.domain.errors import ArgumentsInvalid, ConfigInvalid
from mcpregistry.domain.schema import cost
from mcpregistry.domain.text.canonical import encode_canonical_json, hash_parts

MAX_CHARACTERS = 256 * 1024
MAX_DEPTH = 64
MAX_NODES = 20_000
_MAX_PROBLEMS = 5
_MAX_VALIDATORS = 10_000
_ASK_DEVELOPERS = "Ask the developers of the server to correct the schema."
# Linear wherever the pattern allows it; look-around is honest and common, so it gets a small
# budget.
_PATTERNS = jsonschema_rs.FancyRegexOptions(backtrack_limit=10_000)
# Visits of the validator (tens of nanoseconds each); with so few for each place, a value is not
# even measured.
_MAX_VISITS = 200_000
_FEW_VISITS = 100


@dataclass(frozen=True, slots=True)
class _Compiled:
    validator: Any
    visits: tuple[int, ...]  # by depth of the value


_compiled: dict[str, _Compiled | ConfigInvalid] = {}  # by the digest of the schema


def check_schema(schema: Mapping[str, Any]) -> None:
    """Raises ConfigInvalid when the schema is too large, too deep or not a schema at all."""
    _compile(schema)


def check_arguments(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Raises ArgumentsInvalid naming each wrong argument, ConfigInvalid for an unusable schema."""
    found = list_problems(schema, arguments)
    if found:
        raise ArgumentsInvalid(
            f"The arguments do not match the tool's schema: {' '.join(found)}",
            remedy="Correct the arguments, then call the tool again.",
        )


def list_problems(schema: Mapping[str, Any], value: Any) -> list[str]:
    """What is wrong with any JSON value, a sentence each; empty when it fits.

    Raises ConfigInvalid for an unusable schema, ArgumentsInvalid for a value that cannot be checked
    in time.
    """
    validator = _find_failing_validator(schema, value)
    return (
        [_describe_problem(error) for error in islice(validator.iter_errors(value), _MAX_PROBLEMS)]
        if validator
        else []
    )


def list_broken_schema_paths(schema: Mapping[str, Any], value: Any) -> list[str]:
    """The places of the schema that the value breaks, a few; it raises as ``list_problems``
    does."""
    validator = _find_failing_validator(schema, value)
    errors = islice(validator.iter_errors(value), _MAX_PROBLEMS) if validator else ()
    return ["/" + "/".join(str(part) for part in error.schema_path)[:200] for error in errors]


def _find_failing_validator(schema: Mapping[str, Any], value: Any) -> Any:
    """None when the value fits; else the validator, which says why."""
    compiled = _compile_cached(schema)
    if isinstance(compiled, ConfigInvalid):
        raise ConfigInvalid(compiled.message, remedy=compiled.remedy)
    if compiled.visits[-1] > _FEW_VISITS:
        _refuse_long_work(compiled, value)
    return None if _is_valid(compiled.validator, value) else compiled.validator


def _compile_cached(schema: Mapping[str, Any]) -> _Compiled | ConfigInvalid:
    """The key is the schema itself, never a hash of something that contains it: a tool's definition
    has several schemas."""
    try:
        key = hash_parts(encode_canonical_json(schema))
    except ValueError as error:
        return ConfigInvalid(f"The schema cannot be used. {error}", remedy=_ASK_DEVELOPERS)
    compiled = _compiled.get(key)
    if compiled is None:
        if len(_compiled) >= _MAX_VALIDATORS:
            _compiled.clear()
        compiled = _compile_or_say(schema)
        _compiled[key] = compiled
    return compiled


def _is_valid(validator: Any, arguments: Mapping[str, Any]) -> bool:
    try:
        return bool(validator.is_valid(arguments))
    except (ValueError, UnicodeError) as error:
        raise ArgumentsInvalid(
            "The arguments contain a value that cannot be checked: an incomplete Unicode character, or values that are nested too deeply.",
            remedy="Correct the arguments, then call the tool again.",
        ) from error


def _describe_problem(error: Any) -> str:
    where = "/" + "/".join(str(part) for part in error.instance_path)
    message = error.message if len(error.message) <= 300 else error.message[:299] + "…"
    return f"{where}: {message}."


def _refuse_long_work(compiled: _Compiled, arguments: Mapping[str, Any]) -> None:
    places = 0
    depth = 0
    level = [cast(Any, arguments)]
    while level:
        places += len(level)
        depth += 1
        inner = [
            node.values() if isinstance(node, Mapping) else node
            for node in level
            if _has_subschemas(node)
        ]
        level = [part for parts in inner for part in parts]
    if compiled.visits[min(depth, len(compiled.visits)) - 1] * places > _MAX_VISITS:
        raise ArgumentsInvalid(
            "The site cannot check these arguments in time: the tool's schema is too complex for so many or so deeply nested values.",
            remedy="Send fewer values, with fewer levels. Or ask the developers of the server for a simpler schema.",
        )


def _has_subschemas(node: object) -> bool:
    return isinstance(node, Mapping | list | tuple) and bool(node)


def _compile_or_say(schema: Mapping[str, Any]) -> _Compiled | ConfigInvalid:
    """A schema that cannot be used is not compiled at every call to find that out."""
    try:
        return _compile(schema)
    except ConfigInvalid as error:
        return error


def _compile(schema: object) -> _Compiled:
    if not isinstance(schema, Mapping):
        raise ConfigInvalid("The tool's input schema is not an object.", remedy=_ASK_DEVELOPERS)
    _measure(schema)
    try:
        visits = tuple(cost.count_visits(schema))
        if visits[min(2, len(visits) - 1)] > _MAX_VISITS:
            raise cost.TooTangled("it has too many branches")
        validator = jsonschema_rs.validator_for(
            dict(schema), offline=True, pattern_options=_PATTERNS
        )
        return _Compiled(validator, visits)
    except (ValueError, UnicodeError, jsonschema_rs.ReferencingError) as error:
        problem = str(error).splitlines()[0]
        raise ConfigInvalid(
            f"The tool's input schema cannot be used: {problem}", remedy=_ASK_DEVELOPERS
        ) from error


def _measure(schema: Mapping[str, Any]) -> None:
    """Refuse what would cost too much before any of it is compiled."""
    nodes = 0
    size = 0
    waiting = [(cast(Any, schema), 0)]
    while waiting:
        node, depth = waiting.pop()
        nodes += 1
        size += len(node) if isinstance(node, str) else 1
        if depth > MAX_DEPTH or nodes > MAX_NODES or size > MAX_CHARACTERS:
            raise ConfigInvalid(
                f"The schema is nested more than {MAX_DEPTH} levels deep, or has more than {MAX_NODES:,} values or {MAX_CHARACTERS:,} characters.",
                remedy=_ASK_DEVELOPERS,
            )
        if isinstance(node, Mapping):
            waiting += [(item, depth + 1) for pair in node.items() for item in pair]
        elif isinstance(node, list | tuple):
            waiting += [(item, depth + 1) for item in node]
