"""Clients of the headends of a busy site: chats with and without streaming, and a client that
repeats its request with a key."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx2

from mcpregistry.db import read_database_now
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import Endpoint, Invocation
from subagents.domain.lifecycle import RunState
from subagents.models import Headend, HeadendKind, HeadendRequest, Run
from subagents.services.headends import configuring
from tests.calls.conftest import ACTOR
from tests.fakes.stage import PLAIN
from tests.fault.callers import Callers
from tests.waiting import HANG_LIMIT

CONCURRENCY = 2  # fewer than clients, so that there is a queue
ANSWERED = "answered"
FAILED = "failed"
REFUSED = "refused"
UNKNOWN = "unknown"
UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class HeadendReport:
    """What a client of a headend was told. ``refused``: nothing was started. ``unknown``: the
    outcome is not known, also later. ``unclear``: an error that does not say.
    """

    text: str
    state: str
    answer: str
    call: str = ""
    run: str = ""


def prepare_headends() -> None:
    """An OpenAI and a REST headend on the endpoint of the expert tool."""
    endpoint = Endpoint.objects.get(slug="default")
    for kind, path in ((HeadendKind.OPENAI, "v1"), (HeadendKind.REST, "service")):
        row = Headend(
            slug=kind.value, kind=kind, path=path, endpoint=endpoint, concurrency=CONCURRENCY
        )
        configuring.save_headend(row=row, actor=ACTOR)


class HeadendCallers(Callers):
    """Adds clients of headends to the callers."""

    def callers(self) -> list[Callable[[], Awaitable[Any]]]:
        return [
            *super().callers(),
            self._chat,
            self._stream,
            self._chat_with_key,
            self._service_with_key,
        ]

    async def _chat(self) -> None:
        await self._ask_once("v1/chat/completions", stream=False)

    async def _stream(self) -> None:
        await self._ask_once("v1/chat/completions", stream=True)

    async def _ask_once(self, path: str, *, stream: bool) -> None:
        """A client that does not repeat its request."""
        text = self.fresh()
        try:
            report = await self._post(path, text, _chat_body(text, stream=stream))
        except httpx2.HTTPError:
            self.reports.without_report += 1
            await asyncio.sleep(0.3)
            return
        self.reports.headend_reports.append(report)
        if report.state != ANSWERED:
            await asyncio.sleep(0.3)

    async def _chat_with_key(self) -> None:
        text = self.fresh()
        await self._repeat("v1/chat/completions", text, _chat_body(text, stream=False))

    async def _service_with_key(self) -> None:
        text = self.fresh()
        await self._repeat("service/expert?format=json", text, {"text": text})

    async def _repeat(self, path: str, text: str, body: dict[str, Any]) -> None:
        """Repeats one request with one key until its run has ended."""
        while True:
            with suppress(httpx2.HTTPError):
                report = await self._post(path, text, body, **{"idempotency-key": text})
                if report.state in (ANSWERED, FAILED, UNKNOWN):
                    self.reports.headend_reports.append(report)
                    return
            await asyncio.sleep(0.5)

    async def _post(
        self, path: str, text: str, body: dict[str, Any], **headers: str
    ) -> HeadendReport:
        known = {"authorization": f"Bearer {self.token}"} | headers
        async with httpx2.AsyncClient(
            headers=known, timeout=httpx2.Timeout(HANG_LIMIT), **PLAIN
        ) as client:
            answer = await client.post(f"http://{self.address}/{path}", json=body)
        assert answer.status_code != 500, answer.text
        return _read(text, answer)


def _chat_body(text: str, *, stream: bool) -> dict[str, Any]:
    return {"model": "expert", "messages": [{"role": "user", "content": text}], "stream": stream}


def _read(text: str, answer: httpx2.Response) -> HeadendReport:
    """Read an answer. Raises httpx2.HTTPError for a stream without an end: its client knows that it
    was cut."""
    call, run = (answer.headers.get(f"x-slipsnisse-{name}", "") for name in ("call", "run"))
    if answer.status_code == 200:
        state, said = (
            _read_events(answer.text)
            if "data:" in answer.text[:6]
            else (ANSWERED, _read_body(answer.json()))
        )
    elif answer.status_code == 422:
        state = FAILED if run else UNKNOWN
        said = answer.text
    elif "retry-after" in answer.headers:
        state = REFUSED
        said = answer.text
    else:
        state = UNCLEAR
        said = answer.text
    return HeadendReport(text, state, said, call, run)


def _read_body(body: dict[str, Any]) -> str:
    return str(body["answer"] if "answer" in body else body["choices"][0]["message"]["content"])


def _read_events(text: str) -> tuple[str, str]:
    events = [
        line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")
    ]
    if events[-1] == "[DONE]":
        choices = [choice for event in events[:-1] for choice in json.loads(event)["choices"]]
        return ANSWERED, "".join(choice["delta"].get("content", "") for choice in choices)
    last = json.loads(events[-1])
    if "error" not in last:
        raise httpx2.ReadError("The stream has no end.")
    return UNCLEAR, str(last["error"])


def headend_disagreements(reports: list[HeadendReport]) -> Iterator[str]:
    """What clients of headends were told and is not so, and requests that started two runs."""
    for report in reports:
        runs = list(Run.objects.filter(arguments__contains=f'"{report.text}"'))
        if report.state == REFUSED and runs:
            yield f"{report}, but a run was started"
        if report.state == UNKNOWN and not _is_recorded_as_unknown(report):
            yield f"{report}, but the record says something else"
        if report.state in (ANSWERED, FAILED) and not _is_true(report, runs):
            yield f"{report}, but the runs are {[_describe(run) for run in runs]}"
    started = Counter(Run.objects.exclude(call_id="").values_list("arguments", flat=True))
    yield from (f"two runs for {arguments}" for arguments, count in started.items() if count > 1)


def _describe(run: Run) -> str:
    state = (
        Invocation.objects.filter(pk=run.call_id)
        .values_list("state", "error_code", "reason")
        .first()
    )
    return f"run {run.pk}: {run.state}, {run.answer}{run.error}; call {run.call_id}: {state}"


def _is_true(report: HeadendReport, runs: list[Run]) -> bool:
    if len(runs) != 1:
        return False
    run = runs[0]
    state = Invocation.objects.filter(pk=runs[0].call_id).values_list("state", flat=True).first()
    if report.run not in ("", run.pk) or report.call not in ("", run.call_id):
        return False
    if report.state == ANSWERED:
        return (run.state, run.answer, state) == (
            RunState.DONE,
            report.answer,
            InvocationState.SUCCEEDED,
        )
    return (
        run.state in (RunState.FAILED, RunState.CANCELLED)
        and json.dumps(run.error)[1:-1] in report.answer
    )


def _is_recorded_as_unknown(report: HeadendReport) -> bool:
    calls = Invocation.objects.filter(arguments__contains=f'"{report.text}"').exclude(origin="run")
    return list(calls.values_list("state", flat=True)) == [InvocationState.UNKNOWN]


def places_in_use() -> int:
    """How many requests to headends have a place in a queue."""
    return HeadendRequest.objects.filter(
        released_at=None, lease_until__gt=read_database_now()
    ).count()
