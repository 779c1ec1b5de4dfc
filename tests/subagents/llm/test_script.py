"""Which turn answers, and what a template makes of tool results."""

from __future__ import annotations

import pytest

from subagents.llm.scripted.bundled_scripts import demo_script
from subagents.llm.scripted.script import (
    Result,
    ScriptedFault,
    ScriptedRequest,
    ScriptError,
    faults,
    fill,
    load,
    reply,
)

TURNS = {"m": {"turns": [{"text": "one"}, {"text": "two"}], "final": {"text": "end"}}}


def ask(answered: int = 0, **more: object) -> ScriptedRequest:
    return ScriptedRequest("m", False, answered, **({"tools": ("t",)} | more))  # type: ignore[arg-type]


def test_the_turn_is_counted_in_the_request() -> None:
    script = load(TURNS)
    assert [script.turn(ask(n))["text"] for n in (0, 1, 0)] == ["one", "two", "one"]


def test_without_tools_the_final_turn_answers() -> None:
    assert load(TURNS).turn(ask(0, tools=()))["text"] == "end"


def test_a_script_that_is_over_says_so_unless_it_repeats() -> None:
    with pytest.raises(ScriptError, match="ends after 2 turns"):
        load(TURNS).turn(ask(2))
    assert (
        load({"m": {"turns": [{"text": "again"}], "repeat": True}}).turn(ask(99))["text"] == "again"
    )


def test_an_unknown_model_names_those_that_there_are() -> None:
    with pytest.raises(ScriptError, match="Available models: m"):
        load(TURNS).turn(ScriptedRequest("other", False, 0))


def test_the_first_alternative_that_fits_answers() -> None:
    script = load(
        {
            "m": {
                "turns": [
                    [
                        {"when": {"last_tool": "b"}, "text": "from b"},
                        {"when": {"contains": "fatal"}, "text": "failed"},
                        {"text": "else"},
                    ]
                ]
            }
        }
    )
    texts = [
        script.turn(ask(results=(Result(*result),)))["text"]
        for result in (("b", "fatal"), ("a", "fatal: no"), ("a", "fine"))
    ]
    assert texts == ["from b", "failed", "else"]


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ last.text }}", "[1]"),
        ("{{ results.0.json.items.1.name }}", "y"),
        ("{{ results.0.json.items }}", '[{"name": "x"}, {"name": "y"}]'),
        ("{{ results.0.text | first:5 }}", '{"ite'),
        ("{{ results.7.text }}{{ last.json.no.where }}{{ nonsense.path }}", ""),
        ("{{ user.json.q }} {{user.text|lines:1}}", 'why {"q": "why",'),
        ("{ not a hole } {{not a hole}}", "{ not a hole } {{not a hole}}"),
    ],
)
def test_templates(template: str, text: str) -> None:
    given = ask(
        user='{"q": "why",\n"r": 1}',
        results=(Result("a", '{"items": [{"name": "x"}, {"name": "y"}]}'), Result("b", "[1]")),
    )
    assert fill(template, given) == text


def test_what_a_tool_said_is_never_a_template_itself() -> None:
    assert (
        fill("{{ last.text }}", ask(user="secret", results=(Result("a", "{{ user.text }}"),)))
        == "{{ user.text }}"
    )


def test_usage_is_given_or_estimated() -> None:
    assert reply({"text": "x" * 40}, ask(user="y" * 400)).usage.output == 10
    assert reply({"text": "x", "usage": {"input": 5}}, ask(user="y" * 400)).usage.input == 5


def test_faults_come_in_order() -> None:
    assert faults({"attempts": [{"status": 500}, "ok", {"cut": 3}]}) == [
        ScriptedFault(status=500),
        None,
        ScriptedFault(cut=3),
    ]


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {"m": []},
        {"m": {"turns": []}},
        {"m": {"turns": ["x"]}},
        {"m": {"turns": [{"txt": "x"}]}},
        {"m": {"turns": [{}], "x": 1}},
    ],
)
def test_a_bad_script_is_refused(data: object) -> None:
    with pytest.raises(ScriptError):
        load(data)


def test_the_script_of_the_demo_is_one() -> None:
    assert "research_repository" in demo_script().scenarios
