"""Slipsnisse files: the schema's exact verdicts, and the checks beyond it."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from mcpregistry.domain.formats import FORMATS, text
from mcpregistry.domain.formats.document import Document, ServerEntry
from mcpregistry.domain.formats.slipsnisse import build_input_schema
from mcpregistry.domain.formats.verdicts import load_schema, validate_file
from tests.domain.formats.samples import sample

CORPUS = sorted((Path(__file__).parent / "verdicts").iterdir())
STRICT = FORMATS["slipsnisse"]
EXTENDED = FORMATS["slipsnisse-extended"]


def tool(**changes: object) -> dict[str, object]:
    base = {
        "name": "t",
        "description": "d",
        "internal_tools": {"fs": ["read"]},
        "provider": "google",
        "model": "m",
    }
    return base | changes


def config(*tools: dict[str, object]) -> dict[str, object]:
    return {"mcps": {"fs": {"command": "npx", "args": []}}, "tools": list(tools)}


@pytest.mark.parametrize("variant", ["slipsnisse", "slipsnisse-extended"])
def test_the_published_schema_is_a_valid_draft_07_schema(variant: str) -> None:
    jsonschema.Draft7Validator.check_schema(load_schema(variant))
    assert load_schema(variant)["$schema"] == "http://json-schema.org/draft-07/schema#"


@pytest.mark.parametrize("variant", ["slipsnisse", "slipsnisse-extended"])
@pytest.mark.parametrize("path", CORPUS, ids=[path.stem for path in CORPUS])
def test_the_verdict_is_that_of_the_reference_validator(path: Path, variant: str) -> None:
    data = text.load(path.read_bytes(), path.name)
    errors = list(jsonschema.Draft7Validator(load_schema(variant)).iter_errors(data))
    notes = validate_file(data, path.name, variant)
    assert sorted(note.pointer for note in notes) == sorted(
        "".join(f"/{part}" for part in error.absolute_path) for error in errors
    )
    if variant == "slipsnisse":
        assert bool(notes) == path.name.startswith("invalid")


@pytest.mark.parametrize("key", ["name", "description", "internal_tools", "provider", "model"])
def test_a_missing_key_is_named(key: str) -> None:
    (note,) = validate_file(config({k: v for k, v in tool().items() if k != key}), "x.yaml")
    assert note.pointer == "/tools/0"
    assert key in note.sentence


def test_an_empty_file_gets_two_messages() -> None:
    assert [note.sentence for note in validate_file({}, "x.yaml")] == [
        "The key mcps is missing.",
        "The key tools is missing.",
    ]


def test_a_verdict_never_quotes_a_value() -> None:
    broken = {
        "mcps": {
            "fs": {"command": ["sk-secret"], "args": "sk-secret", "env": {"T": ["sk-secret"]}}
        },
        "tools": "sk-secret",
    }
    assert "sk-secret" not in " ".join(map(str, validate_file(broken, "x.yaml")))


def test_an_unknown_provider_passes_only_in_the_extended_format_and_the_refusal_says_so() -> None:
    data = config(tool(provider="cohere"))
    refused = STRICT.read(data, "x.yaml").refused
    assert refused[0].pointer == "/tools/0/provider"
    assert "--extended" in refused[-1].remedy
    assert not EXTENDED.read(data, "x.yaml").refused


@pytest.mark.parametrize(
    ("tools", "pointer"),
    [
        ([tool(), tool()], "/tools/1/name"),
        ([tool(name="two words")], "/tools/0/name"),
        ([tool(internal_tools={"nowhere": ["x"]})], "/tools/0/internal_tools/nowhere"),
    ],
)
def test_what_the_schema_cannot_say_is_checked_too(
    tools: list[dict[str, object]], pointer: str
) -> None:
    assert [note.pointer for note in STRICT.read(config(*tools), "x.yaml").refused] == [pointer]


def test_the_worked_example_means_the_same_in_yaml_and_json() -> None:
    one = STRICT.read(text.load(sample("slipsnisse/worked_example.yaml"), "x.yaml"), "x")
    two = STRICT.read(text.load(sample("slipsnisse/worked_example.json"), "x.json"), "x")
    assert one == two
    assert [server.key for server in one.servers] == ["filesystem", "rust_docs"]
    assert one.expert_tools[0]["internal_tools"]["rust_docs"] == ["search", "read_page"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            {"query": {"type": "string"}},
            {"properties": {"query": {"type": "string"}}, "required": ["query"]},
        ),
        ({"query": "string"}, {"properties": {"query": {"type": "string"}}, "required": ["query"]}),
        (
            {"n": {"type": "integer", "default": 5}, "o": {"type": "string", "optional": True}},
            {"properties": {"n": {"type": "integer", "default": 5}, "o": {"type": "string"}}},
        ),
        (
            {"type": {"type": "string"}},
            {"properties": {"type": {"type": "string"}}, "required": ["type"]},
        ),
        ({"type": "object", "properties": {"q": {}}}, {"properties": {"q": {}}}),
        ({}, {"properties": {}}),
        (None, {"properties": {}}),
    ],
)
def test_both_notations_of_arguments_give_an_input_schema(
    arguments: object, expected: dict[str, object]
) -> None:
    made = build_input_schema(arguments)
    jsonschema.Draft202012Validator.check_schema(made)
    assert made == {"type": "object", **expected}


def test_strict_export_refuses_a_remote_server_and_extended_export_writes_it() -> None:
    document = Document((ServerEntry("far", transport="http", url="https://far.example/mcp"),))
    assert [note.pointer for note in STRICT.write(document).refused] == ["/mcps/far"]
    assert EXTENDED.write(document).data["mcps"]["far"] == {
        "transport": "http",
        "url": "https://far.example/mcp",
    }


def test_strict_export_refuses_another_provider_by_name() -> None:
    document = Document(
        (ServerEntry("fs", command=("npx",)),), expert_tools=(tool(provider="cohere"),)
    )
    assert [note.pointer for note in STRICT.write(document).refused] == ["/tools/0/provider"]
    assert not EXTENDED.write(document).refused


def test_a_tool_whose_server_is_gone_is_left_out_and_reported() -> None:
    written = STRICT.write(Document(expert_tools=(tool(),)))
    assert written.data == {"mcps": {}, "tools": []}
    assert [(note.action, note.column) for note in written.notes] == [("parked", "expert_tools")]


def test_yaml_and_json_of_one_document_load_alike() -> None:
    data = STRICT.write(Document((ServerEntry("fs", command=("npx", "on", "12:30")),))).data
    assert text.load(text.dump(data, as_yaml=True).encode(), "x.yaml") == json.loads(
        text.dump(data)
    )
