"""Callers of a whole site while its database fails, and whether what they were told agrees with
what happened."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import httpx2

from mcpregistry.domain.lifecycle import InvocationState
from tests.conftest import child_env
from tests.fakes.journals import called
from tests.fakes.stage import Stage, Web, listed, web
from tests.fault.agreement import contradictions
from tests.waiting import HANG_LIMIT, until

CALLERS = 4


class Load:
    """Callers that call again as soon as they are answered, and what each was told: (number, HTTP
    status, body)."""

    def __init__(self, site: Web, token: str) -> None:
        self.told: list[tuple[int, int, dict[str, Any]]] = []
        self._numbers = count()
        self._ending = False
        self._http = httpx2.AsyncClient(
            base_url=f"http://{site.address}",
            headers={"authorization": f"Bearer {token}"},
            timeout=HANG_LIMIT,
            trust_env=False,
        )

    @asynccontextmanager
    async def running(self) -> Any:
        """Callers are at work within; at the end each has heard what became of its last call."""
        callers = [asyncio.ensure_future(self._call_on()) for _ in range(CALLERS)]
        try:
            yield
        finally:
            self._ending = True
            await asyncio.gather(*callers)
            await self._http.aclose()

    async def until_told(self, status: int) -> None:
        """Until the next callers hear nothing else."""
        at = len(self.told)
        await until(
            lambda: (
                {told[1] for told in self.told[at:][-CALLERS:]} == {status}
                and len(self.told) - at >= CALLERS
            )
        )

    async def until_ready(self, status: int) -> dict[str, str]:
        """Until /readyz says this; its words."""

        async def ready() -> dict[str, str]:
            answer = await self._http.get("/readyz")
            return dict(answer.json()) if answer.status_code == status else {}

        return await until(ready)

    async def _call_on(self) -> None:
        while not self._ending:
            number = next(self._numbers)
            answer = await self._http.post(
                "/api/v1/tools/echo__echo/call", json={"params": {"n": number}}
            )
            self.told.append((number, answer.status_code, answer.json()))


def disagreements(load: Load, journal: Path) -> list[str]:
    """What callers were told, against the records and the server's own journal."""
    sent = [params["arguments"]["n"] for params in called(journal)]
    wrong = []
    for number, status, body in load.told:
        known = body.get("mcp", {})
        state = InvocationState(known["state"]) if known else InvocationState.NOT_SENT
        found = contradictions(state, known.get("invocation_id", ""), sent.count(number))
        wrong += [f"call {number}: {what}; HTTP {status} {body}" for what in found]
    return wrong


@contextmanager
def served(journal: Path, url: str = "") -> Iterator[tuple[Web, str]]:
    """A web process on the test's database, perhaps by another address, and the token of an agent
    that may call."""
    stage = Stage(child_env() | ({"DATABASE_URL": url} if url else {}))
    stage.endpoint()
    token = stage.agent("local", stage.fake("echo", listed("echo"), FAKE_JOURNAL=str(journal)))
    with web(stage.env) as site:
        yield site, token
