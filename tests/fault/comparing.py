"""Compare what the callers of a busy site were told with its records and with the journal of its
servers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import Invocation
from subagents.domain.lifecycle import CallState
from subagents.models import Run, ToolCall
from tests.fault.agreement import contradictions
from tests.fault.callers import REFUSED, Reports
from tests.subagents.kit import Bench

_EFFECTS = ("write", "hold")


def effects(bench: Bench) -> Counter[str]:
    """How often the server received each call that changes something, by its text."""
    return Counter(p["arguments"]["text"] for p in bench.sent() if p["name"] in _EFFECTS)


def twice(writes: Counter[str]) -> list[str]:
    """Effects that must not be."""
    return [f"written twice: {text}" for text, times in writes.items() if times > 1]


def disagreements(reports: Reports, writes: Counter[str]) -> list[str]:
    """All that callers were told, or that a run says, and that is not so."""
    return [
        *_calls_of_runs(writes),
        *_reports_of_runs(reports),
        *_reports_of_calls(reports, writes),
        *_each(reports, writes),
    ]


def silent_runs() -> list[str]:
    """Runs that have not ended, or ended without an answer or a reason."""
    return [
        f"run {run.pk} says nothing"
        for run in Run.objects.all()
        if not (run.finished_at and (run.answer or run.error))
    ]


def left_running(*marks: Path) -> Iterator[str]:
    """Processes of the stopped site that run on, by /proc: one of these paths is in their
    environment, command line or folder.

    A downstream server has the path of its journal in its environment, an installer that of the
    folder in which it works.
    """
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            words = [*process.environ().values(), *process.cmdline(), process.cwd()]
            if process.status() != psutil.STATUS_ZOMBIE and any(
                str(mark) in word for mark in marks for word in words
            ):
                yield f"left running: {process}"


def fits(call: ToolCall, record: Invocation | None, writes: Counter[str]) -> bool:
    """Whether call, record and journal are one story."""
    received = writes[json.loads(call.arguments)["text"]]
    state = record.state if record else ""
    if call.state == CallState.DONE:
        return (received, state) == (1, InvocationState.SUCCEEDED)
    if call.state == CallState.FAILED:
        return received == 0 and state in (
            "",
            InvocationState.NOT_SENT,
        )  # no record: the database refused it
    # a paused process writes the end that it knows, once it continues
    if call.state == CallState.UNKNOWN:
        return state == InvocationState.UNKNOWN or (received, state) == (
            1,
            InvocationState.SUCCEEDED,
        )
    return received == 0  # it was cancelled before it was made


def _calls_of_runs(writes: Counter[str]) -> Iterator[str]:
    """What a run says of each of its writes is what the journal says, or honestly that nobody
    knows."""
    for call in ToolCall.objects.filter(name="slow__write"):
        record = Invocation.objects.filter(pk=call.invocation).first()
        if not fits(call, record, writes):
            yield f"call {call.pk} is {call.state}, its record {record and record.state}"


def _reports_of_runs(reports: Reports) -> Iterator[str]:
    for report in reports.run_reports:
        if report.state == REFUSED:
            if (
                "not known" not in report.answer
                and Run.objects.filter(arguments__contains=f'"{report.text}"').exists()
            ):
                yield f"{report}, but the run was started"
            continue
        run = Run.objects.get(pk=report.record)
        if (run.state, run.answer) != (report.state, report.answer):
            yield f"{report}, but the run is {run.state}: {run.answer}"


def _reports_of_calls(reports: Reports, writes: Counter[str]) -> Iterator[str]:
    for report in reports.call_reports:
        records = Invocation.objects.filter(arguments__contains=f'"{report.text}"').exclude(
            origin="run"
        )
        states = set(
            (records.filter(pk=report.record) if report.record else records).values_list(
                "state", flat=True
            )
        )
        if report.state == InvocationState.UNKNOWN and not report.record:
            agree = True  # the host read that the call may have run
        elif report.state == "failed":
            agree = (
                not states & {InvocationState.SUCCEEDED, InvocationState.UNKNOWN}
                and not writes[report.text]
            )
        else:
            agree = states == {report.state}
        if not agree:
            yield f"{report}, but the record says {states} and {writes[report.text]} were received"


def _each(reports: Reports, writes: Counter[str]) -> Iterator[str]:
    for report in reports.single_reports:
        for wrong in contradictions(
            InvocationState(report.state), report.record, writes[report.text]
        ):
            yield f"{report}: {wrong}"
