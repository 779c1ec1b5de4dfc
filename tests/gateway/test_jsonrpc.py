"""Broken messages of hosts: the id that their error names, and text that is repaired."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcpregistry.gateway.jsonrpc import (
    check_version_header,
    find_message_error,
    replace_invalid_text,
    salvage_id,
)

BROKEN: dict[bytes, Any] = {
    b'{"jsonrpc":"2.0","id":6,"method":"tools/call","params":{"x":NaN}}': 6,
    b'{"id":"a b","jsonrpc":"2.0","method":"tools/call","params":{"x":NaN}}': "a b",
    b'{"jsonrpc":"2.0","method":"tools/call","params":{"x":NaN},"id":"z"}': "z",
    b'{"method":"tools/call","params":{"id":5,"x":NaN}}': None,
    b'{"jsonrpc":"2.0","id":6,"result":{"x":NaN}}': None,
    b'{"jsonrpc":"2.0","id":null,"method":"x","params":NaN}': None,
    b"garbage": None,
    b'{"jsonrpc":"2.0","params":{"x":"{\\"id\\":7,"},"method": NaN}': None,
}


@pytest.mark.parametrize("data", BROKEN)
def test_the_error_for_a_broken_request_names_its_id(data: bytes):
    assert salvage_id(data) == BROKEN[data]
    refusal = find_message_error(data)
    assert refusal is not None
    assert refusal["id"] == BROKEN[data]


@pytest.mark.attack
@pytest.mark.parametrize(
    "data",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"q":"1","q":"2"}}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","name":"b"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/list","method":"tools/call"}',
        rb'{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":[{"y":{"q":1,"\u0071":2}}]}}',
        b'{"jsonrpc":"2.0","id":1,"result":{"action":"decline","action":"accept"}}',
    ],
)
def test_a_key_that_stands_twice_in_an_object_is_refused(data: bytes):
    refusal = find_message_error(data)
    assert refusal is not None
    assert refusal["error"]["code"] == -32600
    assert refusal["id"] == (None if b"result" in data else 1)
    assert "appears twice in one object" in refusal["error"]["message"]


def test_equal_keys_of_several_objects_are_no_problem():
    assert (
        find_message_error(
            b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"q":{"q":[{"q":1},{"q":2}]}}}'
        )
        is None
    )


@pytest.mark.parametrize(
    ("token", "code"),
    [(True, -32602), (1.5, -32602), ([], -32602), (7, None), ("x", None), (None, None)],
)
def test_progress_token_must_be_text_or_a_whole_number(token: Any, code: int | None):
    params = {"_meta": {"progressToken": token}}
    refusal = find_message_error(
        json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params}).encode()
    )
    assert (refusal["error"]["code"] if refusal else None) == code


def test_refused_version_is_answered_with_those_that_discover_names():
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    refusal = check_version_header("1999-01-01", json.dumps(request).encode())
    assert refusal is not None
    assert refusal["error"]["code"] == -32022
    assert refusal["error"]["data"] == {"requested": "1999-01-01", "supported": ["2026-07-28"]}


def test_a_message_with_valid_text_is_not_touched():
    data = b'{"a": "\xc3\xa4", "b": 1.0}'
    assert replace_invalid_text(data) is data
    assert replace_invalid_text(b"{") == b"{"
    assert replace_invalid_text(b"[" * 100_000) == b"[" * 100_000


def test_half_characters_and_a_byte_order_mark_are_put_right():
    assert json.loads(replace_invalid_text(rb'{"a":"\ud83d"}')) == {
        "a": "\N{REPLACEMENT CHARACTER}"
    }
    assert (
        find_message_error(
            replace_invalid_text(b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"ping"}')
        )
        is None
    )
