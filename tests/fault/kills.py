"""Kills processes of a busy site at random moments, and says what became of all that was under way.

By hand, with as many kills as wanted: ``python -m tests.fault.kills 300`` (``--postgres``, ``--seed``). The suite makes
a few of workers alone (``tests/subagents/runs/test_kills.py``). Two workers, a web process and a host's ``runmcp`` are
kept running as the site's supervisor does; callers start runs of an expert tool and make calls that write, over REST and
stdio. What a server really received stands in its journal.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conftest import VAR, child_env  # before all else: it gives Django a folder of its own

# ruff: isort: split
import httpx2
import psutil
from django.core.management import call_command
from django.db import connections
from django.utils import timezone

from controlplane import site as processes
from controlplane.children import stop
from controlplane.databases import settings_for
from controlplane.supervisor import PREDECESSOR, Pauses
from mcpregistry.domain.lifecycle import State
from mcpregistry.models import Agent, Endpoint, Invocation
from mcpregistry.services.access import tokens
from mcpregistry.services.servers.connections import forget_stale, process_name
from subagents.domain.lifecycle import CallState, Exit
from subagents.llm.scripted.app import ScriptedModels
from subagents.llm.scripted.running import running as models_running
from subagents.llm.scripted.script import Script
from subagents.models import Run, ToolCall
from tests import forkserver, postgres, valkey
from tests.calls.conftest import ACTOR, broken
from tests.fakes.hosts import StdioHost, stdio_host
from tests.fakes.stage import Stage, Web, outside
from tests.origin import Origin
from tests.subagents.kit import Bench, calls
from tests.waiting import HANG_LIMIT, eventually

VICTIMS = {"worker": 7, "web": 2, "runmcp": 2}  # how often each kind is chosen
BETWEEN = (0.3, 2.5)  # seconds between two kills
RUNS, EXPERT_CALLS = 4, 1  # callers that start runs, and that wait for the answer of an expert tool, at the same time
SLOWLY = {"steps": 3, "pause": 0.1}
PATIENCE = 4 * HANG_LIMIT  # seconds for all that is under way to end after the last kill: leases run out meanwhile


@dataclass(frozen=True, slots=True)
class Told:
    """What a caller has in the end. ``state`` is a call's or a run's."""

    text: str
    state: str
    record: str
    answer: str = ""


@dataclass
class Figures:
    """What was seen. Times are seconds from the kill of a worker that held a run."""

    kills: Counter[str] = field(default_factory=Counter)
    hit: dict[str, float] = field(default_factory=dict)  # run -> when its worker was first killed
    taken_over: list[float] = field(default_factory=list)
    told_calls: list[Told] = field(default_factory=list)
    told_runs: list[Told] = field(default_factory=list)
    told_nothing: int = 0
    orphans: list[str] = field(default_factory=list)
    waiting: int = 0  # callers that were never answered


@dataclass
class Verdict:
    """The figures as sentences, and what must not be."""

    lines: list[str]
    wrong: list[str]
    answered: float


def prepare(bench: Bench) -> str:
    """A server that writes and an expert tool that uses it with the default limits; the token of who may call both."""
    server = bench.server("slow", "write", "read", read_only=["read"], request_timeout=5, max_concurrency=32)
    turns = [
        calls(*((f"slow__{name}", {"text": f"{{{{ user.json.text }}}} {key}"} | SLOWLY) for name, key in asked))
        for asked in ((("write", "a"), ("read", "r"), ("write", "b")), (("read", "s"), ("write", "c")))
    ]
    expert = bench.expert(bench.model("m", *turns, {"text": "done"}), uses=[server], max_seconds=60, max_steps=20)
    ann = Agent.objects.get(slug="ann")
    expert.users.add(ann)
    expert.endpoints.add(Endpoint.objects.get(slug="default"))
    return tokens.issue_token(name="kills", agent=ann, actor=ACTOR)[1]


class Site:
    """The processes, which are started again when they are killed, and told whom they replace."""

    def __init__(self, env: dict[str, str], folder: Path) -> None:
        self.env = env
        self._log = (folder / "workers.log").open("ab")
        self.workers: dict[str, forkserver.Process] = {}
        self.web = Web(env)
        self.hosts: list[StdioHost] = []

    def start_worker(self, name: str, predecessor: int = 0) -> None:
        command = [*processes.worker().argv[1:], "--hostname", f"{name}@kills"]
        env = self.env | {forkserver.PRELOAD: "tests.fault.preloaded"}
        env |= {PREDECESSOR: str(predecessor)} if predecessor else {}
        self.workers[name] = forkserver.popen(
            command, env=env, stdout=self._log, stderr=self._log, start_new_session=True
        )

    def start_web(self) -> None:
        self.web.processes = [each for each in self.web.processes if each.poll() is None]
        self.web.start()

    def stop(self) -> None:
        for worker in self.workers.values():
            stop(worker, HANG_LIMIT)  # type: ignore[arg-type]  # it has the face of a Popen
        self.web.stop()
        self._log.close()


@contextmanager
def site(env: dict[str, str], folder: Path) -> Iterator[Site]:
    """Two workers, the clock and a web process; the broker is there already."""
    made = Site(env, folder)
    clock = subprocess.Popen(processes.beat().argv, env=env, stdout=made._log, stderr=made._log, start_new_session=True)
    try:
        for name in ("one", "two"):
            made.start_worker(name)
        eventually(lambda: (folder / "workers.log").read_bytes().count(b"ready.") >= len(made.workers))
        made.start_web()
        made.web.wait_ready()
        yield made
    finally:
        made.stop()
        stop(clock, HANG_LIMIT)


class Campaign:
    """Callers and a killer, on one event loop."""

    def __init__(self, here: Site, token: str, seed: int) -> None:
        self.site, self.token, self.chance = here, token, random.Random(seed)
        self.figures = Figures()
        self._feeding, self._number = True, 0
        self._watching: set[asyncio.Task[None]] = set()

    def chosen(self, count: int) -> list[str]:
        """So many victims, by kind."""
        return self.chance.choices([*VICTIMS], [*VICTIMS.values()], k=count)

    async def run(self, victims: Sequence[str]) -> Figures:
        """Kill these, one after the other; then everything comes to its end undisturbed."""
        async with asyncio.TaskGroup() as group:
            hosting = group.create_task(self._host())
            callers = [group.create_task(self._calling(each)) for each in self._callers()]
            for number, kind in enumerate(victims):
                await asyncio.sleep(self.chance.uniform(*BETWEEN))
                await self._kill(kind)
                if number % 20 == 19:
                    print(f"{number + 1} kills, {len(self.figures.hit)} runs hit", file=sys.stderr, flush=True)
            self._feeding = False
            self.figures.waiting = len((await asyncio.wait(callers, timeout=PATIENCE))[1])
            await asyncio.gather(*self._watching)
            await self._until_quiet()
            for each in (*callers, hosting):
                each.cancel()
        return self.figures

    def _callers(self) -> list[Callable[[], Awaitable[None]]]:
        return [*[self._run_over_rest] * RUNS, *[self._expert_over_rest] * EXPERT_CALLS, self._write_over_rest,
                self._expert_over_stdio, self._write_over_stdio]  # fmt: skip

    async def _until_quiet(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and not await outside(_quiet):
            await asyncio.sleep(0.5)

    # Callers: each makes one call or run and hears of its end, or of nothing

    async def _calling(self, one: Callable[[], Awaitable[None]]) -> None:
        while self._feeding:
            await one()

    def _fresh(self) -> str:
        self._number += 1
        return f"text-{self._number:05}"

    async def _run_over_rest(self) -> None:
        """Starts a run and looks at it until it has ended, whatever dies between."""
        text = self._fresh()
        try:
            started = await self._ask("POST", "experts/expert/runs", {"arguments": {"text": text}})
        except httpx2.HTTPError:
            self.figures.told_nothing += 1
            return
        run = started.json()
        while run["finished_at"] is None:
            await asyncio.sleep(0.3)
            with suppress(httpx2.HTTPError):
                run = (await self._ask("GET", f"runs/{run['id']}")).json()
        self.figures.told_runs.append(Told(text, run["state"], run["id"], run["answer"]))

    async def _expert_over_rest(self) -> None:
        await self._keyed("expert", self._fresh(), {})

    async def _write_over_rest(self) -> None:
        await self._keyed("slow__write", self._fresh(), SLOWLY)

    async def _keyed(self, tool: str, text: str, more: dict[str, Any]) -> None:
        """Repeats one request with one key until it is answered from its end."""
        while True:
            with suppress(httpx2.HTTPError):
                answer = await self._ask(
                    "POST", f"tools/{tool}/call", {"params": {"text": text} | more}, **{"idempotency-key": text}
                )
                if answer.status_code == 200:
                    said = answer.json()
                    meta = said["mcp"]
                    shown = json.dumps(said["result"])
                    self.figures.told_calls.append(Told(text, meta["state"], meta["invocation_id"], shown))
                    return
            await asyncio.sleep(0.5)

    async def _ask(self, method: str, path: str, body: Any = None, **headers: str) -> httpx2.Response:
        async with self.site.web.raw(self.token, **headers) as client:
            answer = await client.request(method, f"http://{self.site.web.address}/api/v1/{path}", json=body)
        assert answer.status_code < 500 or answer.status_code == 503, answer.text
        return answer

    async def _expert_over_stdio(self) -> None:
        await self._over_stdio("expert", self._fresh(), {})

    async def _write_over_stdio(self) -> None:
        await self._over_stdio("slow__write", self._fresh(), SLOWLY)

    async def _over_stdio(self, tool: str, text: str, more: dict[str, Any]) -> None:
        """A host does not repeat what its ``runmcp`` died over."""
        while not self.site.hosts:
            await asyncio.sleep(0.05)
        host = self.site.hosts[-1]
        calling = asyncio.ensure_future(host.call(tool, {"text": text} | more))
        died = asyncio.ensure_future(host._pipe.process.wait())
        await asyncio.wait({calling, died}, return_when=asyncio.FIRST_COMPLETED)
        if not calling.done():
            await asyncio.wait({calling}, timeout=0.2)
        died.cancel()
        if not calling.done():
            calling.cancel()
            self.figures.told_nothing += 1
            return
        result = calling.result()
        failed = "error" in result or result.get("isError", False)  # which it leaves out when nothing is wrong
        state = "succeeded" if not failed else "unknown" if "unknown" in str(result) else "failed"
        self.figures.told_calls.append(Told(text, state, "", str(result)))

    async def _host(self) -> None:
        """A host that starts ``runmcp`` again when it has died."""
        stage = Stage(self.site.env)
        while True:
            async with stdio_host(stage, "--endpoint", "default", "--agent", "ann") as host:
                self.site.hosts = [host]
                try:
                    await host._pipe.process.wait()
                finally:
                    self.site.hosts = []

    # The killer

    async def _kill(self, kind: str) -> None:
        if kind == "runmcp":
            while not self.site.hosts:
                await asyncio.sleep(0.05)
            await self._killed(kind, self.site.hosts[0]._pipe.process)
        elif kind == "web":
            await self._killed(kind, self.site.web.processes[-1])
            await asyncio.sleep(Pauses().first)
            await asyncio.to_thread(self.site.start_web)
        else:
            await self._kill_worker(self.chance.choice([*self.site.workers]))

    async def _kill_worker(self, name: str) -> None:
        victim = self.site.workers[name]
        at = await self._killed("worker", victim)
        for run, fence in (await outside(_held_by, victim.pid)).items():
            self.figures.hit.setdefault(run, time.time())
            self._watch(self._taken_over(run, fence, at))
        await asyncio.sleep(Pauses().first)
        await asyncio.to_thread(self.site.start_worker, name, victim.pid)

    async def _killed(self, kind: str, victim: Any) -> float:
        """Kill it; what it had started must go with it. Returns when that was, by the steady clock."""
        family = psutil.Process(victim.pid).children(recursive=True)
        victim.kill()
        self.figures.kills[kind] += 1
        self._watch(self._family_gone(kind, family))
        return time.monotonic()

    def _watch(self, what: Any) -> None:
        task = asyncio.ensure_future(what)
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)

    async def _family_gone(self, kind: str, family: list[psutil.Process]) -> None:
        _, alive = await asyncio.to_thread(psutil.wait_procs, family, HANG_LIMIT)
        self.figures.orphans += [f"{kind} left {each}" for each in alive]

    async def _taken_over(self, run: str, fence: int, at: float) -> None:
        while not await outside(_gone_on, run, fence):
            await asyncio.sleep(0.1)
        self.figures.taken_over.append(time.monotonic() - at)


def _held_by(pid: int) -> dict[str, int]:
    """Runs (and their fences) that the dead worker had."""
    return dict(Run.objects.open().filter(worker=process_name("worker", pid)).values_list("pk", "fence"))


def _gone_on(run: str, fence: int) -> bool:
    return not Run.objects.open().filter(pk=run, fence=fence).exists()


def _quiet() -> bool:
    return not (Run.objects.open().exists() or Invocation.objects.open().exists())


# What must be so


def verdict(figures: Figures, bench: Bench) -> Verdict:
    """Compare what callers were told, the records and the server's journal."""
    forget_stale(timezone.now())
    orphans = [*figures.orphans, *_servers_left(bench)]
    writes = Counter(p["arguments"]["text"] for p in bench.sent() if p["name"] == "write")
    twice = [f"written twice: {text}" for text, times in writes.items() if times > 1]
    disagree = [*_calls_of_runs(writes), *_told_of_runs(figures), *_told_of_calls(figures, writes)]
    hit = Run.objects.filter(pk__in=figures.hit)
    ends = Counter(hit.values_list("exit", flat=True))
    answered = ends[Exit.ANSWER] / len(figures.hit) if figures.hit else 1.0
    times = sorted(
        run.finished_at.timestamp() - figures.hit[run.pk] for run in hit if run.exit == Exit.ANSWER and run.finished_at
    )
    silent = [
        f"run {run.pk} says nothing" for run in Run.objects.all() if not (run.finished_at and (run.answer or run.error))
    ]
    lines = [
        f"kills: {sum(figures.kills.values())} {dict(figures.kills)}",
        f"runs: {Run.objects.count()}, hit by the death of their worker: {len(figures.hit)}, of these answered: "
        f"{answered:.1%} {dict(ends)}",
        f"from kill to take-over: {_percentiles(figures.taken_over)}; from kill to answer: {_percentiles(times)}",
        f"callers told: {len(figures.told_runs)} of runs, {len(figures.told_calls)} of calls "
        f"{dict(Counter(told.state for told in figures.told_calls))}, nothing (their process died): {figures.told_nothing}",
        f"writes received: {len(writes)}, effects twice: {len(twice)}, disagreements: {len(disagree)}, "
        f"orphans: {len(orphans)}, callers never answered: {figures.waiting}",
    ]
    never = ["callers were never answered"] if figures.waiting else []
    return Verdict(lines, [*twice, *disagree, *silent, *orphans, *never, *broken()], answered)


def _servers_left(bench: Bench) -> Iterator[str]:
    """Downstream servers of the stopped site that run on: their journal is in their environment."""
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.environ().get("FAKE_JOURNAL") == str(bench.journal):
                yield f"left running: {process}"


def _percentiles(times: list[float]) -> str:
    if len(times) < 2:
        return f"{times} s"
    cuts = statistics.quantiles(times, n=20, method="inclusive")
    return f"p50 {cuts[9]:.1f} s, p95 {cuts[18]:.1f} s, max {max(times):.1f} s"


def _calls_of_runs(writes: Counter[str]) -> Iterator[str]:
    """What a run says of each of its writes is what the journal says, or honestly that nobody knows."""
    for call in ToolCall.objects.filter(name="slow__write"):
        record = Invocation.objects.filter(pk=call.invocation).first()
        if not fits(call, record, writes):
            yield f"call {call.pk} is {call.state}, its record {record and record.state}"


def fits(call: ToolCall, record: Invocation | None, writes: Counter[str]) -> bool:
    """Whether call, record and journal are one story."""
    received = writes[json.loads(call.arguments)["text"]]
    state = record.state if record else ""
    if call.state == CallState.DONE:
        return (received, state) == (1, State.SUCCEEDED)
    if call.state == CallState.FAILED:
        return (received, state) == (0, State.NOT_SENT)
    if call.state == CallState.UNKNOWN:
        return state == State.UNKNOWN
    return received == 0  # it was cancelled before it was made


def _told_of_runs(figures: Figures) -> Iterator[str]:
    for told in figures.told_runs:
        run = Run.objects.get(pk=told.record)
        if (run.state, run.answer) != (told.state, told.answer):
            yield f"told {told}, but the run is {run.state}: {run.answer}"


def _told_of_calls(figures: Figures, writes: Counter[str]) -> Iterator[str]:
    for told in figures.told_calls:
        records = Invocation.objects.filter(arguments__contains=f'"{told.text}"').exclude(origin="run")
        states = set((records.filter(pk=told.record) if told.record else records).values_list("state", flat=True))
        if told.state == "failed":
            agree = not states & {State.SUCCEEDED, State.UNKNOWN} and not writes[told.text]
        else:
            agree = states == {told.state}
        if not agree:
            yield f"told {told}, but the record says {states} and {writes[told.text]} were received"


# By hand


@contextmanager
def database(on_postgres: bool) -> Iterator[None]:
    """An empty database of the site's own kind."""
    with ExitStack() as stack:
        if on_postgres:
            server = stack.enter_context(postgres.running())
            connections.databases["default"].update(settings_for(server.url, VAR))
            del connections["default"]
        call_command("migrate", verbosity=0)
        Origin.remember()  # the makers of rows look whether the site is new
        yield
        connections.close_all()


@contextmanager
def bench(folder: Path) -> Iterator[Bench]:
    """What ``prepare`` needs: scripted models that answer on this machine."""
    models = ScriptedModels(Script())
    with models_running(models) as base:
        yield Bench(base, models, folder / "journal")


def main(kills: int, seed: int, on_postgres: bool) -> int:
    """0 when nothing was wrong and nine of ten runs that were hit answered."""
    with database(on_postgres), valkey.running(VAR), bench(VAR) as made:
        token = prepare(made)
        with site(child_env(), VAR) as here:
            campaign = Campaign(here, token, seed)
            figures = asyncio.run(campaign.run(campaign.chosen(kills)))
        found = verdict(figures, made)
    print("\n".join([*found.lines, *found.wrong]))
    return bool(found.wrong or found.answered < 0.9)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kills", type=int, nargs="?", default=300)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--postgres", action="store_true")
    options = parser.parse_args()
    print(f"{options.kills} kills, seed {options.seed}", flush=True)
    sys.exit(main(options.kills, options.seed, options.postgres))
