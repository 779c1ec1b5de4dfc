"""Two machines without ``up``: what becomes of calls and runs when one of their processes dies,
stops for a while, or loses its database.

Run it with ``python -m tests.fault.machines``. Two web processes and two workers with a folder
each, one clock, PostgreSQL and Valkey, started by the command lines in docs/settings.md. It prints
figures, and exits with 1 if something that must hold does not. How long something took is printed
and compared with what the documents promise.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conftest import VAR, child_env  # before all else: it gives Django a folder of its own

# ruff: isort: split
import httpx2
import psutil
from django.conf import settings
from django.core.management import call_command
from django.db import connections

from controlplane.child_processes import die_with_parent, stop
from controlplane.databases import settings_for
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import Agent, AuditEntry, EnergyEntry, Invocation, SiteProcess
from mcpregistry.services.access import tokens
from mcpregistry.services.servers.connections import make_process_name
from subagents.domain.lifecycle import Exit
from subagents.models import Run
from tests import postgres, valkey
from tests.calls.conftest import ACTOR, broken
from tests.externals import ROOT
from tests.fakes.stage import PLAIN
from tests.fault.books import PER_SECOND, give_pool, least_and_most
from tests.fault.killing import bench
from tests.origin import Origin
from tests.subagents.kit import Bench, calls
from tests.waiting import HANG_LIMIT, eventually

PROMISED = 12.0  # seconds from the death of a process to the end of its calls
# the same until another worker has its runs: their lease, and a second of a busy machine
RUN_PROMISED = 11.0
LONG = {"steps": 400, "pause": 0.1}  # a call of 40 s
SECOND = {"steps": 10, "pause": 0.1}
# seconds
PAUSED = 15.0
OUTAGE = 20.0
CALLS = 4
RUNS = 4

_WEB = [
    "uvicorn",
    "controlplane.asgi:application",
    "--timeout-graceful-shutdown",
    "40",
    "--log-level",
    "warning",
]
_WORKER = [
    "celery",
    "-A",
    "controlplane",
    "worker",
    "--pool",
    "threads",
    "--concurrency",
    "8",
    "--without-mingle",
]
_CLOCK = ["celery", "-A", "controlplane", "beat", "--pidfile="]


@dataclass
class HeardAnswer:
    """What a caller heard. ``status`` is 0 if its connection broke."""

    status: int = 0
    body: dict[str, Any] = field(default_factory=dict)


class Machine:
    """A folder, a web process and a worker."""

    def __init__(self, name: str, env: dict[str, str]) -> None:
        self.name = name
        self.folder = VAR / name
        self.folder.mkdir()
        shutil.copy(VAR / "keys.json", self.folder / "keys.json")
        self.log = self.folder / "log"
        self._env = env | {
            "SLIPSNISSE_VAR": str(self.folder),
            "SLIPSNISSE_LOG_FORMAT": "json",
            "SLIPSNISSE_HOSTS": "*",
        }
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.web = self.start("web", [*_WEB, "--port", str(self.port)])
        self.worker = self.start(
            "worker", [*_WORKER, "--without-gossip", "--hostname", f"worker@{name}"]
        )

    def start(self, kind: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        program = str(Path(sys.executable).with_name(command[0]))
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [program, *command[1:]],
                cwd=ROOT,
                env=self._env | {"SLIPSNISSE_PROCESS": kind},
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )

    def is_ready(self) -> bool:
        """Whether both processes serve."""
        with suppress(httpx2.HTTPError):
            answer = httpx2.get(f"http://127.0.0.1:{self.port}/readyz", timeout=HANG_LIMIT, **PLAIN)
            return answer.status_code == 200 and b"ready." in self.log.read_bytes()
        return False

    def call(self, token: str, key: str, arguments: dict[str, Any]) -> HeardAnswer:
        """One call over REST."""
        headers = {"authorization": f"Bearer {token}", "idempotency-key": key}
        try:
            answer = httpx2.post(
                f"http://127.0.0.1:{self.port}/api/v1/tools/slow__write/call",
                json={"params": arguments},
                headers=headers,
                timeout=4 * HANG_LIMIT,
                **PLAIN,
            )
        except httpx2.HTTPError:
            return HeardAnswer()
        return HeardAnswer(answer.status_code, answer.json())


class Callers:
    """Calls at the same time, each in a thread."""

    def __init__(
        self, machine: Machine, token: str, prefix: str, arguments: dict[str, Any]
    ) -> None:
        self.keys = [f"{prefix}-{number}" for number in range(CALLS)]
        self.heard: dict[str, HeardAnswer] = {}
        self._threads = [
            threading.Thread(
                target=self._one, args=(machine, token, key, {"text": key} | arguments), daemon=True
            )
            for key in self.keys
        ]
        for each in self._threads:
            each.start()

    def _one(self, machine: Machine, token: str, key: str, arguments: dict[str, Any]) -> None:
        self.heard[key] = machine.call(token, key, arguments)

    def rows(self) -> list[Invocation]:
        return list(
            Invocation.objects.filter(arguments__contains=f'"{self.keys[0][:-2]}-').order_by("id")
        )

    def wait_until_sent(self, made: Bench) -> None:
        """Until the server works on all of them."""
        eventually(
            lambda: {params["arguments"]["text"] for params in made.sent()}.issuperset(self.keys)
        )

    def join(self) -> None:
        for each in self._threads:
            each.join()


class Trial:
    """Runs the parts one after the other, and keeps what went wrong."""

    def __init__(
        self, machines: list[Machine], server: postgres.Postgres, made: Bench, token: str
    ) -> None:
        self.machines = machines
        self.server = server
        self.bench = made
        self.token = token
        self.wrong: list[str] = []

    def check(self, holds: bool, what: str) -> None:
        if not holds:
            self.wrong.append(what)

    def run(self) -> None:
        eventually(lambda: all(each.is_ready() for each in self.machines), 3 * HANG_LIMIT)
        _wait_until_all_may_judge()
        for part in (self.kill_worker, self.pause_web, self.stop_database, self.kill_web):
            print(f"--- {part.__name__}", flush=True)
            part()
        self.check(not broken(), f"invariants: {broken()}")
        sent = [params["arguments"]["text"] for params in self.bench.sent()]
        self.check(len(sent) == len(set(sent)), "an effect happened twice")

    def kill_web(self) -> None:
        """Its calls end, and are charged for the time in which it lived; the same key gets that end
        from the other machine."""
        first, second = self.machines
        callers = Callers(first, self.token, "web", LONG)
        callers.wait_until_sent(self.bench)
        time.sleep(4)
        at = _kill(first.web)
        ends = _ends_of(callers, at)
        again = [second.call(self.token, key, {"text": key} | LONG) for key in callers.keys]
        print(f"killed web: its {CALLS} calls ended {_times(ends)} s after its death")
        print(f"  with the same key: {[(told.status, _state(told)) for told in again]}")
        self.check(
            max(ends) < PROMISED, f"calls of a killed web process ended after {max(ends):.1f} s"
        )
        self.check(
            {_state(told) for told in again} == {"unknown"},
            "the same key got another end than the record",
        )
        self._compare_energy(callers, at)

    def kill_worker(self) -> None:
        """Its runs go on in the other worker, do not make a call twice, and lose no time of their
        own."""
        runs = [self.bench.start(f"run-{number}") for number in range(RUNS)]
        eventually(lambda: _out(runs) == RUNS)
        pids = {make_process_name("worker", each.worker.pid): each for each in self.machines}
        held = {
            run.pk: (run.worker, run.fence)
            for run in Run.objects.filter(pk__in=[each.pk for each in runs])
        }
        victim = pids[next(iter(held.values()))[0]]
        hit = {key: fence for key, (worker, fence) in held.items() if pids[worker] is victim}
        at = _kill(victim.worker)
        taken = dict[str, float]()
        ended = dict[str, float]()
        while len(ended) < len(hit):
            for run in Run.objects.filter(pk__in=hit):
                if run.fence > hit[run.pk]:
                    taken.setdefault(run.pk, time.time() - at)
                if run.finished_at:
                    ended.setdefault(run.pk, time.time() - at)
            time.sleep(0.1)
        rows = list(Run.objects.filter(pk__in=hit))
        print(
            f"killed worker with {len(hit)} of {RUNS} runs: taken over after {_times(taken.values())} s"
        )
        print(
            f"  answered after {_times(ended.values())} s; not counted as their time: {_times(r.lost_seconds for r in rows)} s"
        )
        self.check(
            max(taken.values()) < RUN_PROMISED,
            f"runs were taken over after {max(taken.values()):.1f} s",
        )
        self.check(
            {run.exit for run in rows} == {Exit.ANSWER},
            f"runs ended as {[run.exit for run in rows]}",
        )
        calls_of_dead = Invocation.objects.filter(origin="run", state=InvocationState.UNKNOWN)
        entries = EnergyEntry.objects.filter(reference__in=calls_of_dead.values("pk"), kind="call")
        print(
            f"  charged for the {calls_of_dead.count()} calls of the dead worker: {_times(e.amount for e in entries)} units"
        )
        victim.worker = victim.start(
            "worker", [*_WORKER, "--without-gossip", "--hostname", f"again@{victim.name}"]
        )

    def pause_web(self) -> None:
        """It counts as dead, and comes back: its ends replace the supposed ones, also in the books
        of energy."""
        first = self.machines[0]
        callers = Callers(first, self.token, "paused", {"steps": 200, "pause": 0.1})
        callers.wait_until_sent(self.bench)
        time.sleep(3)
        first.web.send_signal(signal.SIGSTOP)
        at = time.time()
        ends = _ends_of(callers, at)
        time.sleep(max(0.0, PAUSED - (time.time() - at)))
        supposed = _charged(callers)
        first.web.send_signal(signal.SIGCONT)
        callers.join()
        states = {row.state for row in callers.rows()}
        eventually(lambda: len(_corrections(callers)) == CALLS)
        print(f"paused web for {PAUSED:.0f} s: its calls were unknown after {_times(ends)} s")
        print(
            f"  callers were told {sorted({(told.status, _state(told)) for told in callers.heard.values()})}, recorded {sorted(states)}"
        )
        print(
            f"  charged {_times(supposed)} units at first, {_times(_charged(callers))} in the end"
        )
        self.check(states == {"succeeded"}, f"after the pause the record says {states}")
        self.check(
            {_state(told) for told in callers.heard.values()} == states,
            "callers were told something else",
        )
        took = [
            (row.finished_at - row.dispatched_at).total_seconds()
            for row in callers.rows()
            if row.finished_at and row.dispatched_at
        ]
        self._near(
            _charged(callers), [PER_SECOND * seconds for seconds in took], "after the correction"
        )

    def stop_database(self) -> None:
        """No living process counts as dead, and all calls end as their servers ended them."""
        callers = [
            Callers(each, self.token, f"outage-{each.name}", {"steps": 350, "pause": 0.1})
            for each in self.machines
        ]
        for each in callers:
            each.wait_until_sent(self.bench)
        connections.close_all()
        before = self._deaths()
        self.server.stop()
        time.sleep(OUTAGE)
        self.server.start()
        for each in callers:
            each.join()
        states = [row.state for each in callers for row in each.rows()]
        print(
            f"database gone for {OUTAGE:.0f} s: processes declared dead: {self._deaths() - before}, calls {sorted(set(states))}"
        )
        self.check(self._deaths() == before, "a living process was declared dead after the outage")
        self.check(states == ["succeeded"] * CALLS * len(callers), f"calls ended as {states}")
        _wait_until_all_may_judge()

    def _deaths(self) -> int:
        return sum(
            each.log.read_text(errors="replace").count("process_dead") for each in self.machines
        )

    def _compare_energy(self, callers: Callers, died_at: float) -> None:
        """Each call is charged for at most the time in which its process lived, and for all of it
        but one step of the lease."""
        lived = [
            died_at - row.dispatched_at.timestamp() for row in callers.rows() if row.dispatched_at
        ]
        charged = _charged(callers)
        print(
            f"  they had worked for {_times(lived)} s; charged {_times(charged)} units at {PER_SECOND:.0f} a second"
        )
        for seconds, units in zip(lived, charged, strict=True):
            least, most = least_and_most(seconds)
            self.check(
                least <= units <= most,
                f"{units:.1f} units for {seconds:.1f} s of a call of a dead process",
            )

    def _near(self, found: Sequence[float], wanted: Sequence[float], when: str) -> None:
        for units, right in zip(found, wanted, strict=True):
            self.check(abs(units - right) < 0.5, f"{units:.1f} units instead of {right:.1f} {when}")


def _kill(process: subprocess.Popen[bytes]) -> float:
    """Kill it, with whatever it has started. Returns when."""
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    at = time.time()
    process.wait()
    psutil.wait_procs(family, HANG_LIMIT)
    return at


def _ends_of(callers: Callers, at: float) -> list[float]:
    """Wait until all have ended as unknown. Returns how many seconds after ``at`` each was."""
    ended: dict[str, float] = {}

    def look() -> bool:
        for row in callers.rows():
            if row.state == InvocationState.UNKNOWN:
                ended.setdefault(row.pk, time.time() - at)
        return len(ended) == CALLS

    eventually(look, 4 * HANG_LIMIT)
    return list(ended.values())


def _charged(callers: Callers) -> list[float]:
    """What each call has cost by the books, corrections included; waits until all were charged."""
    keys = [row.pk for row in callers.rows()]
    eventually(
        lambda: EnergyEntry.objects.filter(reference__in=keys, kind="call").count() == len(keys)
    )
    rows = (
        Invocation.objects.filter(pk__in=keys).order_by("id").annotate(cost=EnergyEntry.of_call())
    )
    return [row.cost or 0.0 for row in rows]  # type: ignore[attr-defined]  # annotated


def _corrections(callers: Callers) -> list[str]:
    keys = [row.pk for row in callers.rows()]
    subjects = [f"call:{key}" for key in keys]
    known = AuditEntry.objects.filter(subject__in=subjects, kind="call.corrected").count() == CALLS
    found = EnergyEntry.objects.filter(reference__in=keys, kind="correction").values_list(
        "reference", flat=True
    )
    return list(found) if known else []


def _out(runs: Sequence[Run]) -> int:
    keys = [run.pk for run in runs]
    return (
        Invocation.objects.filter(origin="run", state=InvocationState.DISPATCHED).count()
        if keys
        else 0
    )


def _state(told: HeardAnswer) -> str:
    return str((told.body.get("mcp") or {}).get("state", told.body.get("code", "")))


def _times(values: Any) -> str:
    return "[" + ", ".join(f"{value:.1f}" for value in sorted(values)) + "]"


def _wait_until_all_may_judge() -> None:
    """A process declares nobody dead before it has renewed its own lease for ten seconds."""
    eventually(lambda: SiteProcess.objects.count() >= 2)
    time.sleep(13)


# The site


def prepare(made: Bench) -> str:
    """A server that writes, an expert tool that uses it, and an agent with a pool; the token of
    that agent."""
    server = made.server("slow", "write", request_timeout=60, max_concurrency=32)
    asked = ("slow__write", {"text": "{{ user.json.text }} a", "steps": 30, "pause": 0.1})
    second = ("slow__write", {"text": "{{ user.json.text }} b"} | SECOND)
    expert = made.expert(
        made.model("m", calls(asked), calls(second), {"text": "done"}),
        uses=[server],
        max_seconds=60,
    )
    give_pool("ann", expert.agent.slug)
    return tokens.issue_token(name="machines", agent=Agent.objects.get(slug="ann"), actor=ACTOR)[1]


@contextmanager
def site(stack: ExitStack) -> Iterator[tuple[list[Machine], postgres.Postgres, Bench, str]]:
    """Two machines, the clock, and what both use."""
    # it is killed
    server = stack.enter_context(postgres.running(settings=("synchronous_commit=on",)))
    connections.databases["default"].update(settings_for(server.url, VAR))
    del connections["default"]
    call_command("migrate", verbosity=0)
    Origin.remember()
    broker = stack.enter_context(valkey.running(VAR))
    made = stack.enter_context(bench(VAR))
    token = prepare(made)
    env = child_env() | {"CELERY_BROKER_URL": broker, "SLIPSNISSE_SECRET_KEY": settings.SECRET_KEY}
    machines = [Machine(name, env) for name in ("one", "two")]
    clock = machines[0].start("beat", _CLOCK)
    try:
        yield machines, server, made, token
    finally:
        for process in (
            clock,
            *(each for machine in machines for each in (machine.web, machine.worker)),
        ):
            stop(process, HANG_LIMIT)


def main() -> int:
    """0 if all that must hold did."""
    with ExitStack() as stack, site(stack) as (machines, server, made, token):
        trial = Trial(machines, server, made, token)
        trial.run()
        connections.close_all()
    print("\n".join(trial.wrong) or "nothing was wrong")
    return bool(trial.wrong)


if __name__ == "__main__":
    sys.exit(main())
