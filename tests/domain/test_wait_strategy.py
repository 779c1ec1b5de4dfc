"""Which way a held call waits, for which host, and for how long: the table, row by row."""

from __future__ import annotations

import pytest

from mcpregistry.domain.hosts import TABLE, UNKNOWN, limits_of
from mcpregistry.domain.ladder import (
    LONG,
    MARGIN,
    PEOPLE_NEED,
    SHORT,
    Answer,
    Rung,
    hold_seconds,
    meant,
    question_modes,
    rungs,
)

# name as the host sends it, seconds held with progress, seconds held silently, may it be asked by URL
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
    ("somebody", 50, 50, True),
    ("", 50, 50, True),
]


@pytest.mark.parametrize(("name", "progress", "silent", "url"), HOSTS)
def test_a_host_is_held_until_just_under_its_limit(name, progress, silent, url):
    limits = limits_of(name)
    assert hold_seconds(Rung.PROGRESS, limits) == progress
    assert hold_seconds(Rung.HOLD, limits) == silent
    assert question_modes({"form", "url"}, limits) == ({"form", "url"} if url else {"form"})


def test_no_hold_reaches_the_limit_of_a_host_whose_clock_keeps_running():
    for limits in [*TABLE.values(), UNKNOWN]:
        assert hold_seconds(Rung.HOLD, limits) <= min(SHORT, limits.silent - MARGIN)
        if not limits.progress_extends:
            assert hold_seconds(Rung.PROGRESS, limits) <= limits.silent - MARGIN


def test_the_operator_or_the_caller_may_shorten_a_hold_and_never_lengthen_it():
    limits = limits_of("codex-mcp-client")
    assert hold_seconds(Rung.PROGRESS, limits, cap=5) == 5
    assert hold_seconds(Rung.PROGRESS, limits, cap=5000) == 290
    assert hold_seconds(Rung.HOLD, limits, cap=0) == 0
    assert hold_seconds(Rung.AWAY, limits) == hold_seconds(Rung.TASK, limits) == 0


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
    found = rungs(tasks=tasks, questions=questions, may_confirm=may_confirm, progress=progress)
    assert " ".join(found) == expected


@pytest.mark.parametrize(
    ("action", "confirmed", "seconds", "expected"),
    [
        ("accept", True, 0.0, Answer.YES),
        ("accept", True, 60.0, Answer.YES),
        ("accept", False, 60.0, Answer.NO),
        ("cancel", False, 0.01, Answer.NOBODY),  # claude -p
        ("decline", False, 0.01, Answer.NOBODY),  # codex exec, copilot -p
        ("cancel", False, 60.0, Answer.NOBODY),  # "Esc to answer later"
        ("decline", False, PEOPLE_NEED, Answer.NO),
        ("nonsense", True, 60.0, Answer.NOBODY),
    ],
)
def test_what_an_answer_means(action, confirmed, seconds, expected):
    assert meant(action, confirmed=confirmed, seconds=seconds) is expected
