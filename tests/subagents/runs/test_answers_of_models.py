"""Answers that are cut, withheld, empty or refused: the next model is asked, and nothing passes for
more than it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mcpregistry.calls.call import CallOutcome
from mcpregistry.db import db_call
from mcpregistry.domain.lifecycle import InvocationState
from subagents.domain.lifecycle import CallState, Exit, RunState
from subagents.domain.model_errors import ErrorKind, ModelError
from subagents.domain.transcript import BRIEF, CONTINUE, SPEAK
from subagents.llm.model_values import ModelReply, ModelTarget, TokenUsage, ToolUse
from subagents.models import Attempt, Run
from subagents.runs.run_answers import CUT, answer_of
from subagents.runs.toolbox import describe_end
from tests.subagents.kit import Bench


def said(text: str = "", finish: str = "stop", *calls: ToolUse, output: int = 10) -> ModelReply:
    return ModelReply(text, calls, TokenUsage(100, output), finish, "m", None)


class Models:
    """Each model's answers in order; notes what each was asked."""

    def __init__(self, **answers: Sequence[ModelReply | ModelError]) -> None:
        self._answers = {name: iter(each) for name, each in answers.items()}
        self.asked: list[str] = []
        self.requests: list[list[dict[str, Any]]] = []
        self.limits: list[int] = []

    async def __call__(
        self, target: ModelTarget, messages: list[dict[str, Any]], tools: list[Any], **_: Any
    ) -> ModelReply:
        self.asked.append(target.model)
        self.requests.append(messages)
        self.limits.append(target.max_output)
        answer = next(self._answers[target.model])
        if isinstance(answer, ModelError):
            raise answer
        return answer


Answering = Callable[..., Any]


@pytest.fixture
def answering(bench: Bench, worker: Any) -> Answering:
    async def run(models: Models, *names: str, **fields: Any) -> Run:
        def prepare() -> Run:
            bench.expert(
                *(bench.model(name, {"text": "-"}) for name in names),
                uses=[bench.server()],
                **fields,
            )
            return bench.start()

        started = await db_call(prepare)
        return await (await worker(complete=models)).drive(started)

    return run


@pytest.mark.one_database
async def test_an_answer_that_was_cut_is_continued_once(answering: Answering) -> None:
    models = Models(m=[said("It is fo", "length"), said("rty-two.")])
    run = await answering(models, "m")
    assert (run.state, run.exit, run.answer) == (RunState.DONE, Exit.ANSWER, "It is forty-two.")
    assert models.requests[1][-1] == {"role": "user", "content": CONTINUE}
    assert models.requests[1][-2]["content"] == "It is fo"
    assert run.reusable, "whole, so it may be given again"


async def test_what_is_still_cut_is_marked_and_never_given_again(answering: Answering) -> None:
    models = Models(m=[said("It is fo", "length"), said("rty-", "length")])
    run = await answering(models, "m")
    assert (run.state, run.exit, run.answer, run.reusable) == (
        RunState.DONE,
        Exit.CUT,
        "It is forty-",
        "",
    )
    assert [part["text"] for part in answer_of(run)["content"]] == ["It is forty-", CUT]
    assert len(models.asked) == 2


@pytest.mark.exhaustive
@pytest.mark.one_database
async def test_a_cut_answer_is_better_than_none(answering: Answering) -> None:
    models = Models(
        m=[said("It is fo", "length"), ModelError(ErrorKind.AUTH, "The key has expired.")]
    )
    run = await answering(models, "m")
    assert (run.state, run.exit, run.answer) == (RunState.DONE, Exit.CUT, "It is fo")


@pytest.mark.exhaustive
@pytest.mark.one_database
async def test_json_that_was_cut_is_whole_again_when_it_goes_on(answering: Answering) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    models = Models(m=[said('{"n": 4', "length"), said("2}")])
    run = await answering(models, "m", output_schema=schema)
    assert (run.exit, run.structured) == (Exit.ANSWER, '{"n":42}')


@pytest.mark.exhaustive
async def test_a_filtered_answer_goes_to_the_next_model_and_is_paid_for(
    answering: Answering,
) -> None:
    models = Models(strict=[said("", "policy")], frank=[said("Forty-two.")])
    run = await answering(models, "strict", "frank")
    assert (run.answer, models.asked) == ("Forty-two.", ["strict", "frank"])
    attempt = await db_call(Attempt.objects.get)
    assert (attempt.trouble, attempt.input_tokens, attempt.output_tokens) == (
        "content_policy",
        100,
        10,
    )
    assert (run.input_tokens, run.output_tokens) == (200, 20)
    assert run.cost == 2 * attempt.cost > 0


@pytest.mark.exhaustive
@pytest.mark.one_database
async def test_a_model_that_says_nothing_twice_gives_way_to_the_next(answering: Answering) -> None:
    models = Models(mute=[said(), said()], frank=[said("Forty-two.")])
    run = await answering(models, "mute", "frank")
    assert (run.answer, models.asked) == ("Forty-two.", ["mute", "mute", "frank"])
    assert [each[-1]["content"] for each in models.requests[1:]] == [SPEAK, SPEAK]


@pytest.mark.exhaustive
@pytest.mark.one_database
async def test_where_nobody_says_anything_the_reason_is_told(answering: Answering) -> None:
    models = Models(mute=[said(), said()], strict=[said("", "policy")])
    run = await answering(models, "mute", "strict")
    assert (run.state, run.exit) == (RunState.FAILED, Exit.MODEL)
    assert run.error == (
        "No model answered. scripts/mute: empty (The model gave an empty answer twice.). "
        "scripts/strict: content_policy (The provider withheld the answer (content filter).)."
    )


@pytest.mark.one_database
async def test_an_output_limit_that_is_used_up_before_a_word_is_named(answering: Answering) -> None:
    models = Models(m=[said("", "length"), said("", "length")])
    run = await answering(models, "m")
    assert run.exit == Exit.EMPTY
    assert "output limit of 4096 tokens before it answered" in run.error
    assert models.requests[1][-1]["content"] == BRIEF


@pytest.mark.exhaustive
@pytest.mark.one_database
async def test_a_request_that_only_one_model_refuses_goes_to_the_next(answering: Answering) -> None:
    refused = ModelError(ErrorKind.BAD_REQUEST, "This model does not support tools.", status=400)
    models = Models(old=[refused], new=[said("Forty-two.")])
    assert (await answering(models, "old", "new")).answer == "Forty-two."


@pytest.mark.exhaustive
@pytest.mark.one_database
async def test_a_wait_that_is_longer_than_the_run_ends_it_at_once(answering: Answering) -> None:
    limited = ModelError(ErrorKind.RATE_LIMITED, "Slow down.", status=429, retry_after=100_000)
    run = await answering(Models(m=[limited]), "m", max_seconds=50_000)
    assert run.state == RunState.FAILED
    assert "rate_limited (Slow down.); the next attempt is possible in 100000 s" in run.error


async def test_the_token_budget_is_never_overdrawn(answering: Answering) -> None:
    limits: list[int] = []

    async def wordy(
        target: ModelTarget, messages: list[dict[str, Any]], tools: list[Any], **_: Any
    ) -> ModelReply:
        """Always says as much as it may, and calls for as long as it may."""
        limits.append(target.max_output)
        call = ToolUse(f"c{len(limits)}", "echo__echo", '{"text": "x"}')
        text, calls = ("", (call,)) if tools else ("As far as I came.", ())
        return ModelReply(
            text,
            calls,
            TokenUsage(300, min(900, target.max_output)),
            "calls" if calls else "stop",
            "m",
            None,
        )

    run = await answering(wordy, "m", max_tokens=6_000)
    assert (run.state, run.exit, run.answer) == (RunState.DONE, Exit.BUDGET, "As far as I came.")
    assert run.input_tokens + run.output_tokens <= 6_000
    assert len(limits) > 2


@pytest.mark.one_database
async def test_a_token_budget_that_bears_no_answer_asks_nobody(answering: Answering) -> None:
    models = Models(m=[])
    run = await answering(models, "m", max_tokens=300)
    assert (run.exit, models.asked) == (Exit.BUDGET, [])
    assert run.error == "The token budget of the run does not allow another answer of the model."


@pytest.mark.one_database
async def test_arguments_that_were_cut_are_told_as_that_and_kept(answering: Answering) -> None:
    models = Models(
        m=[said("", "length", ToolUse("c1", "echo__echo", '{"text": "a lo')), said("I see.")]
    )
    run = await answering(models, "m")
    assert run.answer == "I see."
    assistant, result = models.requests[1][-2:]
    assert (
        assistant["tool_calls"][0]["function"]["arguments"]
        == '{"__broken__": "{\\"text\\": \\"a lo"}'
    )
    assert "your output limit" in result["content"]


def test_a_tools_own_failure_is_marked_as_one() -> None:
    result = {"content": [{"type": "text", "text": "boom: file not found"}], "isError": True}
    end = describe_end(CallOutcome("1" * 32, InvocationState.TOOL_ERROR, result))
    assert (end.state, end.is_error) == (CallState.FAILED, True)
    assert (end.text, end.whole) == ("(tool failed: boom: file not found)", "boom: file not found")
