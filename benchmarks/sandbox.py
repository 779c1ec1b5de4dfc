"""What the sandbox costs at a server's start: from asking for the process until the first byte of
``/bin/echo`` in it.

Run: ``python -m benchmarks.sandbox``. The ways take turns, so that whatever else the machine does
falls on all of them.
"""

from __future__ import annotations

import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace

from mcpregistry.domain.servers.target import Ports, ResourceBounds, Sandbox, ServerTarget
from mcpregistry.downstream.transports import bubblewrap
from mcpregistry.downstream.transports.stdio import spawn

TIMES = 100
WARMING = 5
USUAL = ResourceBounds(memory_mb=4096, processes=256)


def main() -> None:
    """Print median and least of each way, and what the medians are beyond those of the launcher
    alone."""
    with tempfile.TemporaryDirectory() as folder:
        ways = dict(_ways(folder))
        took: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for turn in range(WARMING + TIMES):
            for name, target in ways.items():
                one = _start(target)
                took[name] += [one] if turn >= WARMING else []
    medians = {
        name: [statistics.median(each) for each in zip(*all_of_it, strict=True)]
        for name, all_of_it in took.items()
    }
    alone = medians["the launcher alone"]
    for name, (wall, cpu) in medians.items():
        least, beyond = (min(each[0] for each in took[way]) for way in (name, "the launcher alone"))
        print(
            f"{name:40} {wall:6.1f} ms {wall - alone[0]:+6.1f}   least {least:6.1f} ms {least - beyond:+6.1f}"
            f"   CPU {cpu:6.1f} ms {cpu - alone[1]:+6.1f}"
        )


def _ways(folder: str) -> Iterator[tuple[str, ServerTarget]]:
    plain = ServerTarget(
        server_id=1, slug="t", revision=1, transport="stdio", argv=("/bin/echo", "x")
    )
    yield "the launcher alone", plain
    yield "limits of its processes", replace(plain, bounds=USUAL)
    sandbox = Sandbox(home=f"{folder}/home", read=(f"{folder}/docs",))
    yield "sandbox", replace(plain, sandbox=sandbox)
    yield (
        "sandbox and limits, without a network",
        replace(plain, bounds=USUAL, sandbox=replace(sandbox, network=False)),
    )
    yield (
        "sandbox and limits, two ports",
        replace(plain, bounds=USUAL, sandbox=replace(sandbox, ports=Ports((443, 53)))),
    )
    if why := bubblewrap.explain_missing():
        print(f"strict: left out, {why}")
        return
    strict = replace(sandbox, strict=True)
    yield "strict and limits", replace(plain, bounds=USUAL, sandbox=strict)
    yield (
        "strict and limits, without a network",
        replace(plain, bounds=USUAL, sandbox=replace(strict, network=False)),
    )


def _start(target: ServerTarget) -> tuple[float, float]:
    """Milliseconds until it speaks; and of processor until it has ended, of the whole tree, also on
    a busy machine."""
    began = time.perf_counter()
    used = _cpu()
    process, control = spawn(target)
    assert process.stdout is not None
    process.stdout.read(1)
    wall = (time.perf_counter() - began) * 1000
    said = process.communicate(timeout=30)[1]
    control.close()
    if process.returncode:
        raise RuntimeError(f"{target}: {said.decode(errors='replace')}")
    return wall, (_cpu() - used) * 1000


def _cpu() -> float:
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


if __name__ == "__main__":
    main()
