"""What the caller of an expert tool is told of its run: what it does now, and its end as a tool
result."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Count

from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import Invocation
from mcpregistry.services.tasks import long_calls
from subagents.domain.lifecycle import Exit, RunState
from subagents.models import Run, ToolCall, Turn
from subagents.services.runs import CALL

# in a result: the run that the answer is from, where it was not asked anew
META_KEY = "slipsnisse/answer"
CUT = "(This answer is incomplete: the model reached its output limit twice. Ask for less, or for a part.)"
_SHOWN = 3  # names of calls that are out at the same time


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far a run has come: answers of its models, calls that have ended, and what it does
    now."""

    ended: bool
    turns: int
    calls: int
    doing: str
    waits: bool = False  # for a person


def read_progress(run_ids: Collection[str]) -> dict[str, RunProgress]:
    """How far each of these runs has come, in four queries for all of them."""
    calls = ToolCall.objects.filter(run_id__in=run_ids).order_by("turn_number", "index")
    out: dict[str, list[str]] = {}
    for run_id, name in calls.filter(finished_at=None).values_list("run_id", "name"):
        out.setdefault(run_id, []).append(name)
    turns = _count_by_run(Turn.objects.filter(run_id__in=run_ids))
    ended = _count_by_run(calls.exclude(finished_at=None))
    rows = Run.objects.filter(pk__in=run_ids).values_list(
        "pk", "state", "finished_at", "sleeps_for"
    )
    return {
        pk: RunProgress(
            finished is not None,
            turns.get(pk, 0),
            ended.get(pk, 0),
            describe_state(state, out.get(pk, ()), sleeps_for),
            state == RunState.WAITING,
        )
        for pk, state, finished, sleeps_for in rows
    }


def _count_by_run(rows: Any) -> dict[str, int]:
    return dict(rows.order_by().values("run_id").annotate(n=Count("pk")).values_list("run_id", "n"))


def describe_activity(run: Run) -> str:
    """What an open run does at this moment, in words for people."""
    open_calls = ToolCall.objects.filter(run=run, finished_at=None).values_list("name", flat=True)
    return describe_state(run.state, list(open_calls[:_SHOWN]), run.sleeps_for)


def describe_state(state: str, open_calls: Sequence[str], sleeps_for: str = "") -> str:
    """What a run in this state does, in words; ``open_calls`` are the names of its open tool
    calls."""
    names = ", ".join(open_calls[:_SHOWN])
    if state == RunState.WAITING:
        return f"waiting for a decision on {names}"
    if names:
        return f"calling {names}"
    if sleeps_for:
        return f"waiting for {sleeps_for}"
    return "waiting for a worker" if state == RunState.QUEUED else "thinking"


def answer_of(run: Run) -> dict[str, Any]:
    """The run's end as a tool result; what went wrong in the words that the first source design
    gives."""
    if run.state == RunState.DONE:
        result: dict[str, Any] = {"content": [{"type": "text", "text": run.answer}]}
        if run.exit == Exit.CUT:
            result["content"].append({"type": "text", "text": CUT})
        structured: Mapping[str, Any] | None = (
            json.loads(run.structured) if run.structured else None
        )
        return result | ({"structuredContent": structured} if structured is not None else {})
    text = (
        run.error
        if run.error.startswith("ToolExecutionError:")
        else f"ToolExecutionError: {run.error}"
    )
    said = {"error": "TOOL_EXECUTION_ERROR", "message": text, "exit": run.exit, "run": run.pk}
    content = [{"type": "text", "text": f"{text} ({run.exit}, run {run.pk})"}]
    if run.answer and run.exit != Exit.INVALID_OUTPUT:
        said["so_far"] = run.answer
        content.append({"type": "text", "text": run.answer})
    return {"isError": True, "content": content, "structuredContent": said}


def repeat_answer(run: Run) -> dict[str, Any]:
    """The answer of an earlier run, which says whose it is and from when."""
    when = (
        run.finished_at.isoformat(timespec="seconds").replace("+00:00", "Z")
        if run.finished_at
        else ""
    )
    result = answer_of(run)
    note = {
        "type": "text",
        "text": f"(This is the answer of run {run.pk} from {when}, which was asked the same question.)",
    }
    return result | {
        "content": [*result["content"], note],
        "_meta": {META_KEY: {"run": run.pk, "at": when}},
    }


def tell_caller(run: Run) -> None:
    """End the call that became a task, in the transaction that ends its run; other callers wait for
    the row. Of a run that answers a question of the call's server the call is not ended.
    """
    if run.origin != CALL:
        return
    call = (
        Invocation.objects.filter(pk=run.call_id, host_task__isnull=False)
        .without_known_end()
        .first()
    )
    if call is None:
        return
    if run.state == RunState.CANCELLED and call.host_task.cancel_requested:
        reason = "The caller cancelled the run while it was in progress."
        long_calls.end_long_call(
            call_id=call.pk,
            fence=call.fence,
            state=InvocationState.UNKNOWN,
            code="CANCELLED",
            reason=reason,
        )
        return
    result = answer_of(run)
    state = InvocationState.TOOL_ERROR if result.get("isError") else InvocationState.SUCCEEDED
    long_calls.end_long_call(
        call_id=call.pk, fence=call.fence, state=state, outcome={"result": result}
    )
