"""Untrusted schemas: checked offline, and never for long."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mcpregistry.domain.errors import ArgumentsInvalid, ConfigInvalid, SlipsnisseError
from mcpregistry.domain.schema import cost, validation
from tests.externals import ROOT
from tests.waiting import HANG_LIMIT, eventually

Case = tuple[dict[str, Any], dict[str, Any]]
WIDE: dict[str, Any] = {"properties": {f"p{n}": {"type": "string"} for n in range(1_000)}}
MOST = 12  # times what that honest schema takes


def check(of: dict[str, Any], arguments: dict[str, Any]) -> None:
    validation.check_arguments(of, arguments)


def pattern(expression: str, text: str) -> Case:
    return {"properties": {"s": {"type": "string", "pattern": expression}}}, {"s": text}


def doubling(word: str, steps: int) -> Case:
    """A kilobyte that leads to the same place 2**steps times."""
    defs: dict[str, Any] = {
        f"a{n}": {word: [{"$ref": f"#/$defs/a{n + 1}"}, {"$ref": f"#/$defs/a{n + 1}"}]}
        for n in range(steps)
    }
    return {
        "$defs": defs | {f"a{steps}": {"type": "integer"}},
        "properties": {"s": {"$ref": "#/$defs/a0"}},
    }, {"s": "y"}


def nested(steps: int) -> dict[str, Any]:
    inner: dict[str, Any] = {"type": "integer"}
    for _ in range(steps):
        inner = {"anyOf": [inner, inner]}
    return {"properties": {"s": inner}}


def deep(levels: int, key: str = "a") -> dict[str, Any]:
    value: Any = "x"
    for _ in range(levels):
        value = {key: value}
    return value


def recursive(reference: dict[str, str], **more: Any) -> dict[str, Any]:
    return {"properties": {"a": {"anyOf": [reference, reference]}}, "required": ["b"], **more}


EVIL: dict[str, Case] = {
    "pattern": pattern("^(a+)+$", "a" * 50 + "!"),
    "pattern of many": pattern("^(([a-z])+.)+[A-Z]([a-z])+$", "a" * 5000),
    "pattern that looks ahead": pattern("^(?=(a+)+$)x", "a" * 5000 + "!"),
    "pattern that looks back": pattern(r"^(a|aa)+\1$", "a" * 5000 + "b"),
    "pattern that grows": pattern("((a{1,100}){1,100}){1,100}", "a" * 5000),
    "property pattern": ({"patternProperties": {"^(a+)+$": {"type": "string"}}}, {"a" * 50: 1}),
    "nested anyOf": (nested(12), {"s": "y"}),
    "anyOf of references": doubling("anyOf", 30),
    "allOf of references": doubling("allOf", 30),
    "oneOf of references": doubling("oneOf", 60),
    "recursion that branches": (recursive({"$ref": "#"}), deep(60)),
    "dynamic recursion": (recursive({"$dynamicRef": "#n"}, **{"$dynamicAnchor": "n"}), deep(60)),
    "anchored recursion": (recursive({"$ref": "#n"}, **{"$anchor": "n"}), deep(60)),
    "unevaluated": (recursive({"$ref": "#"}, unevaluatedProperties=False), deep(40)),
    "itself": ({"$ref": "#"}, {"s": 1}),
    "itself twice": ({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}, {"s": 1}),
    "each other": (
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {},
    ),
    "a chain": (
        {
            "$defs": {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(3000)},
            "$ref": "#/$defs/a0",
        },
        {},
    ),
    "depth": ({"properties": deep(3000, "properties")}, {}),
    "size": ({"description": "x" * 1_000_000}, {}),
    "nodes": ({"enum": list(range(50_000))}, {}),
    "another inside": (
        {
            "$id": "x:/",
            "$defs": {"i": {"$id": "x:/i", **doubling("anyOf", 30)[0]}},
            "properties": {"s": {"$ref": "i"}},
        },
        {"s": 1},
    ),
    "another inside, draft 4": (
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "properties": {"s": {"id": "x:/i", "type": "object"}},
        },
        {"s": 1},
    ),
    "not a number": ({"properties": {"s": {"maximum": float("nan")}}}, {"s": 1}),
    "a huge number": (
        {"properties": {"s": {"maximum": 10**400, "multipleOf": 7}}},
        {"s": 10**4000},
    ),
    "a lone surrogate": ({"properties": {"\ud800": {"const": "\ud800"}}}, {"\ud800": 1}),
    "an unknown dialect": ({"$schema": "x:/dialect"}, {}),
    "an unknown type": ({"type": "nosuch"}, {}),
}


@pytest.mark.exhaustive(one_in=4)
@pytest.mark.attack
@pytest.mark.parametrize("name", EVIL)
def test_no_schema_takes_long_first_or_again(name: str):
    of, arguments = EVIL[name]
    # The best of three new schemas, each checked twice: a neighbour on the machine slows one, not
    # all.
    new = [{"$comment": f"{name} {turn}"} for turn in range(3)]
    evil = min(_cost(of | each, arguments) for each in new)
    assert evil <= MOST * min(
        _cost(WIDE | each, dict.fromkeys(WIDE["properties"], "x")) for each in new
    )


def _cost(of: dict[str, Any], arguments: dict[str, Any]) -> float:
    """CPU seconds of the slower of the first check and the next one."""
    costs = []
    for _ in range(2):
        started = time.process_time()
        with contextlib.suppress(SlipsnisseError):
            check(of, arguments)
        costs.append(time.process_time() - started)
    return max(costs)


@pytest.mark.exhaustive
@pytest.mark.attack
def test_the_corpus_does_not_crash_the_process_either():
    """A stack overflow in native code would not be an exception."""
    code = (
        "from tests.domain.test_schema import *\n"
        "for of, arguments in EVIL.values():\n"
        "    try: check(of, arguments)\n"
        "    except SlipsnisseError: pass"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=HANG_LIMIT
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def hits() -> Iterator[tuple[str, Callable[[], int]]]:
    """The address of a listening socket, and how often somebody came."""
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(0.05)
    came = []
    over = threading.Event()

    def accept() -> None:
        while not over.is_set():
            try:
                came.append(server.accept()[0].close())
            except TimeoutError:
                continue

    thread = threading.Thread(target=accept)
    thread.start()
    host, port = server.getsockname()

    def count() -> int:
        with socket.create_connection((host, port)):
            pass  # ours comes last: who came before it has been counted
        eventually(lambda: came)
        return len(came) - 1

    yield f"http://{host}:{port}", count
    over.set()
    thread.join()
    server.close()


@pytest.mark.attack
def test_nothing_is_ever_fetched(hits: tuple[str, Callable[[], int]], tmp_path: Any):
    url, count = hits
    local = tmp_path / "schema.json"
    local.write_text(json.dumps({"type": "string"}))
    for of in (
        {"properties": {"s": {"$ref": f"{url}/x"}}},
        {"$ref": f"{url}/x#/y"},
        {"$schema": f"{url}/dialect"},
        {"$id": f"{url}/base/", "properties": {"s": {"$ref": "other"}}},
        {"$id": f"{url}/base/", "properties": {"s": {"$dynamicRef": "other#x"}}},
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "definitions": {"a": {"$id": url, "$ref": "b"}},
        },
        {"$ref": local.as_uri()},
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$vocabulary": {url: True},
            "$ref": f"{url}",
        },
    ):
        with pytest.raises(ConfigInvalid):
            check(of, {"s": "x"})
    assert count() == 0


HONEST: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "any JSON": (
        {
            "$defs": {
                "j": {
                    "anyOf": [
                        {"type": ["string", "number", "null"]},
                        {"type": "array", "items": {"$ref": "#/$defs/j"}},
                        {"type": "object", "additionalProperties": {"$ref": "#/$defs/j"}},
                    ]
                }
            },
            "properties": {"v": {"$ref": "#/$defs/j"}},
        },
        {"v": {"a": [{"b": [[[{"c": 1.5}]]]}] * 50}},
        {"v": {"a": [{"b": [True]}]}},
    ),
    "a tree": (
        {
            "$defs": {
                "n": {
                    "type": "object",
                    "properties": {"l": {"$ref": "#/$defs/n"}, "r": {"$ref": "#/$defs/n"}},
                    "additionalProperties": False,
                }
            },
            "$ref": "#/$defs/n",
        },
        {"l": {"r": {"l": {}}}, "r": {}},
        {"l": {"x": 1}},
    ),
    "a union": (
        {
            "properties": {
                "b": {
                    "type": "array",
                    "items": {
                        "oneOf": [
                            {
                                "properties": {"t": {"const": n}, "v": {"type": "string"}},
                                "required": ["t"],
                            }
                            for n in range(40)
                        ]
                    },
                }
            }
        },
        {"b": [{"t": n % 40, "v": "x"} for n in range(100)]},
        {"b": [{"t": 99}]},
    ),
    "look-ahead": (
        {"properties": {"p": {"pattern": "^(?=.*[0-9])(?=.*[a-z]).{8,}$"}}},
        {"p": "abcdefg1"},
        {"p": "abcdefgh"},
    ),
    "pydantic": (
        {
            "$defs": {
                "A": {
                    "type": "object",
                    "properties": {"b": {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]}},
                }
            },
            "properties": {"a": {"$ref": "#/$defs/A", "default": None}},
            "title": "T",
            "type": "object",
        },
        {"a": {"b": {"b": {"b": None}}}},
        {"a": {"b": 7}},
    ),
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_schemas_work(name: str):
    of, good, bad = HONEST[name]
    validation.check_schema(of)
    check(of, good)
    with pytest.raises(ArgumentsInvalid) as caught:
        check(of, bad)
    assert "/" in caught.value.message


def test_every_wrong_argument_is_named_up_to_a_few():
    of = {"properties": {f"p{n}": {"type": "integer"} for n in range(9)}, "required": ["missing"]}
    with pytest.raises(ArgumentsInvalid) as caught:
        check(of, {f"p{n}": "x" * 1000 for n in range(9)})
    assert caught.value.message.count("/p") >= 4
    assert len(caught.value.message) < 2_500


@pytest.mark.parametrize("of", [True, False, [1], "x", None])
def test_what_is_no_object_is_no_schema(of: Any):
    with pytest.raises(ConfigInvalid):
        check(of, {})


def test_an_empty_schema_takes_anything():
    check({}, {"anything": [1, None, "x"]})


def test_a_schema_is_compiled_once_also_when_it_is_bad(monkeypatch: pytest.MonkeyPatch):
    compiled: list[object] = []
    real = validation._compile
    monkeypatch.setattr(validation, "_compile", lambda of: compiled.append(of) or real(of))
    for of in ({"type": "object", "title": "once"}, {"type": "nosuch", "title": "once"}):
        for _ in range(5):
            with contextlib.suppress(ConfigInvalid):
                check(of, {})
    assert len(compiled) == 2


def test_visits_grow_with_branches_and_not_with_size():
    assert max(cost.count_visits(WIDE)) == 2
    assert max(cost.count_visits(doubling("anyOf", 10)[0])) > 1_000
    grown = cost.count_visits(recursive({"$ref": "#"}))
    assert grown == sorted(grown)
    assert grown[-1] == cost.LIMIT
    assert len(cost.count_visits(HONEST["any JSON"][0])) == cost.MAX_LEVELS + 1
    assert max(cost.count_visits(HONEST["any JSON"][0])) < 1_000


@pytest.mark.parametrize(
    "pointer",
    ["#/$defs/a~1b", "#/$defs/a%7E1b", "#/$defs/l/1", "#/$defs/none", "#x", "#/$defs/l/x"],
)
def test_references_are_followed_as_the_rfc_says(pointer: str):
    branches = {"anyOf": [{}, {}, {}, {}]}
    of = {
        "$defs": {
            "a/b": branches,
            "a~1b": branches,
            "l": [{}, branches],
            "x": {"$anchor": "x", **branches},
        },
        "$ref": pointer,
    }
    assert max(cost.count_visits(of)) == (1 if pointer.endswith(("none", "l/x")) else 6)


def test_schemas_of_one_definition_are_not_mixed_up():
    """The arguments of a tool, its output and its linked resources are checked against their own
    schemas, in any order."""
    schemas = [
        {"required": [name], "additionalProperties": {"const": name}}
        for name in ("rows", "uri", "n")
    ]
    for schema in (*schemas, *reversed(schemas)):
        (name,) = schema["required"]
        check(schema, {name: name})
        with pytest.raises(ArgumentsInvalid, match=f'"{name}" is a required property'):
            check(schema, {})


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), deep(600)])
def test_schemas_that_are_not_json_are_refused(odd: Any):
    with pytest.raises(ConfigInvalid, match="cannot be used"):
        check({"const": odd}, {})
