"""Which way a held call waits, for which host, and for how long: the table, row by row."""

from __future__ import annotations

import pytest

from mcpregistry.domain.calls.hosts import NAMELESS, TABLE, UNKNOWN, find_host_limits
from mcpregistry.domain.calls.wait_strategy import (
    LONG,
    PEOPLE_NEED,
    SHORT,
    ElicitationAnswer,
    WaitStep,
    interpret_elicitation,
    limit_hold_seconds,
    list_question_modes,
    plan_wait_steps,
)

# name as the host sends it, seconds held with progress, seconds held silently, may it be asked by
# URL
HOSTS = [
    ("claude-code", LONG, 50, True),
    ("copilot-cli", LONG, 50, False),
    ("copilot-cli-developer", LONG, 50, False),
    ("github-copilot-developer", 50, 50, False),
    ("Visual Studio Code Copilot", 50, 50, False),
    ("codex-mcp-client", 290, 50, True),
    ("gemini-cli-mcp-client", 590, 50, True),
    ("opencode", LONG, 50, True),
    ("qwen-cli-mcp-client-slipsnisse", 290, 50, True),
    ("google-adk", 4, 4, True),
    ("mcp-inspector", 50, 50, True),
    ("somebody", 50, 50, True),
    ("", 50, 50, True),
]


@pytest.mark.parametrize(("name", "progress", "silent", "url"), HOSTS)
def test_a_host_is_held_until_just_under_its_limit(name, progress, silent, url):
    limits = find_host_limits(name)
    assert limit_hold_seconds(WaitStep.PROGRESS, limits) == progress
    assert limit_hold_seconds(WaitStep.HOLD, limits) == silent
    assert list_question_modes({"form", "url"}, limits) == ({"form", "url"} if url else {"form"})


def test_no_hold_reaches_the_limit_of_a_host_whose_clock_keeps_running():
    for limits in [*TABLE.values(), UNKNOWN, NAMELESS]:
        assert limit_hold_seconds(WaitStep.HOLD, limits) <= min(SHORT, limits.silent - 1)
        if not limits.progress_extends:
            assert limit_hold_seconds(WaitStep.PROGRESS, limits) <= limits.silent - 1


def test_a_nameless_python_program_that_asks_for_no_progress_is_answered_within_five_seconds():
    """The OpenAI Agents SDK: it sends its library's own name and no progress token, and gives up
    after 5 s."""
    assert limit_hold_seconds(WaitStep.HOLD, find_host_limits("mcp", progress=False)) == 4
    assert limit_hold_seconds(WaitStep.PROGRESS, find_host_limits("mcp", progress=True)) == 50


def test_the_operator_or_the_caller_may_shorten_a_hold_and_never_lengthen_it():
    limits = find_host_limits("codex-mcp-client")
    assert limit_hold_seconds(WaitStep.PROGRESS, limits, cap=5) == 5
    assert limit_hold_seconds(WaitStep.PROGRESS, limits, cap=5000) == 290
    assert limit_hold_seconds(WaitStep.HOLD, limits, cap=0) == 0
    assert (
        limit_hold_seconds(WaitStep.AWAY, limits) == limit_hold_seconds(WaitStep.TASK, limits) == 0
    )


@pytest.mark.parametrize(
    ("tasks", "questions", "may_confirm", "progress", "expected"),
    [
        (True, True, True, True, "task"),
        (True, False, False, False, "task"),
        (False, True, True, True, "question progress away"),
        (False, True, False, True, "progress away"),
        (False, False, True, True, "progress away"),
        (False, True, True, False, "question hold away"),
        (False, False, False, True, "progress away"),
        (False, False, False, False, "hold away"),
    ],
)
def test_the_rungs_and_their_order(tasks, questions, may_confirm, progress, expected):
    found = plan_wait_steps(
        tasks=tasks, questions=questions, may_confirm=may_confirm, progress=progress
    )
    assert " ".join(found) == expected


@pytest.mark.parametrize(
    ("action", "confirmed", "seconds", "expected"),
    [
        ("accept", True, 0.0, ElicitationAnswer.YES),
        ("accept", True, 60.0, ElicitationAnswer.YES),
        ("accept", False, 60.0, ElicitationAnswer.NO),
        ("cancel", False, 0.01, ElicitationAnswer.NOBODY),  # claude -p
        ("decline", False, 0.01, ElicitationAnswer.NOBODY),  # codex exec, copilot -p
        ("cancel", False, 60.0, ElicitationAnswer.NOBODY),  # "Esc to answer later"
        ("decline", False, PEOPLE_NEED, ElicitationAnswer.NO),
        ("nonsense", True, 60.0, ElicitationAnswer.NOBODY),
    ],
)
def test_what_an_answer_means(action, confirmed, seconds, expected):
    assert interpret_elicitation(action, confirmed=confirmed, seconds=seconds) is expected
