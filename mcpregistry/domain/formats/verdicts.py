"""What a JSON Schema of ours has against a file, said in our words."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

import jsonschema_rs

from mcpregistry.domain.formats.document import Json, JsonObject
from mcpregistry.domain.formats.notes import FormatReport, Note, make_pointer


@cache
def load_schema(name: str) -> JsonObject:
    """The JSON Schema (draft-07) of that name under ``schemas/``, also for others to validate
    with."""
    text = files(__package__).joinpath("schemas", f"{name}.schema.json").read_text("utf-8")
    return dict(json.loads(text))


@cache
def _build_validator(name: str) -> jsonschema_rs.Draft7Validator:
    return jsonschema_rs.Draft7Validator(load_schema(name))


def validate_file(data: Json, path: str, name: str = "slipsnisse") -> tuple[Note, ...]:
    """Everything the schema has against the data, as refused notes; empty means valid."""
    report = FormatReport(path)
    for error in _build_validator(name).iter_errors(data):
        report.refuse(make_pointer(*error.instance_path), *_describe_error(error))
    return tuple(report.notes)


def _describe_error(error: jsonschema_rs.ValidationError) -> tuple[str, str]:
    """Sentence and remedy. The validator's own message is not used: it quotes the value, which may
    be a secret."""
    facts = error.kind.as_dict()
    match error.kind.name:
        case "required":
            return f"The key {facts['property']} is missing.", f"Add {facts['property']}."
        case "type":
            return f"The value is not of type {' or '.join(facts['types'])}.", "Correct the value."
        case "enum":
            return (
                "The value is not one of the choices.",
                f"Choose one of {', '.join(map(str, facts['options']))}.",
            )
        case "anyOf":
            return (
                "The server needs command and args, or a url.",
                "Add the command that starts the server, or its address.",
            )
        case "additionalProperties":
            names = ", ".join(map(str, facts["unexpected"]))
            return f"These keys are not known: {names}.", "Correct or remove these keys."
        case name:
            limit = f" ({name}: {facts['limit']})" if "limit" in facts else ""
            return f"The value is out of range{limit}.", "Correct the value."
