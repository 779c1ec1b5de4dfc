"""The conversation that a run's records make: what the model reads, and what it never reads."""

from __future__ import annotations

import json

from subagents.domain.lifecycle import CallState, Exit
from subagents.domain.spec import ExpertSpec
from subagents.domain.transcript import (
    INSTRUCTIONS_HEADER,
    PLAIN_PROMPT,
    CallView,
    TurnView,
    concluding,
    messages,
    system_prompt,
)

SPEC = ExpertSpec("x", "d", {"type": "object", "properties": {"q": {}}}, "Be an expert.", ())
CALL = CallView(1, 1, 0, "c1", "git__log", '{"n": 1}', CallState.DONE, result="a commit")
TURNS = [
    TurnView(1, "", "calls", False, "", (CALL,)),
    TurnView(
        2,
        "so",
        "calls",
        False,
        "",
        (CallView(2, 2, 0, "c2", "git__log", "{oops", CallState.REFUSED, "bad"),),
    ),
]


def test_history_is_calls_and_results_and_the_question_once() -> None:
    said = messages(SPEC, {"q": "why"}, TURNS, {})
    assert [m["role"] for m in said] == ["system", "user", "assistant", "tool", "assistant", "tool"]
    assert json.loads(said[1]["content"]) == {"q": "why"}
    assert said[2]["tool_calls"][0]["function"] == {"name": "git__log", "arguments": '{"n": 1}'}
    assert (said[3]["tool_call_id"], said[3]["content"]) == ("c1", "a commit")


def test_broken_arguments_stay_in_the_record_and_a_history_is_readable() -> None:
    assert messages(SPEC, {}, TURNS, {})[4]["tool_calls"][0]["function"]["arguments"] == (
        '{"__broken__": "{oops"}'
    )


def test_instructions_stand_once_by_server_and_no_schema_in_the_prompt() -> None:
    prompt = system_prompt(SPEC, {"git": "Use short paths.", "files": "Read only."})
    assert prompt.startswith("Be an expert.")
    assert prompt.count(INSTRUCTIONS_HEADER) == 1
    assert "## TOOL git INSTRUCTIONS\nUse short paths." in prompt
    assert prompt.index("## TOOL files") < prompt.index("## TOOL git")
    assert '"properties"' not in prompt
    assert system_prompt(SPEC, {}) == "Be an expert."


def test_without_a_prompt_there_is_a_plain_one_and_instructions_may_be_left_out() -> None:
    bare = ExpertSpec("x", "d", {}, "  ", (), tool_instructions=False)
    assert system_prompt(bare, {"git": "Use short paths."}) == PLAIN_PROMPT


def test_the_last_turn_is_told_by_one_user_message() -> None:
    said = messages(SPEC, {}, TURNS, {}, concluding(Exit.MAX_TURNS))
    assert (said[-1]["role"], "cannot use tools any more" in said[-1]["content"]) == ("user", True)
    assert [m["role"] for m in said].count("user") == 2
