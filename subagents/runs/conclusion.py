"""The end of a run: the model's last word, checked against the output schema, with what the run has
saved."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import msgspec

from mcpregistry.db import db_call
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.schema.validation import list_problems
from mcpregistry.prepared_queries import Given, Select
from subagents.domain.lifecycle import CallState, Exit, RunState
from subagents.domain.savings import Counted, money_saved, savings
from subagents.domain.transcript import (
    BRIEF,
    CONTINUE,
    SPEAK,
    TurnView,
    final_text,
    repairing,
    was_asked_again,
)
from subagents.leased.leases import Lease
from subagents.llm.tokens import REFERENCE, counter
from subagents.models import LanguageModel, Run
from subagents.runs import records
from subagents.runs.model_turn import TurnUnansweredError
from subagents.runs.run_views import RunView, read_prices
from subagents.runs.toolbox import Toolbox

if TYPE_CHECKING:
    from subagents.runs.model_turn import Thinking


async def conclude(
    held: Lease, seen: RunView, tools: Toolbox, exit: Exit, thinking: Thinking
) -> bool:
    """Take the last turn as the answer, or ask once more for one that can be taken.

    An answer that broke off at the model's output limit is continued once; what is then still cut
    is marked as that.
    """
    last = seen.turns[-1]
    text = final_text(seen.turns)
    cut = last.finish == "length"
    if cut and last.text.strip() and last.note != CONTINUE:
        with suppress(TurnUnansweredError):  # then it stays as it is
            return await thinking.turn(held, seen, tools, exit, note=CONTINUE, insist=True)
    structured, problem = await asyncio.to_thread(_check_answer, text, seen.spec.output_schema)
    if problem and not any(was_asked_again(turn.note) for turn in _last_words(seen.turns)):
        if text.strip():
            note = repairing(problem)
        elif cut:
            note = BRIEF
        else:
            note = SPEAK
        return await thinking.turn(held, seen, tools, exit, note=note)
    if not text.strip():
        return await _fail_run(held, seen, Exit.EMPTY, "The model gave no answer.")
    if problem:
        return await _fail_run(
            held,
            seen,
            Exit.INVALID_OUTPUT,
            f"The answer does not match the output schema: {problem}",
        )
    exit = Exit.CUT if cut and not structured else exit
    counted = await asyncio.to_thread(_count_tokens, seen, tools, text)
    saved = savings(counted) | await db_call(_money, held.key, counted)
    await db_call(
        records.finish,
        held,
        state=RunState.DONE,
        exit=exit,
        answer=text,
        structured=structured,
        savings=saved,
        reusable=_reusable(seen, tools, exit),
    )
    return False


def _last_words(turns: Sequence[TurnView]) -> Sequence[TurnView]:
    """The answers since the last tool call."""
    return list(takewhile(lambda turn: not turn.calls, reversed(turns)))


def _reusable(seen: RunView, tools: Toolbox, exit: Exit) -> str:
    """What the tools are, if the answer may be given again: a whole one, of a run that did nothing
    but read."""
    calls = [call for turn in seen.turns for call in turn.calls]
    only_read = all(call.read_only and call.state == CallState.DONE for call in calls)
    return tools.fingerprint if exit == Exit.ANSWER and only_read else ""


async def _fail_run(held: Lease, seen: RunView, exit: Exit, error: str) -> bool:
    await db_call(
        records.finish,
        held,
        state=RunState.FAILED,
        exit=exit,
        error=error,
        answer=seen.turns[-1].text,
    )
    return False


def _check_answer(text: str, schema: Any) -> tuple[str, str]:
    """(the answer as canonical JSON where a schema is set, what is wrong with it or an empty
    text)."""
    if schema is None:
        return "", "" if text.strip() else "it is empty."
    try:
        value = json.loads(_strip_fence(text))
    except ValueError as error:
        return "", f"it is not valid JSON ({error})."
    try:
        wrong = list_problems(schema, value)
    except SlipsnisseError as error:
        wrong = [error.message]
    return ("", " ".join(wrong)) if wrong else (msgspec.json.encode(value).decode(), "")


def _strip_fence(text: str) -> str:
    """Models like to wrap JSON into a code fence, whatever they are told."""
    text = text.strip()
    if text.startswith("```"):
        text = text.split("\n", 1)[-1].rsplit("```", 1)[0]
    return text


def _money(run_id: str, counted: Counted) -> dict[str, float]:
    """Against the model that an operator has marked as the callers' own; nothing where a price is
    not known."""
    cost = _COST.get(id=run_id).cost
    compared = _COMPARED.fetch_rows()
    if not compared or cost is None:
        return {}
    saved = money_saved(counted, cost=cost, callers=read_prices(compared[0]))
    return {} if saved is None else {"money_saved": round(float(saved), 6)}


_COST = Select(Run.objects.filter(id=Given("id")).values_list("cost", named=True))
_COMPARED = Select(
    LanguageModel.objects.filter(compared=True).values_list(
        "input_price", "output_price", "cache_read_price", "cache_write_price", "free", named=True
    )
)


def _count_tokens(seen: RunView, tools: Toolbox, answer: str) -> Counted:
    count = counter(REFERENCE)
    calls = [call for turn in seen.turns for call in turn.calls]
    own = [seen.spec.name, seen.spec.description, seen.spec.input_schema]
    return Counted(
        results=sum(count(call.result) for call in calls),
        calls=sum(count(call.name) + count(call.arguments) for call in calls),
        returned=count(answer) + count(json.dumps(seen.arguments)),
        definitions=count(msgspec.json.encode(tools.definitions()).decode()),
        own_definition=count(msgspec.json.encode(own).decode()),
        input_tokens=sum(turn.input_tokens for turn in seen.turns),
        turns=len(seen.turns),
    )
