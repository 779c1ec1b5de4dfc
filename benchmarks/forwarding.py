"""What a call costs in the process that has its session's connection, and in another one that
forwards it: an echo tool over stdio.

python -m benchmarks.forwarding [CALLS]

Both processes of the site are played by one, so "CPU" is that of both together.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

ROUNDS = 5


async def main(calls: int, folder: Path) -> None:
    """Print milliseconds for each call: one after the other, then ten at once."""
    from mcpregistry.calls.connection_placement import Placement
    from mcpregistry.db import db_call
    from mcpregistry.domain.servers.target import ServerTarget
    from mcpregistry.downstream.peers.sockets import PeerAddress
    from mcpregistry.downstream.pool.pool import Pool
    from mcpregistry.downstream.server_call import ServerCall
    from mcpregistry.models import Server

    server = await db_call(
        Server.objects.create, slug="echo", transport="stdio", command=sys.executable
    )
    argv = (sys.executable, "-S", str(Path(__file__).with_name("echo_stdio.py")))

    async def target(_: int) -> ServerTarget:
        return ServerTarget(server.pk, "echo", 1, "stdio", argv=argv)

    async def through(placement: Placement, kind: str) -> dict[str, Any]:
        return await placement.call(
            ServerCall(server.pk, "echo", b'{"text":"hello"}', session=f"bench/{kind}")
        )

    for kind, places in (
        ("Unix socket", [folder / f"{number}.sock" for number in (1, 2)]),
        ("TLS", [PeerAddress("127.0.0.1")] * 2),
    ):
        placements = [
            Placement(Pool(target, lambda _: None), f"web@bench:{2**22 + number}")
            for number, _ in enumerate(places)
        ]
        for placement, place in zip(placements, places, strict=True):
            await placement.start(place)
        for many in (1, 10):
            for name, placement in (
                ("the owner", placements[0]),
                (f"forwarded, {kind}", placements[1]),
            ):
                await through(placement, kind)
                wall, cpu = await measured(partial(through, placement, kind), calls, many)
                print(
                    f"{many:>3} at once   {name:<24}{wall:8.3f} ms a call   {cpu:8.3f} ms of CPU",
                    flush=True,
                )
        for placement in placements:
            await placement.close()
            await placement._pool.close()


async def measured(
    call: Callable[[], Awaitable[Any]], calls: int, many: int
) -> tuple[float, float]:
    """Return the medians of rounds: milliseconds of time and of CPU for each call."""
    walls = []
    cpus = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        cpu = time.process_time()
        for _ in range(calls // many):
            await asyncio.gather(*(call() for _ in range(many)))
        walls.append((time.perf_counter() - began) / calls * 1000)
        cpus.append((time.process_time() - cpu) / calls * 1000)
    return statistics.median(walls), statistics.median(cpus)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="slipsnisse-bench-") as var:
        os.environ |= {"SLIPSNISSE_VAR": var, "DJANGO_SETTINGS_MODULE": "controlplane.settings"}
        os.environ.pop("DATABASE_URL", None)
        import django
        import uvloop
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        uvloop.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000, Path(var)))
