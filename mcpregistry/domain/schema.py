"""Validation of arguments against an untrusted JSON Schema, within bounds.

python-jsonschema hangs on a hostile ``pattern`` and both libraries fetch remote ``$ref`` by
default; here regular expressions have a budget, nothing is ever fetched, and a schema beyond the
budget is refused before it is compiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, cast

import jsonschema_rs

from mcpregistry.domain.errors import ArgumentsInvalid, ConfigInvalid

MAX_CHARACTERS, MAX_DEPTH, MAX_NODES = 256 * 1024, 64, 20_000
_MAX_PROBLEMS = 5
_MAX_VALIDATORS = 10_000
# Linear wherever the pattern allows it; look-around is honest and common, so it gets a small budget.
_PATTERNS = jsonschema_rs.FancyRegexOptions(backtrack_limit=10_000)
_validators: dict[str, Any] = {}


def check_schema(schema: Mapping[str, Any]) -> None:
    """Raises ConfigInvalid when the schema is too large, too deep or not a schema at all."""
    _compile(schema)


def check_arguments(definition_hash: str, schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Raises ArgumentsInvalid naming each wrong argument, ConfigInvalid for an unusable schema.

    ``definition_hash`` identifies the schema, so that it is compiled once.
    """
    validator = _validators.get(definition_hash)
    if validator is None:
        if len(_validators) >= _MAX_VALIDATORS:
            _validators.clear()
        validator = _validators[definition_hash] = _compile(schema)
    if not _fits(validator, arguments):
        problems = [_sentence(error) for error in islice(validator.iter_errors(arguments), _MAX_PROBLEMS)]
        raise ArgumentsInvalid(
            f"The arguments do not fit the tool's schema: {' '.join(problems)}", remedy="Correct them and call again."
        )


def _fits(validator: Any, arguments: Mapping[str, Any]) -> bool:
    try:
        return bool(validator.is_valid(arguments))
    except (ValueError, UnicodeError) as error:
        raise ArgumentsInvalid(
            "The arguments hold a value that cannot be checked: text that is no Unicode, or too deep nesting.",
            remedy="Correct them and call again.",
        ) from error


def _sentence(error: Any) -> str:
    where = "/" + "/".join(str(part) for part in error.instance_path)
    message = error.message if len(error.message) <= 300 else error.message[:299] + "…"
    return f"{where}: {message}."


def _compile(schema: Mapping[str, Any]) -> Any:
    _measure(schema)
    try:
        return jsonschema_rs.validator_for(dict(schema), offline=True, pattern_options=_PATTERNS)
    except (ValueError, UnicodeError, jsonschema_rs.ReferencingError) as error:
        problem = str(error).splitlines()[0]
        raise ConfigInvalid(f"The tool's input schema cannot be used: {problem}", remedy="Ask its author.") from error


def _measure(schema: Mapping[str, Any]) -> None:
    """Refuse what would cost too much before any of it is compiled."""
    nodes, size, waiting = 0, 0, [(cast(Any, schema), 0)]
    while waiting:
        node, depth = waiting.pop()
        nodes += 1
        size += len(node) if isinstance(node, str) else 1
        if depth > MAX_DEPTH or nodes > MAX_NODES or size > MAX_CHARACTERS:
            raise ConfigInvalid("The schema is too deep or too large.", remedy="Ask its author for a simpler one.")
        if isinstance(node, Mapping):
            waiting += [(item, depth + 1) for pair in node.items() for item in pair]
        elif isinstance(node, list | tuple):
            waiting += [(item, depth + 1) for item in node]
