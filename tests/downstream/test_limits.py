"""Bounds and repair on raw JSON, and when a call may be sent again."""

from __future__ import annotations

from typing import Any

import pytest

from mcpregistry.domain.errors import (
    AuthFailed,
    ConnectionFailed,
    DownstreamError,
    ProtocolError,
    TimedOut,
)
from mcpregistry.domain.servers.target import ServerLimits
from mcpregistry.downstream.limits import (
    check_others,
    check_tools,
    drop_private_meta,
    has_excess_depth,
    limit_bytes,
    repair_tool,
)
from mcpregistry.downstream.pool.slot_requests import can_resend
from mcpregistry.downstream.transports.messages import salvage_id
from mcpregistry.downstream.transports.request_ids import parse_own_id
from tests.fakes.targets import stdio_target


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_depth_is_counted_without_recursion():
    assert not has_excess_depth(nested(128))
    assert has_excess_depth(nested(129))
    assert has_excess_depth(nested(100_000))


def test_a_definition_that_needs_no_repair_is_the_same_object():
    tool = {"name": "a", "inputSchema": {"type": "object"}, "parameters": {"kept": 1}}
    assert repair_tool(tool) is tool


def test_names_and_sizes_are_checked_one_by_one():
    listed = [
        {"name": ""},
        {"name": "x" * 257},
        "text",
        {"name": "good"},
        {"name": "big", "inputSchema": {"x": "y" * 400_000}},
    ]
    tools, problems = check_tools(listed, 7, ServerLimits())
    assert [tool["name"] for tool in tools] == ["good"]
    assert len(problems) == 5
    assert problems[-1].startswith("The number of tools exceeds the limit of 2,000 by 7.")


def test_prompts_are_bounded_like_tools_and_their_arguments_have_names():
    good = {"name": "good", "arguments": [{"name": "a"}], "description": "d"}
    odd = [
        {"arguments": []},
        {"name": "x", "arguments": {"a": 1}},
        {"name": "x", "arguments": [{"name": 1}]},
        ["x"],
    ]
    prompts, problems = check_others(
        "prompt", [good, *odd, {"name": "big", "icons": "y" * 400_000}], 0, ServerLimits()
    )
    assert prompts == [good]
    assert len(problems) == 5


def test_only_what_is_meant_for_the_server_is_passed_on_in_meta():
    meta = {
        "a": 1,
        "progressToken": 2,
        "io.modelcontextprotocol/protocolVersion": "x",
        "com.example/b": 3,
    }
    assert drop_private_meta(meta) == {"a": 1, "com.example/b": 3}
    assert drop_private_meta(None) == {}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b'{"jsonrpc":"2.0","id":1000012,"result":NaN}', 1_000_012),
        (b'{"jsonrpc":"2.0","id":"1000012","result":NaN}', 1_000_012),
        (b'{"result":[[[1e400]]],"id" : 1000003 }\r', 1_000_003),
        (b'{"jsonrpc":"2.0","id":1000007,"resu', 1_000_007),
        (b'{"result":{"id":1000003},"x":NaN}', None),
        (b'{"jsonrpc":"2.0","id":12,"result":NaN}', None),
        (b"garbage", None),
    ],
)
def test_the_owner_of_an_unusable_answer_is_found_only_in_its_outermost_object(
    line: bytes, found: int | None
):
    assert salvage_id(line) == found


UNSENT = ConnectionFailed("x")
SENT = ConnectionFailed("x", sent=True)


@pytest.mark.parametrize(
    ("error", "resend", "idempotent", "again"),
    [
        (UNSENT, "never", True, False),
        (UNSENT, "safe", False, True),
        (UNSENT, "always", False, True),
        (SENT, "never", True, False),
        (SENT, "safe", True, False),
        (SENT, "always", False, False),
        (SENT, "always", True, True),
        (TimedOut("x", sent=True), "always", True, False),
        (TimedOut("x"), "always", True, False),
        (AuthFailed("x"), "always", True, False),
        (ProtocolError("x", sent=True), "always", True, False),
    ],
)
def test_when_a_call_may_be_sent_again(
    error: DownstreamError, resend: str, idempotent: bool, again: bool
):
    assert can_resend(error, stdio_target("echo", resend=resend), idempotent=idempotent) is again


def definitions(*sizes: int) -> list[dict[str, Any]]:
    """Tools that are listed backwards by name, with descriptions of these sizes."""
    return [{"name": f"t{number}", "description": "x" * size} for number, size in enumerate(sizes)][
        ::-1
    ]


@pytest.mark.attack
def test_definitions_beyond_the_limit_of_bytes_are_left_out_and_named():
    listed = {"tool": definitions(400, 400, 400, 1), "prompt": [{"name": "p"}]}
    kept, problems = limit_bytes(listed, "", ServerLimits(definition_bytes=1_000))
    assert [tool["name"] for tool in kept["tool"]] == ["t1", "t0"]
    assert kept["prompt"] == ()
    assert [said.partition(".")[0] for said in problems] == [
        "Tools that are not used: 2 of 4",
        "Prompts that are not used: 1 of 1",
    ]


def test_definitions_within_the_limit_of_bytes_stay_in_their_order():
    listed = {"tool": definitions(400, 400), "prompt": [{"name": "p"}]}
    assert limit_bytes(listed, "", ServerLimits()) == (
        {kind: tuple(items) for kind, items in listed.items()},
        [],
    )


@pytest.mark.attack
def test_instructions_count_with_each_tool():
    kept, problems = limit_bytes(
        {"tool": definitions(1, 1, 1)}, "i" * 400, ServerLimits(definition_bytes=1_000)
    )
    assert (len(kept["tool"]), len(problems)) == (2, 1)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (1_000_001, 1_000_001),
        ("1000001", 1_000_001),
        (1_000_001.0, 1_000_001),
        (3, None),
        ("3", None),
        ("f1", None),
        (None, None),
        (True, None),
        (1_000_001.5, None),
        (float("inf"), None),
        ("9" * 40, None),
        ([1_000_001], None),
        ("\u0661000001", None),
    ],
)
def test_an_id_of_ours_is_known_as_number_or_text_and_no_other_is(value: object, found: int | None):
    assert parse_own_id(value) == found
