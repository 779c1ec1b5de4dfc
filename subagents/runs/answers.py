"""What a run is to whoever called its expert tool: what it does now, and its end as a tool result."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Count

from mcpregistry.domain.lifecycle import State
from mcpregistry.models import Invocation
from mcpregistry.services import lasting
from subagents.domain.lifecycle import RunState
from subagents.models import Run, ToolCall, Turn

META_KEY = "slipsnisse/answer"  # in a result: the run that the answer is from, where it was not asked anew
_SHOWN = 3  # names of calls that are out at the same time


@dataclass(frozen=True, slots=True)
class Seen:
    """How far a run has come: answers of its models, calls that have ended, and what it does now."""

    ended: bool
    turns: int
    calls: int
    doing: str


def seen(run_ids: Collection[str]) -> dict[str, Seen]:
    """For all of them together, in four queries."""
    calls = ToolCall.objects.filter(run_id__in=run_ids).order_by("turn_number", "index")
    out: dict[str, list[str]] = {}
    for run_id, name in calls.filter(finished_at=None).values_list("run_id", "name"):
        out.setdefault(run_id, []).append(name)
    turns = _counted(Turn.objects.filter(run_id__in=run_ids))
    ended = _counted(calls.exclude(finished_at=None))
    rows = Run.objects.filter(pk__in=run_ids).values_list("pk", "state", "finished_at")
    return {
        pk: Seen(finished is not None, turns.get(pk, 0), ended.get(pk, 0), in_words(state, out.get(pk, ())))
        for pk, state, finished in rows
    }


def _counted(rows: Any) -> dict[str, int]:
    return dict(rows.order_by().values("run_id").annotate(n=Count("pk")).values_list("run_id", "n"))


def doing(run: Run) -> str:
    """What an open run does at this moment, in words for people."""
    open_calls = ToolCall.objects.filter(run=run, finished_at=None).values_list("name", flat=True)
    return in_words(run.state, list(open_calls[:_SHOWN]))


def in_words(state: str, open_calls: Sequence[str]) -> str:
    names = ", ".join(open_calls[:_SHOWN])
    if state == RunState.WAITING:
        return f"a person is asked about {names}"
    if names:
        return f"calling {names}"
    return "waiting for a worker" if state == RunState.QUEUED else "thinking"


def answer_of(run: Run) -> dict[str, Any]:
    """The run's end as a tool result; what went wrong in the words that the first source design gives."""
    if run.state == RunState.DONE:
        result: dict[str, Any] = {"content": [{"type": "text", "text": run.answer}]}
        structured: Mapping[str, Any] | None = json.loads(run.structured) if run.structured else None
        return result | ({"structuredContent": structured} if structured is not None else {})
    text = run.error if run.error.startswith("ToolExecutionError:") else f"ToolExecutionError: {run.error}"
    said = {"error": "TOOL_EXECUTION_ERROR", "message": text, "exit": run.exit, "run": run.pk}
    return {"isError": True, "content": [{"type": "text", "text": f"{text} ({run.exit}, run {run.pk})"}],
            "structuredContent": said}  # fmt: skip


def given_again(run: Run) -> dict[str, Any]:
    """The answer of an earlier run, which says whose it is and from when."""
    when = run.finished_at.isoformat(timespec="seconds").replace("+00:00", "Z") if run.finished_at else ""
    result = answer_of(run)
    note = {"type": "text", "text": f"(This answer is from {when}: run {run.pk} was asked the same.)"}
    return result | {"content": [*result["content"], note], "_meta": {META_KEY: {"run": run.pk, "at": when}}}


def tell_caller(run: Run) -> None:
    """The run has ended: so has the call that became a task, in the same transaction. Others are waited for."""
    call = Invocation.objects.filter(pk=run.call_id, state=State.DISPATCHED, task__isnull=False).first()
    if call is None:
        return
    if run.state == RunState.CANCELLED and call.task.cancel_requested:
        reason = "The caller cancelled it while it ran."
        lasting.end(call_id=call.pk, fence=call.fence, state=State.UNKNOWN, code="CANCELLED", reason=reason)
        return
    result = answer_of(run)
    state = State.TOOL_ERROR if result.get("isError") else State.SUCCEEDED
    lasting.end(call_id=call.pk, fence=call.fence, state=state, outcome={"result": result})
