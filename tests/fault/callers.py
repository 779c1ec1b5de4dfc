"""Callers of a busy site, for programs that break it: each makes a call or starts a run, and hears
its end, or nothing."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx2

from mcpregistry.db import read_database_now
from mcpregistry.domain.lifecycle import TERMINAL, InvocationState
from mcpregistry.models import Agent, Endpoint, Invocation
from mcpregistry.services.access import tokens
from subagents.models import HeadendRequest, MaintenanceRequest, Run
from tests.calls.conftest import ACTOR
from tests.fakes.hosts import StdioHost, stdio_host
from tests.fakes.stage import PLAIN, OutputEndedError, Stage, outside
from tests.subagents.kit import Bench, calls
from tests.waiting import HANG_LIMIT

if TYPE_CHECKING:
    from tests.fault.headend_callers import HeadendReport

# callers that start runs, and that wait for the answer of an expert tool, at the same time
RUNS = 4
EXPERT_CALLS = 1
SLOWLY = {"steps": 3, "pause": 0.1}
# seconds for all that is under way to end after the last fault: leases run out meanwhile
PATIENCE = 4 * HANG_LIMIT
REFUSED = "refused"  # of a run that was not started


@dataclass(frozen=True, slots=True)
class Report:
    """What a caller was told in the end. ``state`` is a call's or a run's."""

    text: str
    state: str
    record: str
    answer: str = ""


@dataclass
class Reports:
    """What callers were told. ``single_reports``: by callers that make each call once, so each must
    be true."""

    call_reports: list[Report] = field(default_factory=list)
    run_reports: list[Report] = field(default_factory=list)
    single_reports: list[Report] = field(default_factory=list)
    headend_reports: list[HeadendReport] = field(default_factory=list)
    without_report: int = 0
    waiting: int = 0  # callers that were never answered


def prepare(bench: Bench, *more_tools: str) -> str:
    """A server that writes and an expert tool that uses it with the default limits; the token of
    who may call both."""
    names = ("write", "read", *more_tools)
    server = bench.server("slow", *names, read_only=["read"], request_timeout=5, max_concurrency=32)
    turns = [
        calls(
            *(
                (f"slow__{name}", {"text": f"{{{{ user.json.text }}}} {key}"} | SLOWLY)
                for name, key in asked
            )
        )
        for asked in (
            (("write", "a"), ("read", "r"), ("write", "b")),
            (("read", "s"), ("write", "c")),
        )
    ]
    expert = bench.expert(
        bench.model("m", *turns, {"text": "done"}), uses=[server], max_seconds=60, max_steps=20
    )
    ann = Agent.objects.get(slug="ann")
    expert.users.add(ann)
    expert.endpoints.add(Endpoint.objects.get(slug="default"))
    return tokens.issue_token(name="kills", agent=ann, actor=ACTOR)[1]


class Callers:
    """They use the tool ``slow__write`` and the expert tool, over REST and stdio, all on one event
    loop."""

    def __init__(self, env: dict[str, str], address: str, token: str, reports: Reports) -> None:
        self.env = env
        self.address = address
        self.token = token
        self.reports = reports
        self.hosts: list[StdioHost] = []
        self._feeding = True
        self._number = 0

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """At the end each hears of its last call, and everything comes to its end undisturbed."""
        async with asyncio.TaskGroup() as group:
            hosting = group.create_task(self._host())
            callers = [group.create_task(self._calling(each)) for each in self.callers()]
            yield
            self._feeding = False
            self.reports.waiting = len((await asyncio.wait(callers, timeout=PATIENCE))[1])
            await self._until_quiet()
            for each in (*callers, hosting):
                each.cancel()

    def callers(self) -> list[Callable[[], Awaitable[Any]]]:
        """What is done again and again at the same time."""
        return [
            *[self._run_over_rest] * RUNS,
            *[self._expert_over_rest] * EXPERT_CALLS,
            self._write_over_rest,
            self._expert_over_stdio,
            self._write_over_stdio,
        ]

    async def write_once(self, **arguments: Any) -> Report:
        """One call without a key. Whatever the answer says must be true."""
        return await self._report_at_once("write", {}, arguments)

    async def hold_once(self) -> None:
        """A call that a person must approve, asked again until it has ended. A refusal (503) ends
        nothing."""
        text = self.fresh()
        report = None
        while report is None or not report.record or InvocationState(report.state) not in TERMINAL:
            report = await self._answer("hold", text, SLOWLY, prefer="wait=20")
            await asyncio.sleep(0.2)
        self.reports.single_reports.append(report)

    def fresh(self) -> str:
        """A text that no other call has."""
        self._number += 1
        return f"text-{self._number:05}"

    async def ask(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> httpx2.Response:
        """One request over REST. The site may refuse it (503), but not fail."""
        known = {"authorization": f"Bearer {self.token}", "content-type": "application/json"}
        async with httpx2.AsyncClient(
            headers=known | headers, timeout=httpx2.Timeout(HANG_LIMIT), **PLAIN
        ) as client:
            answer = await client.request(method, f"http://{self.address}/api/v1/{path}", json=body)
        assert answer.status_code < 500 or answer.status_code == 503, answer.text
        return answer

    async def _until_quiet(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and not await outside(_quiet):
            await asyncio.sleep(0.5)

    async def _calling(self, one: Callable[[], Awaitable[Any]]) -> None:
        while self._feeding:
            await one()

    async def _report_at_once(
        self, tool: str, headers: dict[str, str], arguments: dict[str, Any]
    ) -> Report:
        report = await self._answer(tool, self.fresh(), arguments or SLOWLY, **headers)
        self.reports.single_reports.append(report)
        return report

    async def _answer(self, tool: str, text: str, more: dict[str, Any], **headers: str) -> Report:
        answer = await self.ask(
            "POST", f"tools/slow__{tool}/call", {"params": {"text": text} | more}, **headers
        )
        known = answer.json().get("mcp") or {}
        state = known.get("state", InvocationState.NOT_SENT.value)
        return Report(
            text, state, known.get("invocation_id", ""), f"{answer.status_code} {answer.text}"
        )

    async def _run_over_rest(self) -> None:
        """Starts a run and looks at it until it has ended, whatever dies between."""
        text = self.fresh()
        try:
            started = await self.ask("POST", "experts/expert/runs", {"arguments": {"text": text}})
        except httpx2.HTTPError:
            self.reports.without_report += 1
            return
        run = started.json()
        if "id" not in run:
            self.reports.run_reports.append(Report(text, REFUSED, "", started.text))
            await asyncio.sleep(0.3)
            return
        while run["finished_at"] is None:
            await asyncio.sleep(0.3)
            with suppress(httpx2.HTTPError):
                answer = await self.ask("GET", f"runs/{run['id']}")
                run = answer.json() if answer.status_code == 200 else run
        self.reports.run_reports.append(Report(text, run["state"], run["id"], run["answer"]))

    async def _expert_over_rest(self) -> None:
        await self._keyed("expert", self.fresh(), {})

    async def _write_over_rest(self) -> None:
        await self._keyed("slow__write", self.fresh(), SLOWLY)

    async def _keyed(self, tool: str, text: str, more: dict[str, Any], **headers: str) -> None:
        """Repeats one request with one key until it is answered from its end."""
        while True:
            with suppress(httpx2.HTTPError):
                body = {"params": {"text": text} | more}
                answer = await self.ask(
                    "POST", f"tools/{tool}/call", body, **{"idempotency-key": text}, **headers
                )
                if answer.status_code == 200:
                    said = answer.json()
                    meta = said["mcp"]
                    shown = json.dumps(said["result"])
                    self.reports.call_reports.append(
                        Report(text, meta["state"], meta["invocation_id"], shown)
                    )
                    return
            await asyncio.sleep(0.5)

    async def _expert_over_stdio(self) -> None:
        await self._over_stdio("expert", self.fresh(), {})

    async def _write_over_stdio(self) -> None:
        await self._over_stdio("slow__write", self.fresh(), SLOWLY)

    async def _over_stdio(self, tool: str, text: str, more: dict[str, Any]) -> None:
        """A host does not repeat what its ``runmcp`` died over."""
        while not self.hosts:
            await asyncio.sleep(0.05)
        host = self.hosts[-1]
        calling = asyncio.ensure_future(host.call(tool, {"text": text} | more))
        died = asyncio.ensure_future(host._pipe.process.wait())
        await asyncio.wait({calling, died}, return_when=asyncio.FIRST_COMPLETED)
        if not calling.done():
            await asyncio.wait({calling}, timeout=0.2)
        died.cancel()
        if not calling.done():
            calling.cancel()
            self.reports.without_report += 1
            return
        try:
            result = calling.result()
        except OutputEndedError:
            self.reports.without_report += 1
            await asyncio.sleep(0.3)  # until the host has noticed, and starts it again
            return
        # which it leaves out when nothing is wrong
        failed = "error" in result or result.get("isError", False)
        unknown = "OUTCOME UNKNOWN" in str(result)
        state = "succeeded"
        if failed:
            state = "unknown" if unknown else "failed"
        self.reports.call_reports.append(Report(text, state, "", str(result)))
        if failed:
            await asyncio.sleep(0.3)

    async def _host(self) -> None:
        """A host that starts ``runmcp`` again when it has died."""
        stage = Stage(self.env)
        while True:
            async with stdio_host(stage, "--endpoint", "default", "--agent", "ann") as host:
                self.hosts = [host]
                try:
                    await host._pipe.process.wait()
                finally:
                    self.hosts = []


def _quiet() -> bool:
    waiting = HeadendRequest.objects.filter(released_at=None, lease_until__gt=read_database_now())
    at_work = [
        Run.objects.open(),
        Invocation.objects.open(),
        MaintenanceRequest.objects.open(),
        waiting,
    ]
    return not any(rows.exists() for rows in at_work)
