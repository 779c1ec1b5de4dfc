"""Hosts made of JSON-RPC, as the real ones were seen to behave: any name, any abilities, both eras,
both doors.

The SDK's client hides what matters for held calls: what comes before the answer, and what happens
when the answer never does. These show every message, and can leave politely or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import httpx2

from tests.fakes.stage import MODERN, RawHost, Stage, Web, raw_host
from tests.waiting import until

PREFIX = "io.modelcontextprotocol/"
TASKS = {"extensions": {f"{PREFIX}tasks": {}}}
FORM = {"elicitation": {"form": {}}}
URL = {"elicitation": {"url": {}}}
BOTH = {"elicitation": {"form": {}, "url": {}}}
Message = dict[str, Any]
# Gets the params of an elicitation and returns its result, or None to leave it unanswered.
Person = Callable[[Message], Awaitable[Message | None]]


_STRANGERS = itertools.count(1)


class Lost(Exception):
    """The connection ended before the answer came."""


async def nobody(params: Message) -> Message | None:
    """As Claude Code does without a terminal: at once."""
    return {"action": "cancel"}


async def yes(params: Message) -> Message | None:
    return (
        {"action": "accept", "content": {"confirm": True}}
        if params.get("mode") != "url"
        else {"action": "accept"}
    )


class Host:
    """One program at one of our doors. ``heard`` are the notifications, ``asked`` the questions it
    got."""

    def __init__(
        self,
        *,
        name: str = "",
        era: str = MODERN,
        abilities: Mapping[str, Any] | None = None,
        person: Person = nobody,
    ) -> None:
        # A name of its own: a program that went away is not held as long the next time.
        self.info = {"name": name or f"somebody {next(_STRANGERS)}", "version": "1"}
        self.era = era
        self.abilities = dict(abilities or {})
        self.person = person
        self.heard: list[Message] = []
        self.asked: list[Message] = []
        self.ids = itertools.count(1)

    @property
    def modern(self) -> bool:
        return self.era == MODERN

    async def request(self, method: str, params: Message, request_id: int = 0) -> Message:
        """The whole response message."""
        raise NotImplementedError

    async def notify(self, method: str, params: Message) -> None:
        raise NotImplementedError

    async def kill(self) -> None:
        """End without a word."""
        raise NotImplementedError

    def meta(self, **more: Any) -> Message:
        if not self.modern:
            return more
        own = {
            "protocolVersion": MODERN,
            "clientInfo": self.info,
            "clientCapabilities": self.abilities,
        }
        return {f"{PREFIX}{key}": value for key, value in own.items()} | more

    async def handshake(self) -> None:
        if self.modern:
            return
        params = {
            "protocolVersion": self.era,
            "capabilities": self.abilities,
            "clientInfo": self.info,
        }
        await self.request("initialize", params)
        await self.notify("notifications/initialized", {})

    async def tools(self) -> dict[str, Message]:
        answer = await self.request("tools/list", {"_meta": self.meta()})
        return {tool["name"]: tool for tool in answer["result"]["tools"]}

    async def call(
        self,
        tool: str,
        arguments: Message,
        *,
        progress: bool = True,
        request_id: int = 0,
        **meta: Any,
    ) -> Message:
        """The result as the program has it in the end; MRTR rounds are answered by the person."""
        request_id = request_id or next(self.ids)
        token = {"progressToken": request_id} if progress else {}
        params: Message = {
            "name": tool,
            "arguments": arguments,
            "_meta": self.meta(**token, **meta),
        }
        while True:
            answer = await self.request("tools/call", params, request_id)
            if "error" in answer:
                return answer
            result = answer["result"]
            if result.get("resultType") != "input_required":
                return result
            params |= await self.answers(result)
            request_id = next(self.ids)

    async def answers(self, result: Message) -> Message:
        """The parameters that the next round adds."""
        found: Message = {}
        for key, question in result["inputRequests"].items():
            self.asked.append(question["params"])
            if (said := await self.person(question["params"])) is not None:
                found[key] = said
        return {"inputResponses": found, "requestState": result["requestState"]}

    async def cancel(
        self, request_id: int, reason: str = "AbortError: The operation was aborted."
    ) -> None:
        await self.notify("notifications/cancelled", {"requestId": request_id, "reason": reason})

    def progress(self, token: int | None = None) -> list[Message]:
        found = [m["params"] for m in self.heard if m["method"] == "notifications/progress"]
        return [p for p in found if token is None or p["progressToken"] == token]

    async def until_told(self, words: str) -> Message:
        """A progress message that contains these words."""
        return await until(
            lambda: next((p for p in self.progress() if words in p.get("message", "")), None)
        )

    async def _asked(self, message: Message) -> Message | None:
        params = message.get("params") or {}
        self.asked.append(params)
        return await self.person(params)


class StdioHost(Host):
    def __init__(self, pipe: RawHost, **options: Any) -> None:
        super().__init__(**options)
        self._pipe = pipe
        self._seen = 0
        self._listening = asyncio.create_task(self._listen())

    async def request(self, method: str, params: Message, request_id: int = 0) -> Message:
        request_id = request_id or next(self.ids)
        self._pipe.send({"id": request_id, "method": method, "params": params})
        return await self._pipe.answer(request_id)

    async def notify(self, method: str, params: Message) -> None:
        self._pipe.send({"method": method, "params": params})

    async def kill(self) -> None:
        """All that ``runmcp`` notices of a host's death is the end of its pipe."""
        assert self._pipe.process.stdin
        self._pipe.process.stdin.close()

    async def leave(self) -> None:
        """Close stdin, as a host does that ends, and wait for ``runmcp`` to end."""
        await self._pipe.end()

    def crash(self) -> None:
        """Kill ``runmcp`` itself."""
        self._pipe.process.kill()

    async def _listen(self) -> None:
        while await self._pipe.beyond(self._seen):
            for message in self._pipe.messages[self._seen :]:
                self._seen += 1
                if "method" in message and "id" in message:
                    asyncio.create_task(self._answer(message))  # noqa: RUF006 - ends with the pipe
                elif "method" in message:
                    self.heard.append(message)

    async def _answer(self, message: Message) -> None:
        if (said := await self._asked(message)) is not None:
            self._pipe.send({"id": message["id"], "result": said})

    def stop(self) -> None:
        self._listening.cancel()


class HttpHost(Host):
    def __init__(self, client: httpx2.AsyncClient, url: str, **options: Any) -> None:
        super().__init__(**options)
        self._client = client
        self._url = url
        self._session = {}
        self._open: dict[int, asyncio.Task[Message]] = {}

    async def request(self, method: str, params: Message, request_id: int = 0) -> Message:
        request_id = request_id or next(self.ids)
        message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        task = asyncio.create_task(self._exchange(message))
        self._open[request_id] = task
        try:
            return await task
        except (httpx2.HTTPError, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and not task.cancelled():
                task.cancel()
                raise
            raise Lost from error
        finally:
            self._open.pop(request_id, None)

    async def _exchange(self, message: Message) -> Message:
        async with self._client.stream(
            "POST", self._url, json=message, headers=self._headers(message)
        ) as response:
            if session := response.headers.get("mcp-session-id"):
                self._session = {"mcp-session-id": session, "mcp-protocol-version": self.era}
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                return json.loads(await response.aread())
            async for line in response.aiter_lines():
                if line.startswith("data: {") and (
                    found := await self._heard(json.loads(line[5:]), message["id"])
                ):
                    return found
        raise Lost

    async def _heard(self, message: Message, request_id: int) -> Message | None:
        if "method" not in message:
            return message if message.get("id") == request_id else None
        if "id" in message:
            asyncio.create_task(self._answer(message))  # noqa: RUF006 - ends with the client
        else:
            self.heard.append(message)
        return None

    async def _answer(self, message: Message) -> None:
        if (said := await self._asked(message)) is not None:
            reply = {"jsonrpc": "2.0", "id": message["id"], "result": said}
            await self._client.post(self._url, json=reply, headers=self._session)

    async def notify(self, method: str, params: Message) -> None:
        if self.modern and method == "notifications/cancelled":
            # over HTTP the modern era cancels by closing the response
            self.cut(params["requestId"])
            return
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        await self._client.post(self._url, json=message, headers=self._headers(message))

    def cut(self, request_id: int) -> None:
        if task := self._open.get(request_id):
            task.cancel()

    async def kill(self) -> None:
        for request_id in list(self._open):
            self.cut(request_id)

    def _headers(self, message: Message) -> dict[str, str]:
        if not self.modern:
            return self._session
        names = {"mcp-protocol-version": MODERN, "mcp-method": message["method"]}
        params = message["params"]
        name = (
            params.get("taskId") if message["method"].startswith("tasks/") else params.get("name")
        )
        return names | ({"mcp-name": name} if name else {})


@contextlib.asynccontextmanager
async def http_host(
    site: Web, token: str, endpoint: str = "default", **options: Any
) -> AsyncIterator[HttpHost]:
    async with site.raw(token) as client:
        host = HttpHost(client, site.url(endpoint), **options)
        await host.handshake()
        yield host


@contextlib.asynccontextmanager
async def stdio_host(
    stage: Stage, *arguments: str, env: Mapping[str, str] | None = None, **options: Any
) -> AsyncIterator[StdioHost]:
    async with raw_host(stage.runmcp(*arguments, **(env or {})), forked=True) as pipe:
        host = StdioHost(pipe, **options)
        try:
            await host.handshake()
            yield host
        finally:
            host.stop()
