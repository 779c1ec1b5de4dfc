"""What a run of an expert tool costs beside its model, and what it keeps out of its caller's
context.

    .venv/bin/python -m benchmarks.runs [--quick] [--out FILE]

Prints tables and writes JSON. The models are scripted and their time is taken out of every figure;
the servers behind the tools are real processes on stdio. SQLite with synchronous FULL: every step
commits. Linux only (it reads /proc).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks import site
from benchmarks.gateway import ECHO, STDIO, machine

AIM_MS = 5.0
AIM_MB = 400.0
WORDS = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
FILES = [
    sys.executable,
    "-S",
    str(site.ROOT / "benchmarks" / "files_stdio.py"),
    str(site.ROOT / "docs"),
]
READ = {"type": "object", "properties": {"name": {"type": "string"}}}
LISTED = [
    {"name": "list", "description": "Lists the files.", "inputSchema": {"type": "object"}},
    {
        "name": "read",
        "description": "Reads one file.",
        "inputSchema": READ | {"required": ["name"]},
    },
]
SAY = {"calls": [{"name": "stdio__echo", "arguments": {"text": "{{ user.json.text }}"}}]}


def reads(*names: str) -> dict[str, Any]:
    return {"calls": [{"name": "files__read", "arguments": {"name": name}} for name in names]}


SCRIPT: dict[str, Any] = {
    "steps": {"turns": [SAY, SAY, SAY, SAY, {"text": "It was said four times."}]},
    "reads_the_documents": {
        "turns": [
            {"calls": [{"name": "files__list", "arguments": {}}]},
            reads("README.md", "protocol.md"),
            reads("audit.md", "performance.md"),
            {
                "text": "It is a control plane for MCP: it decides which agent may call which tool. "
                * 3
            },
        ]
    },
    "reads_one": {"turns": [reads("README.md"), {"text": "Start it with `make run`. " * 3}]},
    "answers_at_once": {"turns": [{"text": "Four. " * 40}]},
}
CORPUS = ("reads_the_documents", "reads_one", "answers_at_once")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="Make a tenth of the runs.")
    parser.add_argument(
        "--out", type=Path, default=site.ROOT / "benchmarks" / "results" / "runs.json"
    )
    options = parser.parse_args()
    os.environ["SLIPSNISSE_LOG_LEVEL"] = "ERROR"
    var = site.prepare()
    try:
        _register()
        results = (
            {"machine": machine()} | asyncio.run(_measure(options.quick)) | {"worker": _worker(var)}
        )
    finally:
        shutil.rmtree(var, ignore_errors=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=2))
    print(f"\nWritten to {options.out}")


def _register() -> None:
    """The servers, and one expert tool for each scenario."""
    from mcpregistry.models import Server
    from mcpregistry.services.access import grants
    from subagents.models import ExpertTool, LanguageModel, Provider
    from subagents.services import experts

    site.register("stdio", ECHO, transport="stdio", command=STDIO, max_concurrency=64)
    site.register("files", LISTED, transport="stdio", command=FILES, max_concurrency=64)
    provider = Provider.objects.create(slug="scripts", kind="scripted", timeout=60)
    for name in SCRIPT:
        model = LanguageModel.objects.create(
            provider=provider, name=name, free=True, tokenizer="tiktoken:o200k_base"
        )
        tool = ExpertTool(
            name=name,
            description="Knows.",
            arguments=WORDS,
            max_seconds=3600,
            max_result_bytes=200_000,
        )
        expert = experts.save_expert(expert=tool, targets=[model], actor="bench")
        grants.grant_access(
            agent=expert.agent, server=Server.objects.get(slug="stdio"), actor="bench"
        )
        grants.grant_access(
            agent=expert.agent, server=Server.objects.get(slug="files"), actor="bench"
        )


async def _measure(quick: bool) -> dict[str, Any]:
    from mcpregistry.calls.engine import Engine
    from subagents.llm.tokens import REFERENCE, counter

    await asyncio.to_thread(counter(REFERENCE), "warm")
    engine = Engine("worker")
    await engine.start()
    try:
        alone = await _alone(engine, 5 if quick else 40)
        crowd = await _crowd(engine, 10 if quick else 50)
        return {
            "steps": alone,
            "crowd": crowd,
            "waiting": await _waiting(engine, 20 if quick else 200),
            "saved": await _saved(engine),
        }
    finally:
        await engine.stop()


class Scripted:
    """The model without a network: it thinks for ``seconds``, which are noted and taken out; or
    until told."""

    def __init__(self, seconds: float = 0.0, until: asyncio.Event | None = None) -> None:
        from subagents.llm.scripted.script import load

        self._script = load(SCRIPT)
        self._seconds = seconds
        self._until = until
        self.spent: dict[int, float] = defaultdict(float)  # by asyncio task

    async def __call__(self, target: Any, messages: Any, tools: Any, **_: Any) -> Any:
        from subagents.domain.finish_reasons import Finish
        from subagents.llm.model_values import ModelReply, TokenUsage, ToolUse
        from subagents.llm.scripted import openai
        from subagents.llm.scripted.script import reply

        began = time.perf_counter()
        if self._until is not None:
            await self._until.wait()
        if self._seconds:
            await asyncio.sleep(self._seconds)
        ask = openai.read({"messages": messages, "tools": tools}, target.model, False)
        said = reply(self._script.turn(ask), ask)
        calls = tuple(
            ToolUse(f"c{ask.answered}_{i}", c.name, c.arguments) for i, c in enumerate(said.calls)
        )
        usage = TokenUsage(said.usage.input, said.usage.output)
        self.spent[id(asyncio.current_task())] += time.perf_counter() - began
        return ModelReply(
            said.text, calls, usage, Finish.CALLS if calls else Finish.STOP, target.model
        )


def _worker_of(engine: Any, model: Scripted) -> tuple[Any, dict[str, list[float]]]:
    """An engine for runs, and the milliseconds of each of its steps by kind, without the
    model's."""
    from subagents.runs.engine import RunEngine

    runs = RunEngine(engine, "bench", complete=model)
    taken = defaultdict[str, list[float]](list)
    inner = runs._do

    async def step(*given: Any) -> bool:
        kind = [""]
        began = time.perf_counter()
        task = id(asyncio.current_task())
        model.spent.pop(task, None)

        async def doing(held: Any, what: Any) -> bool:
            kind[0] = type(what).__name__
            return await inner(held, what)

        runs._do = doing  # type: ignore[method-assign]
        again = await whole(*given)
        taken[kind[0]].append((time.perf_counter() - began - model.spent.pop(task, 0.0)) * 1000)
        return again

    whole = runs._do_step
    runs._do_step = step  # type: ignore[method-assign]
    return runs, taken


def _started(expert: str, count: int = 1, *, told: bool = False) -> list[str]:
    """Queued runs. ``told``: a worker hears of them; else they are driven here."""
    from subagents.services import runs

    wake = runs.wake
    runs.wake = runs.wake if told else lambda run: None
    try:
        return [
            runs.start(expert=expert, arguments={"text": "x" * 100}, origin="bench").pk
            for _ in range(count)
        ]
    finally:
        runs.wake = wake


async def _alone(engine: Any, count: int) -> list[dict[str, Any]]:
    """One run after the other."""
    from mcpregistry.db import db_call

    runs, taken = _worker_of(engine, Scripted())
    for number, run in enumerate(await db_call(_started, "steps", count + 3)):
        if number == 3:
            taken.clear()  # the first ones connect and compile
        await runs.drive(run)
    rows = [_row(name, taken[kind]) for name, kind in _KINDS.items()]
    rows.append(_row("every step", [each for kind in taken.values() for each in kind]))
    print(f"\n{'step of a run, without its model':44}{'steps':>7}{'p50 ms':>8}{'p95 ms':>8}")
    for row in rows:
        aim = ""
        if row["what"] == "every step":
            aim = "   within" if row["p50_ms"] <= AIM_MS else "   ABOVE"
        print(
            f"{row['what']:44}{row['steps']:>7}{row['p50_ms']:>8.2f}{row['p95_ms']:>8.2f}{aim}"
            + (f" the aim of {AIM_MS:.0f}" if aim else "")
        )
    return rows


_KINDS = {
    "a turn": "AskModel",
    "a tool call, with its server's time": "RunCalls",
    "the end, with what it saved": "Conclude",
}


def _row(what: str, taken: list[float]) -> dict[str, Any]:
    ordered = sorted(taken)
    return {
        "what": what,
        "steps": len(ordered),
        "p50_ms": round(statistics.median(ordered), 3),
        "p95_ms": round(ordered[int(len(ordered) * 0.95)], 3),
    }


async def _crowd(engine: Any, count: int) -> dict[str, Any]:
    """So many runs at the same time in one worker, with models that think for half a second."""
    from mcpregistry.db import db_call
    from subagents.models import Run

    runs, taken = _worker_of(engine, Scripted(0.5))
    started = await db_call(_started, "steps", count)
    before = time.process_time()
    began = time.perf_counter()
    await asyncio.gather(*(runs.drive(run) for run in started))
    wall = time.perf_counter() - began
    cpu = time.process_time() - before
    done = await db_call(Run.objects.filter(pk__in=started, state="done").count)
    steps = [each for kind in taken.values() for each in kind]
    found = {
        "runs": count,
        "done": done,
        "wall_s": round(wall, 2),
        "steps_per_second": round(len(steps) / wall),
        "cpu_ms_per_step": round(cpu / len(steps) * 1000, 2),
    } | {k: v for k, v in _row("", steps).items() if k != "what"}
    print(
        f"\n{count} runs at the same time in one worker, with models that answer after 0.5 s: {done} done in {wall:.1f} s, "
        f"{found['steps_per_second']} steps/s, {found['cpu_ms_per_step']} ms of CPU for a step, "
        f"p50 {found['p50_ms']} ms, p95 {found['p95_ms']} ms"
    )
    return found


async def _waiting(engine: Any, count: int) -> dict[str, Any]:
    """Memory of a run that waits for its model, and of one that sleeps for a person's decision."""
    from django.utils import timezone

    from mcpregistry.db import db_call
    from subagents.models import Run

    go = asyncio.Event()
    runs, _ = _worker_of(engine, Scripted(until=go))
    started = await db_call(_started, "answers_at_once", count)
    before = _resident_kb()
    driving = [asyncio.ensure_future(runs.drive(run)) for run in started]
    while await db_call(Run.objects.filter(pk__in=started, state="running").count) < count:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    model_kb = (_resident_kb() - before) / count
    go.set()
    await asyncio.gather(*driving)
    asleep = await db_call(_started, "answers_at_once", count)
    later = timezone.now() + timedelta(hours=1)
    await db_call(
        Run.objects.filter(pk__in=asleep).update,
        wake_at=later,
        state="waiting",
        waiting_since=timezone.now(),
    )
    before = _resident_kb()
    await asyncio.gather(*(runs.drive(run) for run in asleep))
    people_kb = (_resident_kb() - before) / count
    # less than the noise
    model_kb = max(0.0, model_kb)
    people_kb = max(0.0, people_kb)
    print(
        f"\nMemory of a waiting run: {model_kb:.0f} KB while it waits for its model, {people_kb:.1f} KB while it waits for a user"
    )
    return {"runs": count, "kb_for_model": round(model_kb, 1), "kb_for_person": round(people_kb, 1)}


def _resident_kb() -> float:
    line = next(
        x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmRSS")
    )
    return float(line.split()[1])


async def _saved(engine: Any) -> list[dict[str, Any]]:
    """Tokens kept out of the caller's context, over the corpus: the same on every machine."""
    from mcpregistry.db import db_call
    from subagents.models import Run

    runs, _ = _worker_of(engine, Scripted())
    rows = []
    print(
        f"\n{'tokens (o200k)':24}{'read':>9}{'returned':>10}{'saved':>9}{'per turn':>10}{'re-read':>9}"
    )
    for name in CORPUS:
        (started,) = await db_call(_started, name)
        await runs.drive(started)
        run = await db_call(Run.objects.get, pk=started)
        assert run.state == "done", run.error
        saved = run.savings
        rows.append({"what": name} | saved)
        print(
            f"{name:24}{saved['results'] + saved['calls']:>9}{saved['returned']:>10}{saved['context_saved']:>9}"
            f"{saved['definitions_saved']:>10}{saved['reread_tax']:>8.1f}x"
        )
    return rows


def _move_provider(address: str) -> None:
    """Let the provider's requests go to this address, confirmed as by a person."""
    from subagents.models import Provider

    row = Provider.objects.get()
    row.base_url = address
    row.allowed_networks = ["127.0.0.0/8"]
    row.confirmed_destination = row.destination_hash()
    row.save()


def _worker(var: Path) -> dict[str, Any]:
    """A real worker with 8 threads and litellm, after eight runs at once over HTTP to a scripted
    model."""
    from controlplane import embedded_broker
    from controlplane import embedded_site as processes
    from subagents.llm.scripted.app import ScriptedModels
    from subagents.llm.scripted.local_server import run_server
    from subagents.llm.scripted.script import load
    from subagents.models import Run

    broker = subprocess.Popen(
        embedded_broker.command(var), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    worker = None
    try:
        assert embedded_broker.wait_until_it_answers(embedded_broker.socket_path(var))
        with run_server(ScriptedModels(load(SCRIPT))) as base:
            _move_provider(f"{base}/v1")
            worker = subprocess.Popen(
                processes.worker().argv, cwd=site.ROOT, stdout=subprocess.DEVNULL
            )
            started = _started("steps", 8, told=True)
            end = time.monotonic() + 90
            while Run.objects.open().filter(pk__in=started).exists() and time.monotonic() < end:
                time.sleep(0.1)
            done = Run.objects.filter(pk__in=started, state="done").count()
            peak = site.peak_mb(worker.pid)
    finally:
        for process in (worker, broker):
            if process is not None:
                process.terminate()
                process.wait(30)
    verdict = "within" if peak <= AIM_MB else "ABOVE"
    print(
        f"\nA worker with 8 threads and litellm, {done} of 8 runs done: {peak:.0f} MB at most ({verdict} the aim of {AIM_MB:.0f})"
    )
    return {"threads": 8, "runs_done": done, "peak_mb": round(peak)}


if __name__ == "__main__":
    main()
