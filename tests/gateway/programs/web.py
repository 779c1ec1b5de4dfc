"""A web process without a socket, until it has kept what the next ``runmcp`` may say.

``python -m tests.gateway.programs.web GLOB [ASSIGNMENTS WORD]``: it waits for files that match,
then changes every endpoint so and waits until all of them contain the word.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from contextlib import closing
from typing import Any

from django.conf import settings

from controlplane.asgi import application
from tests.waiting import HANG_LIMIT


def kept() -> list[str]:
    return [path.read_text() for path in (settings.VAR_DIR / "openings").glob(sys.argv[1])]


def change(assignments: str) -> None:
    with (
        closing(
            sqlite3.connect(settings.VAR_DIR / "slipsnisse.sqlite3", timeout=HANG_LIMIT)
        ) as database,
        database,
    ):
        database.execute(f"UPDATE mcpregistry_endpoint SET {assignments}")


async def run() -> None:
    heard: asyncio.Queue[Any] = asyncio.Queue()
    told: asyncio.Queue[Any] = asyncio.Queue()
    heard.put_nowait({"type": "lifespan.startup"})
    serving = asyncio.create_task(application({"type": "lifespan"}, heard.get, told.put))
    assert (await told.get())["type"] == "lifespan.startup.complete"
    async with asyncio.timeout(HANG_LIMIT):
        while not kept():
            await asyncio.sleep(0.01)
        for assignments, word in [sys.argv[2:]] if sys.argv[2:] else []:
            change(assignments)
            while not all(word in text for text in kept()):
                await asyncio.sleep(0.01)
    heard.put_nowait({"type": "lifespan.shutdown"})
    await serving


if __name__ == "__main__":
    asyncio.run(run())
