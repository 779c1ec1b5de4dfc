"""The processes of a busy site, and who kills them: for programs that look what becomes of all that
was under way."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import Signals
from typing import Any

from tests.conftest import VAR  # before all else: it gives Django a folder of its own

# ruff: isort: split
import psutil
from django.core.management import call_command
from django.db import connections

from controlplane import embedded_site as processes
from controlplane.child_processes import stop
from controlplane.databases import settings_for
from controlplane.supervisor import PREDECESSOR, Pauses
from subagents.llm.scripted.app import ScriptedModels
from subagents.llm.scripted.local_server import run_server as models_running
from subagents.llm.scripted.script import Script
from tests import forkserver, postgres
from tests.fakes.hosts import StdioHost
from tests.fakes.stage import Web
from tests.origin import Origin
from tests.processes import runs
from tests.subagents.kit import Bench
from tests.waiting import HANG_LIMIT, eventually

WORKERS = ("one", "two")


class Site:
    """The processes, which are started again when they are killed, and told whom they replace."""

    def __init__(self, env: dict[str, str], folder: Path) -> None:
        self.env = env
        self._log = (folder / "workers.log").open("ab")
        self.workers: dict[str, forkserver.Process] = {}
        self.web = Web(env)
        self.clock = self._start(processes.beat().argv[1:])

    def start_worker(self, name: str, predecessor: int = 0) -> None:
        command = [*processes.worker().argv[1:], "--hostname", f"{name}@kills"]
        env = {forkserver.PRELOAD: "tests.fault.preloaded"} | (
            {PREDECESSOR: str(predecessor)} if predecessor else {}
        )
        self.workers[name] = self._start(command, env)

    def start_web(self, predecessor: int = 0) -> None:
        self.web.processes = [each for each in self.web.processes if each.poll() is None]
        self.web.start(**({PREDECESSOR: str(predecessor)} if predecessor else {}))

    def start_clock(self, predecessor: int = 0) -> None:
        self.clock = self._start(processes.beat().argv[1:], {PREDECESSOR: str(predecessor)})

    def stop(self) -> None:
        for process in (*self.workers.values(), self.clock):
            stop(process, HANG_LIMIT)  # type: ignore[arg-type]  # it has the face of a Popen
        self.web.stop()
        self._log.close()

    def _start(
        self, command: Sequence[str], env: dict[str, str] | None = None
    ) -> forkserver.Process:
        return forkserver.popen(
            command,
            env=self.env | (env or {}),
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )


@contextmanager
def site(env: dict[str, str], folder: Path, *, web: int = 1) -> Iterator[Site]:
    """Two workers, the clock and so many web processes; the broker is there already."""
    made = Site(env, folder)
    try:
        for name in WORKERS:
            made.start_worker(name)
        eventually(
            lambda: (folder / "workers.log").read_bytes().count(b"ready.") >= len(made.workers)
        )
        for _ in range(web):
            made.start_web()
        made.web.wait_ready()
        yield made
    finally:
        made.stop()


@dataclass(frozen=True)
class Victim:
    """A process that was killed. ``at``: when, in seconds since the epoch; ``name``: of a
    worker."""

    kind: str
    process: Any
    at: float
    name: str = ""

    @property
    def pid(self) -> int:
        return int(self.process.pid)


@dataclass
class Killer:
    """Kills processes by kind, and starts them again as the site's supervisor does. ``hosts``:
    those that have a ``runmcp`` now.

    ``kills``: how often, by kind and signal. ``dead``: when each process ended, by its id.
    ``paused``: those that were ever paused.
    """

    site: Site
    hosts: Callable[[], Sequence[StdioHost]]
    chance: random.Random
    kills: Counter[tuple[str, Signals]] = field(default_factory=Counter)
    dead: dict[int, float] = field(default_factory=dict)
    paused: set[int] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    _asleep: set[int] = field(default_factory=set)
    _watching: set[asyncio.Task[None]] = field(default_factory=set)

    async def end(self, kind: str, number: Signals = signal.SIGKILL) -> Victim:
        """End a process of this kind; whatever it had started must go with it."""
        name, process = await self._chosen(kind)
        family = _family(process.pid)
        at = time.time()
        process.send_signal(number)
        self.kills[kind, number] += 1
        if number != signal.SIGKILL and not await _ended(process):
            self.wrong.append(f"{kind} did not end by {number.name}")
            process.kill()
        self.dead[process.pid] = at if number == signal.SIGKILL else time.time()
        self.watch(self._family_gone(kind, family))
        return Victim(kind, process, at, name)

    async def start_again(self, victim: Victim) -> None:
        """As the supervisor does. A host starts its ``runmcp`` itself."""
        if victim.kind == "runmcp":
            return
        await asyncio.sleep(Pauses().first)
        if victim.kind == "worker":
            await asyncio.to_thread(self.site.start_worker, victim.name, victim.pid)
        else:
            start = self.site.start_web if victim.kind == "web" else self.site.start_clock
            await asyncio.to_thread(start, victim.pid)

    async def pause(self, kind: str, seconds: float) -> None:
        """Stop a process of this kind, and let it continue later. Returns at once."""
        _, process = await self._chosen(kind)
        process.send_signal(signal.SIGSTOP)
        self.kills[kind, signal.SIGSTOP] += 1
        self.paused.add(process.pid)
        self._asleep.add(process.pid)
        self.watch(self._continue(process, seconds))

    def watch(self, what: Coroutine[Any, Any, None]) -> None:
        """Do this besides; see ``rest``."""
        task = asyncio.ensure_future(what)
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)

    async def rest(self) -> None:
        """Wait for all that is done besides."""
        await asyncio.gather(*self._watching)

    async def _chosen(self, kind: str) -> tuple[str, Any]:
        """A process that runs, with its name."""
        while not (
            there := [each for each in self._running(kind) if each[1].pid not in self._asleep]
        ):
            await asyncio.sleep(0.05)
        return self.chance.choice(there)

    def _running(self, kind: str) -> list[tuple[str, Any]]:
        if kind == "worker":
            return [*self.site.workers.items()]
        if kind == "web":
            return [("", each) for each in self.site.web.processes if each.poll() is None]
        if kind == "clock":
            return [("", self.site.clock)]
        return [("", host._pipe.process) for host in self.hosts()]

    async def _continue(self, process: Any, seconds: float) -> None:
        await asyncio.sleep(seconds)
        process.send_signal(signal.SIGCONT)
        await asyncio.sleep(1.0)  # in which it looks who has taken what it had
        self._asleep.discard(process.pid)

    async def _family_gone(self, kind: str, family: list[psutil.Process]) -> None:
        _, alive = await asyncio.to_thread(psutil.wait_procs, family, HANG_LIMIT)
        self.wrong += [f"{kind} left {each}" for each in alive]


def _family(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


async def _ended(process: Any) -> bool:
    """Whether it has ended in time."""
    deadline = time.monotonic() + HANG_LIMIT
    while runs(process.pid) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    return not runs(process.pid)


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
