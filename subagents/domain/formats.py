"""In which form a caller wants the answer of an expert tool: ``format`` and ``schema`` beside the tool's own arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcpregistry.domain.errors import ArgumentsInvalid, ConfigInvalid
from mcpregistry.domain.schema.validation import check_schema

FORMAT, SCHEMA = "format", "schema"
TEXT, MARKDOWN, JSON = "text", "markdown", "json"
FORMATS = (TEXT, MARKDOWN, JSON)
FORMAT_SCHEMA = {"type": "string", "enum": list(FORMATS), "description": "Of the answer. json needs a schema."}
ANSWER_SCHEMA = {"type": "object", "description": "With format json: the JSON Schema that the answer must fit."}
_TOLD = {
    TEXT: "Answer in plain text without any markup.",
    MARKDOWN: "Answer in Markdown.",
    JSON: "Your last answer must be one JSON value and nothing else: no code fence, no words around it.",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """``format``: one of ``FORMATS``, or "" for the tool's own. ``schema``: JSON Schema of the answer, with json."""

    format: str = ""
    schema: Mapping[str, Any] | None = None


ANY = Wanted()


def told(format: str) -> str:
    """What the model is told of a format; nothing of the tool's own."""
    return _TOLD.get(format, "")


def takes_formats(input_schema: Mapping[str, Any]) -> bool:
    """Whether callers can say a format: not where the tool has arguments of its own with these names."""
    return not {FORMAT, SCHEMA} & (input_schema.get("properties") or {}).keys()


def with_formats(input_schema: Mapping[str, Any], *, required: bool) -> dict[str, Any]:
    """The input schema with ``format`` and ``schema``. That json needs a schema is checked when it is called: hosts and the
    APIs of models do not take conditions in the schema of a tool.
    """
    own = {FORMAT: FORMAT_SCHEMA, SCHEMA: ANSWER_SCHEMA}
    needed = [*(input_schema.get("required") or []), *([FORMAT] if required else [])]
    named = {**(input_schema.get("properties") or {}), **own}
    return {**input_schema, "properties": named, **({"required": needed} if needed else {})}


def split(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], Wanted]:
    """The tool's own arguments, and in which form the answer is wanted.

    Raises ArgumentsInvalid where format and schema do not belong together, and for a schema that cannot be used.
    """
    own = {name: value for name, value in arguments.items() if name not in (FORMAT, SCHEMA)}
    wanted = Wanted(str(arguments.get(FORMAT, "")), arguments.get(SCHEMA))
    if wanted.format == JSON and wanted.schema is None:
        raise ArgumentsInvalid("The format json needs a schema.", remedy='Add "schema": the JSON Schema of the answer.')
    if wanted.format != JSON and wanted.schema is not None:
        raise ArgumentsInvalid(
            "A schema is only for the format json.", remedy='Say "format": "json", or leave the schema out.'
        )
    if wanted.schema is not None:
        _check(wanted.schema)
    return own, wanted


def _check(schema: Mapping[str, Any]) -> None:
    try:
        check_schema(schema)
    except ConfigInvalid as error:
        raise ArgumentsInvalid(
            f"The schema of the answer cannot be used: {error.message}", remedy="Correct it."
        ) from error
