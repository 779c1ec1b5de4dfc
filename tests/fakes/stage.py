"""A configured site for tests of the gateway: rows, a web process on a real socket, clients of both
eras.

Rows are made through the services, as the admin makes them, so a test that changes something here
is another process than the gateway that it looks at.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import os
import secrets
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import httpx2
import psutil
from django.db import connections
from django.db.models import CharField, Model, OuterRef, QuerySet, Subquery, Value
from django.db.models.functions import Concat
from django.utils import timezone
from mcp import Client, StdioServerParameters
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from mcpregistry.domain.definitions.definition import hash_definition, select_visible_fields
from mcpregistry.domain.text.canonical import encode_lossy_json
from mcpregistry.models import (
    Agent,
    AuditEntry,
    Configuration,
    Definition,
    Endpoint,
    Grant,
    Invocation,
    Server,
    Token,
    Tool,
)
from mcpregistry.services.access import agents, grants, tokens
from mcpregistry.services.definitions import decisions, observe
from mcpregistry.services.servers import checks, lifecycle
from mcpregistry.services.servers.prober import Prober
from tests import forkserver
from tests.externals import ROOT
from tests.fakes.targets import SERVERS
from tests.fakes.websockets import websocket_client
from tests.processes import with_words
from tests.waiting import HANG_LIMIT, eventually

P = ParamSpec("P")
R = TypeVar("R")
ACTOR = "user:test"
ANYTHING = {"type": "object"}
# For clients on loopback. To read the machine's certificates for each would cost 30 ms.
PLAIN: Mapping[str, Any] = {"trust_env": False, "verify": False}


async def outside(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run database code in a thread, as another process would, and leave no connection behind."""

    def run() -> R:
        try:
            return function(*args, **kwargs)
        finally:
            connections.close_all()

    return await asyncio.to_thread(run)


async def seen_outside(look: Callable[[], R | None], patience: float = HANG_LIMIT) -> R:
    """Ask as ``outside`` until it finds something, all the time on one connection: opening one
    costs more than asking."""
    found = await outside(eventually, look, patience)
    assert found is not None
    return found


def listed(*names: str, **fields: Any) -> list[dict[str, Any]]:
    return [
        {"name": name, "description": f"Does {name}.", "inputSchema": ANYTHING} | fields
        for name in names
    ]


@dataclass
class Stage:
    """What is served. ``env`` is for child processes."""

    env: dict[str, str]
    tokens: dict[str, str] = field(default_factory=dict)

    def endpoint(self, slug: str = "default", **fields: Any) -> Endpoint:
        # what is granted runs, unless a test says otherwise
        Configuration.objects.update(default_outcome="allow")
        return agents.save_endpoint(endpoint=Endpoint(slug=slug, **fields), actor=ACTOR)

    def agent(self, slug: str = "local", *granted: Server, **fields: Any) -> str:
        """A new agent with grants; returns the text of its token."""
        agent = agents.save_agent(agent=Agent(slug=slug, **fields), actor=ACTOR)
        for server in granted:
            grants.save_grant(grant=Grant(agent=agent, server=server, kind=""), actor=ACTOR)
        self.tokens[slug] = tokens.issue_token(name="test", agent=agent, actor=ACTOR)[1]
        return self.tokens[slug]

    def fake(
        self, name: str, tools: Sequence[Mapping[str, Any]], slug: str = "", **env: str
    ) -> Server:
        """``tests/fakes/servers/NAME.py``, active, with these tools approved; not started."""
        command = [sys.executable, "-S", str(SERVERS / f"{name}.py")]
        env = {"FAKE_LISTED": json.dumps(tools)} | env  # it says what is approved here
        return self.server(
            slug or name, tools, command=command, env=env, connect_timeout=HANG_LIMIT
        )

    def server(
        self,
        slug: str,
        tools: Sequence[Mapping[str, Any]],
        others: Mapping[str, Sequence[dict[str, Any]]] | None = None,
        **fields: Any,
    ) -> Server:
        server = lifecycle.save_server(server=Server(slug=slug, **fields), actor=ACTOR)
        server = lifecycle.confirm_launch(
            server=server, actor=ACTOR, launch_hash=server.launch_hash()
        )
        observe.observe(server=server, listed=[dict(tool) for tool in tools], others=others)
        decisions.approve_waiting(server=server, actor=ACTOR)
        return server

    def real(self, slug: str, *names: str, **fields: Any) -> Server:
        """A server that was asked what it offers; the named tools of that are approved."""
        server = self.server(slug, [], **fields)
        prober = Prober()
        try:
            report = prober.test(server.pk)
        finally:
            prober.close()
        assert report.discovery is not None, report.error
        checks.record_discovery(server=server, discovery=report.discovery)
        for tool in server.tools.filter(name__in=names).select_related("latest"):
            decisions.approve(definition=tool.latest, actor=ACTOR)  # type: ignore[arg-type]
        return server

    @staticmethod
    def bulk(server: Server, tools: Sequence[dict[str, Any]]) -> None:
        """Many approved tools in a moment, without the history that the services keep."""
        now = timezone.now()
        rows = Tool.objects.bulk_create(
            Tool(server=server, name=tool["name"], first_seen_at=now, last_seen_at=now)
            for tool in tools
        )
        approved = Definition.objects.bulk_create(
            Definition(
                tool=row,
                hash=hash_definition(tool),
                body=encode_lossy_json(select_visible_fields(tool)),
                seen_at=now,
                approved=True,
            )
            for row, tool in zip(rows, tools, strict=True)
        )
        for row, definition in zip(rows, approved, strict=True):
            row.pinned = definition
            row.latest = definition
        Tool.objects.bulk_update(rows, ["pinned", "latest"], batch_size=200)

    @staticmethod
    def calls(**filters: Any) -> list[Invocation]:
        return list(in_order(Invocation.objects.filter(**filters)))

    @staticmethod
    def token(agent: str) -> Token:
        return Token.objects.get(agent__slug=agent)

    def runmcp(self, *arguments: str, **env: str) -> StdioServerParameters:
        return StdioServerParameters(
            command=sys.executable,
            args=["manage.py", "runmcp", *arguments],
            env=self.env | env,
            cwd=str(ROOT),
        )


class Web:
    """A web process of the site on a loopback socket of its own."""

    module = "controlplane.web"

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = dict(env) | {"SLIPSNISSE_PROCESS": "web", "SLIPSNISSE_LOG_FORMAT": "json"}
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by stop
        self.processes: list[forkserver.Process] = []
        self.streams = 0  # of legacy sessions, opened by our clients so far

    async def _note(self, response: httpx2.Response) -> None:
        self.streams += response.request.method == "GET" and response.status_code == 200

    def start(self, **env: str) -> psutil.Process:
        """One more process on the same socket; returns when it is ready. ``env``: further
        variables."""
        number = self._socket.fileno()
        process = forkserver.popen(
            ["-m", self.module, "--fd", str(number)],
            env=self._env | env,
            pass_fds=[number],
            stdout=self._log,
            stderr=self._log,
        )
        self.processes.append(process)
        return psutil.Process(process.pid)

    def wait_ready(self) -> None:
        def ready() -> bool:
            assert all(process.poll() is None for process in self.processes)
            with contextlib.suppress(httpx2.HTTPError):
                return (
                    httpx2.get(
                        f"http://{self.address}/readyz", timeout=HANG_LIMIT, **PLAIN
                    ).status_code
                    == 200
                )
            return False

        try:
            eventually(ready)
        except AssertionError:
            raise AssertionError(self.log()) from None

    def wait_known(self, token: str) -> None:
        """Until the gateway has seen the change that made this token."""
        headers = {"authorization": f"Bearer {token}"}

        def known() -> bool:
            return (
                httpx2.post(
                    self.url(), headers=headers, json={}, timeout=HANG_LIMIT, **PLAIN
                ).status_code
                != 401
            )

        try:
            eventually(known)
        except (AssertionError, httpx2.TimeoutException):
            raise AssertionError(self.log()) from None

    def log(self) -> str:
        """What the process has logged; empty once the host has been closed."""
        if self._log.closed:
            return ""
        self._log.seek(0)
        return self._log.read()

    def stop(self, patience: float = HANG_LIMIT) -> None:
        self.terminate()
        try:
            for process in self.processes:
                process.wait(patience)
        finally:
            for process in self.processes:
                process.kill()  # one that hangs must not hold the database of the tests that follow
            self._log.close()

    def terminate(self) -> None:
        """Tell every process to end. Our own hold on the socket goes first: it would take
        connections for nobody."""
        self._socket.close()
        for process in self.processes:
            process.send_signal(signal.SIGTERM)

    def url(self, endpoint: str = "default") -> str:
        return f"http://{self.address}/mcp/{endpoint}"

    @contextlib.asynccontextmanager
    async def raw(
        self, token: str = "", *, kept: bool = True, **headers: str
    ) -> AsyncIterator[httpx2.AsyncClient]:
        """Plain HTTP with the usual headers. ``kept``: it keeps its connections, else it opens one
        for each request."""
        usual = {
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
        }
        if token:
            usual["authorization"] = f"Bearer {token}"
        timeout = httpx2.Timeout(HANG_LIMIT)
        limits = httpx2.Limits(max_keepalive_connections=20 if kept else 0)
        async with httpx2.AsyncClient(
            headers=usual | headers, timeout=timeout, limits=limits, **PLAIN
        ) as client:
            yield client

    @contextlib.asynccontextmanager
    async def client(
        self,
        token: str,
        mode: str,
        endpoint: str = "default",
        *,
        door: str = "http",
        kept: bool = True,
        **options: Any,
    ) -> AsyncIterator[Client]:
        """The SDK's client. ``mode`` is "2026-07-28", "auto" or "legacy"; ``door`` is http, sse or
        ws; ``kept``: over http, it keeps its connections, else it opens one for each request.
        """
        if door != "http":
            address = f"{self.url(endpoint)}/{door}"
            known = {"authorization": f"Bearer {token}"}
            opened = (
                websocket_client(address, token)
                if door == "ws"
                else sse_client(address, headers=known, timeout=HANG_LIMIT)
            )
            async with Client(opened, mode=mode, cache=None, **options) as client:
                yield client
            return
        limits = httpx2.Limits(max_connections=500, max_keepalive_connections=500 if kept else 0)
        headers = {"authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(
            headers=headers, timeout=HANG_LIMIT, limits=limits, **PLAIN
        ) as http:
            http.event_hooks = {"response": [self._note]}
            transport = streamable_http_client(self.url(endpoint), http_client=http)
            async with Client(transport, mode=mode, cache=None, **options) as client:
                yield client


@contextlib.contextmanager
def web(env: Mapping[str, str], processes: int = 1) -> Iterator[Web]:
    site = Web(env)
    for _ in range(processes):
        site.start()
    try:
        site.wait_ready()
        yield site
    finally:
        site.stop()


class OutputEndedError(AssertionError):
    """The process has closed its output, so no further message can come."""


class RawHost:
    """A host made of pipes: sees every byte that ``runmcp`` writes to stdout."""

    def __init__(
        self, process: asyncio.subprocess.Process | forkserver.PipedProcess, log: Any
    ) -> None:
        self.process = process
        self._log = log
        self.lines: list[bytes] = []
        self._parsed: list[dict[str, Any]] = []
        self._news = asyncio.Event()
        self._output_ended = False
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout
        try:
            while line := await self.process.stdout.readline():
                self.lines.append(line)
                self._news.set()
        finally:
            self._output_ended = True
            self._news.set()

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Raises when anything but JSON-RPC is among what was written."""
        for line in self.lines[len(self._parsed) :]:
            message = json.loads(line)
            assert isinstance(message, dict), line
            assert message.get("jsonrpc") == "2.0", line
            self._parsed.append(message)
        return list(self._parsed)

    def log(self) -> str:
        """What the process has logged; empty once the host has been closed."""
        if self._log.closed:
            return ""
        self._log.seek(0)
        return self._log.read()

    def send(self, *messages: dict[str, Any]) -> None:
        assert self.process.stdin
        for message in messages:
            self.process.stdin.write(json.dumps({"jsonrpc": "2.0"} | message).encode() + b"\n")

    async def beyond(self, count: int) -> bool:
        """Wait until more than so many lines have come; return False if the output has ended
        before."""
        while len(self.lines) <= count:
            if self._output_ended:
                return False
            self._news.clear()
            await self._news.wait()
        return True

    async def until(
        self, condition: Callable[[dict[str, Any]], Any], patience: float = HANG_LIMIT
    ) -> dict[str, Any]:
        """A copy of the first such message."""
        try:
            async with asyncio.timeout(patience):
                while True:
                    for message in self.messages:
                        if condition(message):
                            return copy.deepcopy(message)
                    if not await self.beyond(len(self._parsed)):
                        raise OutputEndedError(f"The output has ended: {self.lines}\n{self.log()}")
        except TimeoutError:
            raise AssertionError(f"{self.lines}\n{self.log()}") from None

    async def answer(self, request_id: Any, patience: float = HANG_LIMIT) -> dict[str, Any]:
        return await self.until(lambda m: m.get("id") == request_id and "method" not in m, patience)

    async def ask(self, request_id: Any, method: str, **params: Any) -> dict[str, Any]:
        self.send({"id": request_id, "method": method, "params": params})
        return await self.answer(request_id)

    async def handshake(self, version: str = "2025-11-25", request_id: Any = 0) -> dict[str, Any]:
        info = {"name": "raw", "version": "1"}
        answer = await self.ask(
            request_id, "initialize", protocolVersion=version, capabilities={}, clientInfo=info
        )
        self.send({"method": "notifications/initialized"})
        return answer

    def family(self) -> list[psutil.Process]:
        return [
            *psutil.Process(self.process.pid).children(recursive=True),
            psutil.Process(self.process.pid),
        ]

    def runs(self, program: str) -> bool:
        """Whether one of its processes has this in its command line. Those that end just now have
        none."""
        return bool(with_words(program, self.family()))

    async def end(self, patience: float = HANG_LIMIT) -> int:
        """Close stdin and wait for the process and for the last byte."""
        assert self.process.stdin
        self.process.stdin.close()
        return await self.ended(patience)

    async def ended(self, patience: float = HANG_LIMIT) -> int:
        async with asyncio.timeout(patience):
            code = await self.process.wait()
            await self._reader
        return code


@contextlib.asynccontextmanager
async def raw_host(
    parameters: StdioServerParameters, program: Sequence[str] = (), *, forked: bool = False
) -> AsyncIterator[RawHost]:
    """Start ``runmcp`` (or another ``program``) the way a host does; ``forked`` where its start is
    not looked at."""
    log = tempfile.TemporaryFile("w+")  # noqa: SIM115
    options: dict[str, Any] = {
        "cwd": parameters.cwd,
        "env": parameters.env,
        "stderr": log,
        "limit": 64 * 1024 * 1024,
    }
    process: asyncio.subprocess.Process | forkserver.PipedProcess
    if forked:
        process = await forkserver.piped(parameters.args, **options)
    else:
        pipe = asyncio.subprocess.PIPE
        words = program or [parameters.command, *parameters.args]
        process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, **options)
    host = RawHost(process, log)
    try:
        yield host
    finally:
        if process.returncode is None:
            process.kill()
        await host.ended()
        log.close()


MODERN = "2026-07-28"


def envelope(**more: Any) -> dict[str, Any]:
    """The ``_meta`` that every request of the modern era carries."""
    prefix = "io.modelcontextprotocol/"
    return {
        f"{prefix}protocolVersion": MODERN,
        f"{prefix}clientInfo": {"name": "raw", "version": "1"},
        f"{prefix}clientCapabilities": {},
    } | more


M = TypeVar("M", bound=Model)


def in_order(rows: QuerySet[M], call: str = "pk") -> QuerySet[M]:
    """As their calls were begun, by the numbers in the audit log: a clock may be put back between
    two."""
    subject = Concat(Value("call:"), OuterRef(call), output_field=CharField())
    first = AuditEntry.objects.filter(subject=subject).order_by("id").values("id")[:1]
    return cast("QuerySet[M]", rows.annotate(begun=Subquery(first)).order_by("begun"))


def fresh(word: str) -> str:
    return f"{word}-{secrets.token_hex(4)}"


def folder() -> Path:
    return Path(tempfile.mkdtemp(dir=os.environ["SLIPSNISSE_VAR"]))
