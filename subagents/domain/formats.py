"""The format of the answer of an expert tool: the arguments ``format`` and ``schema``, in addition
to those of the tool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcpregistry.domain.errors import ArgumentsInvalid, ConfigInvalid
from mcpregistry.domain.schema.validation import check_schema

FORMAT = "format"
SCHEMA = "schema"
TEXT = "text"
MARKDOWN = "markdown"
JSON = "json"
FORMATS = (TEXT, MARKDOWN, JSON)
FORMAT_SCHEMA = {
    "type": "string",
    "enum": list(FORMATS),
    "description": "Format of the answer. json requires a schema.",
}
ANSWER_SCHEMA = {
    "type": "object",
    "description": "JSON Schema of the answer. Required if format is json.",
}
_INSTRUCTIONS = {
    TEXT: "Answer in plain text without any markup.",
    MARKDOWN: "Answer in Markdown.",
    JSON: "Your final answer must be one JSON value and nothing else: no code fence and no other text.",
}


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """``format``: one of ``FORMATS``, or "" for the default of the tool. ``schema``: JSON Schema of
    the answer, for json."""

    format: str = ""
    schema: Mapping[str, Any] | None = None


OWN_FORMAT = AnswerFormat()


def instruction_for(format: str) -> str:
    """Return the instruction for the model, or "" for the default format."""
    return _INSTRUCTIONS.get(format, "")


def takes_formats(input_schema: Mapping[str, Any]) -> bool:
    """Return whether callers can choose a format. They cannot if the tool has arguments with these
    names."""
    return not {FORMAT, SCHEMA} & (input_schema.get("properties") or {}).keys()


def with_formats(input_schema: Mapping[str, Any], *, required: bool) -> dict[str, Any]:
    """Return the input schema with ``format`` and ``schema``.

    The schema does not say that json requires a schema, because hosts and model APIs do not accept
    conditions.
    """
    own = {FORMAT: FORMAT_SCHEMA, SCHEMA: ANSWER_SCHEMA}
    needed = [*(input_schema.get("required") or []), *([FORMAT] if required else [])]
    named = {**(input_schema.get("properties") or {}), **own}
    return {**input_schema, "properties": named, **({"required": needed} if needed else {})}


def split_format(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], AnswerFormat]:
    """Split arguments into those of the tool and the format of the answer.

    Raises ArgumentsInvalid if format and schema do not match, or if the schema is not valid.
    """
    own = {name: value for name, value in arguments.items() if name not in (FORMAT, SCHEMA)}
    answer_format = AnswerFormat(str(arguments.get(FORMAT, "")), arguments.get(SCHEMA))
    if answer_format.format == JSON and answer_format.schema is None:
        raise ArgumentsInvalid(
            "The format json requires a schema.",
            remedy='Add "schema" with the JSON Schema of the answer.',
        )
    if answer_format.format != JSON and answer_format.schema is not None:
        raise ArgumentsInvalid(
            "A schema requires the format json.",
            remedy='Set "format" to "json", or remove the schema.',
        )
    if answer_format.schema is not None:
        _check(answer_format.schema)
    return own, answer_format


def _check(schema: Mapping[str, Any]) -> None:
    try:
        check_schema(schema)
    except ConfigInvalid as error:
        problem = error.message.replace("The tool's input schema", "The schema of the answer", 1)
        raise ArgumentsInvalid(
            f"{problem.removesuffix('.')}.", remedy="Correct the schema."
        ) from error
