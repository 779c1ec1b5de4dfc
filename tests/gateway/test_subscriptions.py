"""Subscriptions to single resources, through both doors and to and from both eras."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, cast

import pytest
from mcp import Client, MCPError
from mcp import types as t
from mcp.server.subscriptions import InMemorySubscriptionBus
from mcp.shared.exceptions import MCPDeprecationWarning

from mcpregistry.calls.watch.changes import Feed
from mcpregistry.gateway import list_notifications, subscriptions
from mcpregistry.gateway.caller_identity import Caller
from mcpregistry.gateway.tasks import task_streams
from mcpregistry.models import Grant
from tests.fakes.stage import fresh, outside
from tests.gateway.talking import ERAS, Scene
from tests.gateway.test_resources import connected
from tests.waiting import until

pytestmark = pytest.mark.e2e
ISSUE = "repo://me/issues/7"


class Told:
    """The URIs that a host was told of; listens in its era."""

    def __init__(self) -> None:
        self.uris: list[str] = []

    async def __call__(self, message: Any) -> None:
        if isinstance(message, t.ResourceUpdatedNotification):
            self.uris.append(str(message.params.uri))

    @contextlib.asynccontextmanager
    async def hears(self, host: Client, mode: str, *uris: str) -> Any:
        if mode == "legacy":
            for uri in uris:
                await subscribe(host, uri)
            yield list(uris)
            for uri in uris:
                with pytest.warns(MCPDeprecationWarning):
                    await host.unsubscribe_resource(uri)
            return
        async with host.listen(resource_subscriptions=list(uris)) as changes:
            yield list(changes.honored.resource_subscriptions or ())


async def subscribe(host: Client, uri: str) -> None:
    with pytest.warns(MCPDeprecationWarning):
        await host.subscribe_resource(uri)


async def subscribed(host: Client, scene: Scene) -> str:
    """How many subscriptions its server has."""
    (said,) = (await host.call_tool(f"{scene.slug}__count", {})).content
    assert isinstance(said, t.TextContent)
    return said.text


@pytest.mark.exhaustive
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("mode", ["legacy", "auto"])
@pytest.mark.parametrize("door", ["http", "stdio"])
async def test_a_host_is_told_of_what_it_has_subscribed_to(stage, site, launched, door, mode, era):
    scene = await outside(Scene, stage, era)
    told = Told()
    streams = site.streams
    async with connected(door, mode, scene, site, launched, message_handler=told) as host:
        assert host.server_capabilities.resources.subscribe
        if (door, mode) == ("http", "legacy"):
            await until(lambda: site.streams > streams)
        async with told.hears(host, mode, "docs://guide", ISSUE) as taken:
            assert taken == ["docs://guide", ISSUE]
            for uri in ("docs://guide", "docs://other", ISSUE):
                await host.call_tool(f"{scene.slug}__touch", {"uri": uri})
            await until(lambda: set(told.uris) == {"docs://guide", ISSUE})
            assert await subscribed(host, scene) == "count 2"
        await until(lambda: left(host, scene))


async def left(host: Client, scene: Scene) -> bool:
    return await subscribed(host, scene) == "count 0"


@pytest.mark.exhaustive(but=("legacy",))
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_hosts_share_one_subscription_and_are_told_only_what_they_may_read(
    stage, site, launched, era
):
    scene = await outside(Scene, stage, era)
    one = Told()
    two = Told()
    streams = site.streams
    async with contextlib.AsyncExitStack() as stack:
        old, new = [
            await stack.enter_async_context(
                connected("http", mode, scene, site, launched, message_handler=told)
            )
            for mode, told in (("legacy", one), ("auto", two))
        ]
        await until(lambda: site.streams > streams)
        await stack.enter_async_context(one.hears(old, "legacy", "docs://guide"))
        with pytest.raises(MCPError, match="Resource not found"):
            await subscribe(old, "docs://pixel")
        named = f"slipsnisse://{scene.slug}/docs://guide"
        async with two.hears(new, "auto", named, "docs://pixel") as taken:
            assert taken == [named]
            assert await subscribed(new, scene) == "count 1"
            await new.call_tool(f"{scene.slug}__touch", {})
            await until(lambda: (one.uris, two.uris) == (["docs://guide"], [named]))
        assert await subscribed(new, scene) == "count 1"  # the other's goes on
        narrow = await outside(lambda: scene.grant(kind="tool"))
        await outside(Grant.objects.filter(agent=scene.agent).exclude(pk=narrow.pk).delete)
        await outside(lambda: site.wait_known(stage.agent(fresh("marker"))))
        await new.call_tool(f"{scene.slug}__touch", {})
        await asyncio.gather(*(host.call_tool(f"{scene.slug}__count", {}) for host in (old, new)))
        assert one.uris == ["docs://guide"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_subscription_is_renewed_when_its_server_has_died(stage, site, launched, era):
    scene = await outside(Scene, stage, era)
    told = Told()
    streams = site.streams
    async with connected("http", "legacy", scene, site, launched, message_handler=told) as host:
        await until(lambda: site.streams > streams)
        async with told.hears(host, "legacy", "docs://guide"):
            with contextlib.suppress(MCPError):
                await host.call_tool(f"{scene.slug}__die", {})
            await until(lambda: told.uris == ["docs://guide"])  # it may have changed meanwhile
            await until(lambda: renewed(host, scene))
            await host.call_tool(f"{scene.slug}__touch", {})
            await until(lambda: told.uris == ["docs://guide"] * 2)


async def test_a_host_that_reads_late_hears_of_every_changed_resource():
    reads = asyncio.Event()
    tried = list[str]()
    heard = list[str]()

    class Late:
        async def send_resource_updated(self, uri: str) -> None:
            tried.append(uri)
            await reads.wait()
            heard.append(uri)

    late = cast(Any, Late())
    session = subscriptions._SubscribedSession()
    uris = ["docs://a", "docs://b", "docs://c"]
    for _ in range(5):
        for uri in uris:
            subscriptions._make_notifier(late, session, uri)()
    await until(lambda: tried)
    for uri in uris:  # the first one changes again while it is sent
        subscriptions._make_notifier(late, session, uri)()
    reads.set()
    await until(lambda: heard == [*uris, uris[0]])
    session.close()


async def test_streams_of_one_agent_on_one_endpoint_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_end = asyncio.Event()

    async def serve(*_: Any) -> None:
        await may_end.wait()

    monkeypatch.setattr(list_notifications, "MOST_OWN", 2)
    monkeypatch.setattr(list_notifications.ListenStreams, "serve", serve)
    changes = list_notifications.ListChanges(cast(Any, None))

    async def listen(agent: str) -> None:
        nothing = cast(Any, None)
        await changes.listen(
            Caller(agent, "default", "http"), nothing, nothing, InMemorySubscriptionBus()
        )

    streams = [asyncio.ensure_future(listen(agent)) for agent in ("ann", "ann", "bob")]
    await until(lambda: len(changes._own) == 3)
    with pytest.raises(MCPError, match="Too many streams are open"):
        await listen("ann")
    may_end.set()
    await asyncio.gather(*streams)
    await listen("ann")


async def test_streams_for_tasks_of_one_agent_leave_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def find_none(*_: Any) -> Any:
        raise LookupError

    monkeypatch.setattr(task_streams, "MAX_STREAMS", 2)
    monkeypatch.setattr(task_streams, "require_tasks", lambda _: None)
    monkeypatch.setattr(task_streams.TaskStreams, "_list_own_tasks", find_none)
    nothing = cast(Any, None)
    streams = task_streams.TaskStreams(nothing, Feed())
    ann, bob = (Caller(agent, "default", "http") for agent in ("ann", "bob"))
    streams._streams |= {task_streams._TaskStream(ann, set(), {}) for _ in range(2)}
    with pytest.raises(MCPError, match="Too many streams are open"):
        await streams.listen(ann, nothing, nothing, nothing)
    with pytest.raises(LookupError):
        await streams.listen(bob, nothing, nothing, nothing)


async def renewed(host: Client, scene: Scene) -> bool:
    with contextlib.suppress(MCPError):
        return await subscribed(host, scene) == "count 1"
    return False
