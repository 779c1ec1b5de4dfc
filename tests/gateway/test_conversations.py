"""Hosts name a conversation by a header, in ``_meta`` or on the command line of ``runmcp``: what
they see and what is recorded."""

from __future__ import annotations

from typing import Any

import pytest

from mcpregistry.models import Agent, Conversation, Invocation
from mcpregistry.services.conversations import lifecycle
from tests.fakes.stage import (
    ACTOR,
    Stage,
    envelope,
    folder,
    fresh,
    in_order,
    listed,
    outside,
    raw_host,
)
from tests.gateway.doors import META, Corpus, doors

pytestmark = pytest.mark.one_database

KEY = "slipsnisse/conversation"


def rows(stage: Stage) -> tuple[str, dict[str, str]]:
    """An agent with two servers, and three conversations: narrowed to the first, ended, somebody
    else's."""
    slug = fresh("talk")
    stage.endpoint(slug)
    servers = [
        stage.fake("echo", listed("echo"), slug=f"{slug}-e"),
        stage.fake("multi", listed("all"), slug=f"{slug}-m"),
    ]
    stage.agent(f"{slug}-other")
    stage.agent(slug, *servers)
    made = {
        "open": _begun(slug, servers[0].slug),
        "ended": _begun(slug),
        "foreign": _begun(f"{slug}-other"),
    }
    lifecycle.end_conversation(conversation=Conversation.objects.get(pk=made["ended"]), actor=ACTOR)
    return slug, made


def _begun(agent: str, *servers: str) -> str:
    row = Conversation(agent=Agent.objects.get(slug=agent), servers=list(servers))
    return lifecycle.save_conversation(conversation=row, actor=ACTOR).pk


def _narrow(conversation: str, server: str) -> None:
    row = Conversation.objects.get(pk=conversation)
    row.servers = [server]
    lifecycle.save_conversation(conversation=row, actor=ACTOR)


def named(answer: Any) -> list[str]:
    return [tool["name"] for tool in answer[2]["result"]["tools"] if "__" in tool["name"]]


async def recorded(slug: str) -> list[tuple[str, str | None]]:
    found = in_order(Invocation.objects.filter(agent_slug=slug))
    return await outside(lambda: list(found.values_list("state", "conversation")))


async def test_a_header_or_meta_narrows_lists_and_calls_with_and_without_the_lanes(
    stage: Stage,
) -> None:
    slug, ids = await outside(rows, stage)
    lists = Corpus("tools/list")
    echo = Corpus("tools/call", named=f"{slug}-e__echo", name=f"{slug}-e__echo", arguments={})
    other = Corpus("tools/call", named=f"{slug}-m__all", name=f"{slug}-m__all", arguments={})
    header = ("Slipsnisse-Conversation", ids["open"])
    async with doors(slug, stage.tokens[slug]) as both:

        async def ask(what: Corpus, *more: tuple[str, str], **meta: Any) -> Any:
            content = what.params(_meta=META | meta)
            return await both.same(what.method, "POST", content, [*what.usual.items(), *more])

        whole = await ask(lists)
        by_header = await ask(lists, header)
        by_meta = await ask(lists, **{KEY: ids["open"]})
        assert (await ask(echo, header))[2]["result"]["structuredContent"]
        assert (await ask(echo, header, **{KEY: ids["open"]}))[2]["result"]["structuredContent"]
        unseen = await ask(other, **{KEY: ids["open"]})
        await ask(other)
    assert both.differences == {}
    assert named(whole) == [f"{slug}-e__echo", f"{slug}-m__all"]
    assert named(by_header) == named(by_meta) == [f"{slug}-e__echo"]
    assert "Unknown tool" in str(unseen[2])
    made = (
        [("succeeded", ids["open"])] * 4 + [("denied", ids["open"])] * 2 + [("succeeded", None)] * 2
    )
    assert await recorded(slug) == made


async def test_a_conversation_that_is_not_the_agents_or_over_is_refused_and_nothing_runs(
    stage: Stage,
) -> None:
    slug, ids = await outside(rows, stage)
    echo = Corpus("tools/call", named=f"{slug}-e__echo", name=f"{slug}-e__echo", arguments={})
    said = {
        "unknown": (
            [("slipsnisse-conversation", "nope")],
            {},
            "has no conversation 'nope'. Start one with POST",
        ),
        "foreign": ([("slipsnisse-conversation", ids["foreign"])], {}, "has no conversation"),
        "ended": ([], {KEY: ids["ended"]}, "has ended. Start another conversation"),
        "a number": ([], {KEY: 7}, "must be the id of a conversation"),
        "two": (
            [("slipsnisse-conversation", ids["open"])],
            {KEY: ids["foreign"]},
            "names two different conversations",
        ),
        "twice": ([("slipsnisse-conversation", ids["open"])] * 2, {}, "was sent twice"),
    }
    async with doors(slug, stage.tokens[slug]) as both:
        for name, (headers, meta, words) in said.items():
            for what in (echo, Corpus("tools/list")):
                content = what.params(_meta=META | meta)
                status, _, answer = await both.same(
                    name, "POST", content, [*what.usual.items(), *headers]
                )
                assert words in answer["error"]["message"], name
                assert answer["error"]["code"] in (-32602, -32600), name
                assert status in (200, 400), name
    assert both.differences == {}
    assert await recorded(slug) == []


async def test_runmcp_serves_one_conversation_whatever_was_kept_of_the_agents_list(
    stage: Stage,
) -> None:
    slug, ids = await outside(rows, stage)
    place = ("--endpoint", slug, "--agent", slug, "--cwd", str(folder()))
    talk = ("--conversation", ids["open"])
    for more, seen in (((), ["e__echo", "m__all"]), (talk, ["e__echo"]), (talk, ["m__all"])):
        if seen == ["m__all"]:
            await outside(_narrow, ids["open"], f"{slug}-m")
        async with raw_host(stage.runmcp(*place, *more), forked=True) as host:
            await host.ask(1, "server/discover", _meta=envelope())
            tools = (await host.ask(2, "tools/list", _meta=envelope()))["result"]["tools"]
            assert [tool["name"] for tool in tools if "__" in tool["name"]] == [
                f"{slug}-{name}" for name in seen
            ]
            await host.ask(3, "tools/call", name=f"{slug}-e__echo", arguments={}, _meta=envelope())
            assert await host.end() == 0
    assert await recorded(slug) == [
        ("succeeded", None),
        ("succeeded", ids["open"]),
        ("denied", ids["open"]),
    ]


async def test_a_list_that_names_a_conversation_is_never_answered_from_what_was_kept(
    stage: Stage,
) -> None:
    slug, ids = await outside(rows, stage)
    parameters = stage.runmcp("--endpoint", slug, "--agent", slug, "--cwd", str(folder()))
    for meta, seen in (({}, 2), ({KEY: ids["open"]}, 1), ({}, 2)):
        async with raw_host(parameters, forked=True) as host:
            tools = (await host.ask(1, "tools/list", _meta=envelope() | meta))["result"]["tools"]
            assert len([tool for tool in tools if "__" in tool["name"]]) == seen
            assert await host.end() == 0


@pytest.mark.exhaustive
async def test_runmcp_does_not_start_for_a_conversation_that_takes_no_calls(stage: Stage) -> None:
    slug, ids = await outside(rows, stage)
    for conversation, words in (
        (ids["foreign"], "has no conversation"),
        (ids["ended"], "has ended"),
    ):
        place = ("--endpoint", slug, "--agent", slug, "--conversation", conversation)
        async with raw_host(stage.runmcp(*place), forked=True) as host:
            assert await host.ended() == 1
            assert words in host.log()
            assert host.lines == []
