"""The ways in which a caller can wait for a held call, each behind the same few verbs.

``begin`` sends the call and returns when it is held; ``end`` gives what the caller has in the end,
in whatever way it has to fetch it; ``cancel`` and ``kill`` are its two ways of going.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal

import httpx2

from tests.fakes.hosts import FORM, TASKS, Host, Lost, StdioHost, http_host, stdio_host
from tests.fakes.stage import MODERN, Stage, Web, folder
from tests.waiting import HANG_LIMIT

LEGACY = "2025-11-25"
Kind = Literal["task", "question", "progress", "away", "rest"]
SHORT_HOLD = "0.3"  # seconds, of the site and the runmcp that serve the kind "away"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a caller was told in the end. ``state`` only where the caller is told it."""

    text: str
    structured: Any
    is_error: bool

    @property
    def pending(self) -> bool:
        return "PENDING APPROVAL" in self.text


@dataclass(frozen=True, slots=True)
class Way:
    kind: Kind
    door: Literal["http", "stdio"] = "http"
    era: str = MODERN

    def __str__(self) -> str:
        return f"{self.kind}-{self.door}-{'modern' if self.era == MODERN else 'legacy'}"

    @property
    def may_confirm(self) -> bool:
        """Whether the rule has to let the requester confirm."""
        return self.kind == "question"

    @property
    def stays(self) -> bool:
        """Whether a host is on the line while the call is held, so that its going can be
        noticed."""
        return self.kind == "progress" or (self.kind == "question" and self.era != MODERN)

    @property
    def runs_by_itself(self) -> bool:
        """Whether an approved call runs although its caller does not come back for it."""
        return self.kind == "task"

    @contextlib.asynccontextmanager
    async def open(self, stage: Stage, site: Web, brisk: Web, token: str) -> AsyncIterator[Waiter]:
        """``brisk`` is a web process of the same site with SLIPSNISSE_HOLD=0.3; ``stdio`` calls as
        agent "local"."""
        if self.kind == "rest":
            async with site.raw(token) as client:
                yield RestWaiter(client, f"http://{site.address}/api/v1")
            return
        abilities = {"task": TASKS, "question": FORM}.get(self.kind, {})
        short = self.kind == "away"
        person = _Person()
        options: dict[str, Any] = {"era": self.era, "abilities": abilities, "person": person}
        if self.door == "http":
            opened: Any = http_host(brisk if short else site, token, **options)
        else:
            env = {"SLIPSNISSE_HOLD": SHORT_HOLD} if short else {}
            opened = stdio_host(stage, "--cwd", str(folder()), env=env, **options)
        async with opened as host:
            waiter = _WAITERS[self.kind](host, person)
            try:
                yield waiter
            finally:
                waiter.stop()


class _Person:
    """Whoever sits at the host: says nothing until told what."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self._says = asyncio.get_running_loop().create_future()

    async def __call__(self, params: dict[str, Any]) -> dict[str, Any]:
        self.asked.set()
        return await asyncio.shield(self._says)

    def say(self, action: str, **content: Any) -> None:
        if not self._says.done():
            self._says.set_result({"action": action} | ({"content": content} if content else {}))


class Waiter:
    """One call by one caller."""

    _ID = 4711

    def __init__(self, host: Host, person: _Person) -> None:
        self.host = host
        self.person = person
        self._calling: asyncio.Task[dict[str, Any]] | None = None

    def _send(
        self, tool: str, arguments: dict[str, Any], *, progress: bool
    ) -> asyncio.Task[dict[str, Any]]:
        self._order = (tool, arguments)
        self._calling = asyncio.create_task(
            self.host.call(tool, arguments, progress=progress, request_id=self._ID)
        )
        return self._calling

    async def begin(self, tool: str, arguments: dict[str, Any]) -> None:
        raise NotImplementedError

    async def end(self) -> Seen:
        """Raises Lost when the caller has gone."""
        assert self._calling
        return seen(await self._calling)

    async def cancel(self) -> None:
        await self.host.cancel(self._ID)

    async def kill(self) -> None:
        await self.host.kill()

    def crash(self) -> None:
        """Kill the process of ours that serves this host alone (stdio)."""
        assert isinstance(self.host, StdioHost)
        self.host.crash()

    async def confirm(self) -> None:
        """The person at the host says yes."""
        self.person.say("accept", confirm=True)

    def stop(self) -> None:
        if self._calling:
            self._calling.cancel()


class ProgressWaiter(Waiter):
    async def begin(self, tool: str, arguments: dict[str, Any]) -> None:
        self._send(tool, arguments, progress=True)
        await self.host.until_told("Waiting for ")


class QuestionWaiter(Waiter):
    """The person leaves the question open; somebody else decides, or ``confirm``."""

    async def begin(self, tool: str, arguments: dict[str, Any]) -> None:
        self._send(tool, arguments, progress=True)
        await self.person.asked.wait()

    async def end(self) -> Seen:
        self.person.say("cancel")
        return await super().end()


class AwayWaiter(Waiter):
    """Is told "pending" and comes back with the same call."""

    async def begin(self, tool: str, arguments: dict[str, Any]) -> None:
        first = seen(await self._send(tool, arguments, progress=False))
        assert first.pending, first

    async def end(self) -> Seen:
        return seen(await self.host.call(*self._order, progress=False))

    async def cancel(self) -> None:
        """It cancels a call that was answered: late, and without effect."""
        await self.host.cancel(self._ID)


class TaskWaiter(Waiter):
    task_id = ""

    async def begin(self, tool: str, arguments: dict[str, Any]) -> None:
        result = await self._send(tool, arguments, progress=True)
        assert result.get("resultType") == "task", result
        self.task_id = result["taskId"]

    async def view(self) -> dict[str, Any]:
        answer = await self.host.request(
            "tasks/get", {"taskId": self.task_id, "_meta": self.host.meta()}
        )
        return answer["result"]

    async def end(self) -> Seen:
        async with asyncio.timeout(HANG_LIMIT):
            while (view := await self.view())["status"] in ("working", "input_required"):
                await asyncio.sleep(0.02)
        if view["status"] == "completed":
            return seen(view["result"])
        return Seen(
            f"{view['status']}: {view.get('statusMessage', '')}", view.get("error"), is_error=True
        )

    async def cancel(self) -> None:
        await self.host.request("tasks/cancel", {"taskId": self.task_id, "_meta": self.host.meta()})


class RestWaiter(Waiter):
    def __init__(self, client: httpx2.AsyncClient, api: str) -> None:
        self._client = client
        self._api = api
        self._calling = None
        self._id = ""

    async def _post(self) -> httpx2.Response:
        tool, arguments = self._order
        return await self._client.post(f"{self._api}/tools/{tool}/call", json={"params": arguments})

    async def begin(self, tool: str, arguments: dict[str, Any]) -> None:
        self._order = (tool, arguments)
        response = await self._post()
        assert response.status_code == 202, response.text
        self._id = response.json()["mcp"]["approval"]["id"]

    async def end(self) -> Seen:
        """The same request once more, until it is decided; it then runs the call."""
        async with asyncio.timeout(HANG_LIMIT):
            while (response := await self._post()).status_code == 202:
                await asyncio.sleep(0.02)
        body = response.json()
        if "mcp" not in body:
            return Seen(f"{body['code']}: {body['message']} {body['remedy']}", body, is_error=True)
        result = body["mcp"]["content"]
        return seen(result) if result else Seen(str(body["error"]), body, is_error=True)

    async def cancel(self) -> None:
        await self._client.post(
            f"{self._api}/approvals/{self._id}/withdraw", json={"reason": "not needed"}
        )

    async def kill(self) -> None:
        raise NotImplementedError("nobody is on the line")


def seen(result: dict[str, Any]) -> Seen:
    if "error" in result:
        return Seen(json.dumps(result["error"]), result["error"], is_error=True)
    texts = [part["text"] for part in result.get("content", []) if part.get("type") == "text"]
    return Seen("\n".join(texts), result.get("structuredContent"), result.get("isError") is True)


_WAITERS = {
    "task": TaskWaiter,
    "question": QuestionWaiter,
    "progress": ProgressWaiter,
    "away": AwayWaiter,
}

WAYS = [
    *(Way("task", door) for door in ("http", "stdio")),
    *itertools.starmap(
        Way,
        itertools.product(("question", "progress", "away"), ("http", "stdio"), (LEGACY, MODERN)),
    ),
    Way("rest"),
]

__all__ = ["LEGACY", "SHORT_HOLD", "WAYS", "Lost", "Seen", "Waiter", "Way"]
