"""Hosts learn of a change, and only if their own list is another one."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from mcp import Client
from mcp import types as t
from mcp.client.stdio import stdio_client

from mcpregistry.models import Agent, Endpoint, Grant, Server
from mcpregistry.services.access import agents, grants
from mcpregistry.services.definitions import decisions, observe
from mcpregistry.services.servers import lifecycle
from subagents.domain.maintenance import Kind, RequestMessageKind, State
from subagents.maintenance import queue
from subagents.models import MaintenanceRequest
from tests.fakes.stage import ACTOR, MODERN, Stage, Web, fresh, listed, outside
from tests.launcher import Launcher
from tests.waiting import HANG_LIMIT, until

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive(on="postgresql")]
STATUS = "mcp_check_subagent_status"


class Scene:
    """One agent on one endpoint, and a server of which it may see some tools."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.slug = fresh("scene")
        self.endpoint = stage.endpoint(self.slug)
        self.server = stage.fake("echo", listed("one"), slug=self.slug)
        self.other = stage.fake("echo", listed("two"), slug=f"{self.slug}-2")
        self.token = stage.agent(self.slug, self.server)
        self.agent = Agent.objects.get(slug=self.slug)
        self.stranger_token = stage.agent(f"{self.slug}-x")
        self.tools = ["one"]
        self.between = "__"

    def approve(self) -> None:
        self.tools.append(f"new{len(self.tools)}")
        observe.observe(server=self.server, listed=listed(*self.tools))
        decisions.approve_waiting(server=self.server, actor=ACTOR)

    def rename(self) -> None:
        endpoint = Endpoint.objects.get(pk=self.endpoint.pk)
        self.between = "_" if self.between == "__" else "__"
        endpoint.naming_style = "single" if self.between == "_" else "double"
        agents.save_endpoint(endpoint=endpoint, actor=ACTOR)

    def own(self) -> set[str]:
        """What the list calls the tools of our server."""
        return {f"{self.slug}{self.between}{tool}" for tool in self.tools}

    def others(self) -> set[str]:
        return {f"{self.slug}-2{self.between}two"}

    def grant(self) -> None:
        grants.grant_access(agent=self.agent, server=self.other, actor=ACTOR)

    def withdraw(self) -> None:
        grants.withdraw_grant(
            grant=Grant.objects.get(agent=self.agent, server=self.other), actor=ACTOR
        )

    def disable(self) -> None:
        lifecycle.disable_server(server=self.server, actor=ACTOR)

    def enable(self) -> None:
        lifecycle.enable_server(server=self.server, actor=ACTOR)

    def nothing_for_us(self) -> None:
        """Changes of the configuration that leave this caller's list as it was."""
        stranger = Agent.objects.get(slug=f"{self.slug}-x")
        grants.grant_access(agent=stranger, server=self.server, actor=ACTOR)
        self.stage.fake("echo", listed("three"), slug=f"{self.slug}-3")
        observe.observe(server=self.other, listed=listed("two", "waiting"))
        server = Server.objects.get(pk=self.server.pk)
        server.description = "Another text for people."
        lifecycle.save_server(server=server, actor=ACTOR)

    def end_grant_in(self, seconds: float) -> None:
        grant = Grant.objects.get(agent=self.agent, server=self.other)
        grant.expires_at = timezone.now() + timedelta(seconds=seconds)
        grants.save_grant(grant=grant, actor=ACTOR)


class Listener:
    """A connected host, with an entry for each time that it was told that its list has changed."""

    def __init__(self) -> None:
        self.client: Client
        self.told: asyncio.Queue[None] = asyncio.Queue()

    async def on_message(self, message: Any) -> None:
        if isinstance(message, t.ToolListChangedNotification):
            self.told.put_nowait(None)

    async def names(self) -> set[str]:
        return {tool.name for tool in (await self.client.list_tools()).tools}

    async def hear_of(self, change: Callable[..., None], *arguments: Any) -> None:
        await outside(change, *arguments)
        await asyncio.wait_for(self.told.get(), HANG_LIMIT)


@contextlib.asynccontextmanager
async def connected(
    door: str, mode: str, scene: Scene, site: Web, launched: Launcher
) -> AsyncIterator[Listener]:
    listener = Listener()
    options: dict[str, Any] = {"message_handler": listener.on_message if mode == "legacy" else None}
    async with contextlib.AsyncExitStack() as stack:
        streams = site.streams
        if door == "http":
            client = await stack.enter_async_context(
                site.client(scene.token, mode, scene.slug, **options)
            )
        else:
            log = stack.enter_context(tempfile.TemporaryFile("w+"))  # noqa: SIM115
            parameters = launched.parameters(
                "manage.py", "runmcp", "--endpoint", scene.slug, "--agent", scene.slug
            )
            transport = stdio_client(parameters, errlog=log)
            client = await stack.enter_async_context(
                Client(transport, mode=mode, cache=None, **options)
            )
        listener.client = client
        if (door, mode) == ("http", "legacy"):  # what is pushed before its stream is open is lost
            await until(lambda: site.streams > streams)
        if mode != "legacy":
            subscription = await stack.enter_async_context(client.listen(tools_list_changed=True))

            async def hear() -> None:
                async for _ in subscription:
                    listener.told.put_nowait(None)

            hearing = asyncio.create_task(hear())
            stack.callback(hearing.cancel)
        yield listener


@pytest.mark.exhaustive(but=("http-2026-07-28",))
@pytest.mark.both_databases
@pytest.mark.exhaustive(but=["http-2026-07-28"], on="postgresql")
@pytest.mark.parametrize("mode", ["legacy", MODERN])
@pytest.mark.parametrize("door", ["http", "stdio"])
async def test_every_change_made_by_another_process_is_told(stage, site, door, mode, launched):
    scene = await outside(Scene, stage)
    await outside(site.wait_known, scene.stranger_token)
    async with connected(door, mode, scene, site, launched) as host:
        assert await host.names() == scene.own()
        for change, expected in (
            (scene.approve, scene.own),
            (scene.grant, lambda: scene.own() | scene.others()),
            (scene.disable, scene.others),
            (scene.enable, lambda: scene.own() | scene.others()),
            (scene.withdraw, scene.own),
            (scene.rename, scene.own),
        ):
            await host.hear_of(change)
            assert await host.names() == expected()


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["legacy", MODERN])
async def test_a_grant_that_runs_out_is_told_though_nothing_is_written_then(
    stage, site, mode, launched
):
    scene = await outside(Scene, stage)
    await outside(site.wait_known, scene.stranger_token)
    async with connected("http", mode, scene, site, launched) as host:
        await host.hear_of(scene.grant)
        # Long enough that the process knows the end before it comes; where it does not, it is told
        # later, but told.
        await host.hear_of(scene.end_grant_in, 1.5)
        assert await host.names() == scene.own()


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize("mode", ["legacy", MODERN])
async def test_changes_that_leave_this_callers_list_alone_are_not_told(stage, site, mode, launched):
    scene = await outside(Scene, stage)
    await outside(site.wait_known, scene.stranger_token)
    async with connected("http", mode, scene, site, launched) as host:
        await outside(scene.nothing_for_us)
        marker = await outside(stage.agent, fresh("marker"))
        await outside(site.wait_known, marker)  # the gateway has seen all of it
        await host.hear_of(scene.grant)
        # Had the earlier changes been told, there would be one more.
        await host.hear_of(scene.withdraw)
        assert host.told.empty()


@pytest.mark.exhaustive(but=("http-2026-07-28",))
@pytest.mark.both_databases
@pytest.mark.exhaustive(but=["http-2026-07-28"], on="postgresql")
@pytest.mark.parametrize("mode", ["legacy", MODERN])
@pytest.mark.parametrize("door", ["http", "stdio"])
async def test_a_host_that_waits_for_the_sub_agent_hears_what_it_tells_as_progress(
    stage, site, door, mode, launched, monkeypatch
):
    # the test is the worker
    monkeypatch.setattr("subagents.maintenance.queue.send_task", lambda task: True)
    scene = await outside(Scene, stage)

    def asked() -> MaintenanceRequest:
        scene.endpoint.maintenance_tools = True
        agents.save_endpoint(endpoint=scene.endpoint, actor=ACTOR)
        return queue.ask(kind=Kind.SEARCH, params={"query": "x"}, actor=ACTOR, agent=scene.agent)

    request = await outside(asked)
    await outside(site.wait_known, scene.stranger_token)
    heard: asyncio.Queue[tuple[float, float | None, str | None]] = asyncio.Queue()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        # a busy machine: what the door says by itself
        if not str(message).startswith("Still running"):
            heard.put_nowait((progress, total, message))

    async with connected(door, mode, scene, site, launched) as host:
        await until(lambda: _offered(host))
        given = {"requestId": request.pk, "waitSeconds": 50}
        calling = asyncio.create_task(host.client.call_tool(STATUS, given, progress_callback=hear))
        for progress, message in ((5, "First."), (40, "Second.")):
            await outside(
                lambda p, m: queue.tell(request, RequestMessageKind.STATUS, progress=p, message=m),
                progress,
                message,
            )
            await outside(MaintenanceRequest.objects.filter(pk=request.pk).update, message=message)
            assert await asyncio.wait_for(heard.get(), HANG_LIMIT) == (progress, 100, message)
        await outside(lambda: queue.end(request, State.COMPLETED, result={"servers": []}))
        said = (await asyncio.wait_for(calling, HANG_LIMIT)).structured_content
    assert (said["state"], said["progress"], said["result"]) == ("completed", 100, {"servers": []})
    left = await outside(
        lambda: queue.query_waiting_messages(
            MaintenanceRequest.objects.filter(pk=request.pk)
        ).count()
    )
    assert left == 3, "what was heard is still there to be polled"


async def _offered(host: Listener) -> bool:
    return STATUS in await host.names()
