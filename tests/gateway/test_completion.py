"""Suggestions for arguments of prompts and templates, through both doors and to and from both
eras."""

from __future__ import annotations

import asyncio
import json

import pytest
from mcp import Client, MCPError
from mcp import types as t

from mcpregistry.models import ApprovalRequest, Invocation, PolicyRule
from mcpregistry.services.policy import rules
from tests.fakes.journals import noted
from tests.fakes.stage import ACTOR, fresh, outside
from tests.gateway.talking import ERAS, MODES, SECRET, Scene
from tests.gateway.test_resources import connected
from tests.waiting import until

pytestmark = pytest.mark.e2e
ISSUE = t.ResourceTemplateReference(type="ref/resource", uri="repo://{owner}/issues/{number}")


async def values(
    host: Client,
    ref: t.PromptReference | t.ResourceTemplateReference,
    name: str,
    value: str,
    **known: str,
):
    found = await host.complete(
        ref, {"name": name, "value": value}, context_arguments=known or None
    )
    return found.completion.values


@pytest.mark.exhaustive(but=("http-auto-modern",))
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("door", ["http", "stdio"])
async def test_what_is_granted_is_completed_by_its_server_and_nothing_is_recorded(
    stage, site, launched, door, mode, era
):
    scene = await outside(Scene, stage, era)
    review = t.PromptReference(type="ref/prompt", name=f"{scene.slug}__review")
    async with connected(door, mode, scene, site, launched) as host:
        assert host.server_capabilities.completions is not None
        found = (await host.complete(review, {"name": "path", "value": "a"})).completion
        assert (found.values, found.has_more) == (["a.py", "a.md"], True)
        assert await values(host, ISSUE, "owner", "m") == ["me", "mine"]
        assert await values(host, ISSUE, "number", "", owner="me") == ["me-1", "me-2"]
        many = (await host.complete(review, {"name": "path", "value": "many"})).completion
        assert (len(many.values), many.total, many.has_more) == (100, 250, True)
        with pytest.raises(MCPError, match="refused by") as refused:
            await host.complete(review, {"name": "path", "value": "refused"})
        assert SECRET not in str(refused.value)
        with pytest.raises(MCPError, match="has no argument 'other'"):
            await values(host, review, "other", "")
        for ref in (
            t.PromptReference(type="ref/prompt", name="review2"),
            ISSUE.model_copy(update={"uri": "x://{y}"}),
        ):
            with pytest.raises(MCPError, match="Unknown"):
                await values(host, ref, "path", "")
    assert not await outside(Invocation.objects.filter(server_slug=scene.slug).exists)


@pytest.mark.exhaustive
async def test_grants_and_rules_hold_for_what_is_suggested(stage, site, launched):
    scene = await outside(lambda: Scene(stage, granted=False))
    await outside(lambda: scene.grant(kind="template", uri="repo://m*"))
    await outside(lambda: scene.grant(kind="prompt", argument_pins={"tone": "kind.py"}))
    rule = PolicyRule(
        name=fresh("rule"),
        outcome="deny",
        server=scene.server,
        condition='tool.kind == "template" && args.uri.endsWith("2")',
    )
    asks = PolicyRule(
        name=fresh("rule"),
        outcome="ask",
        server=scene.server,
        priority=5,
        condition='tool.kind == "template" && args.uri.contains("mine")',
    )
    for each in (rule, asks):
        await outside(lambda each=each: rules.save_rule(rule=each, actor=ACTOR, unanswered=True))
    review = t.PromptReference(type="ref/prompt", name=f"{scene.slug}__review")
    async with connected("http", "auto", scene, site, launched) as host:
        assert await values(host, review, "tone", "kind") == ["kind.py"]  # what is pinned
        # The server suggests for what is pinned, though the host has not said it.
        assert await values(host, review, "path", "a") == ["a-kind.py.py", "a-kind.py.md"]
        # not "you": no grant leads there
        assert await values(host, ISSUE, "owner", "") == ["me", "mine"]
        found = (await host.complete(ISSUE, {"name": "owner", "value": ""})).completion
        assert found.total is None  # how many there are of others is nobody's business
        # a rule denies the other
        assert await values(host, ISSUE, "number", "", owner="me") == ["me-1"]
        with pytest.raises(MCPError, match="not allowed to use it with these arguments"):
            await values(host, ISSUE, "number", "", owner="you")
        # people would be asked about it
        assert await values(host, ISSUE, "number", "", owner="mine") == []
    assert not await outside(ApprovalRequest.objects.exists)


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("door", ["http", "stdio"])
async def test_a_completion_that_its_host_gives_up_is_cancelled_at_its_server(
    stage, site, launched, tmp_path, door, mode
):
    journal = tmp_path / "journal"
    scene = await outside(lambda: Scene(stage, "legacy", journal=journal))
    review = t.PromptReference(type="ref/prompt", name=f"{scene.slug}__review")
    async with connected(door, mode, scene, site, launched) as host:
        typing = asyncio.create_task(values(host, review, "path", "endless"))
        (asked,) = await until(lambda: [m for m in noted(journal) if "endless" in json.dumps(m)])
        typing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await typing
        (told,) = await until(
            lambda: [m for m in noted(journal) if m["method"] == "notifications/cancelled"]
        )
        assert told["params"] == {"requestId": asked["id"], "reason": "cancelled"}  # not "timeout"
        assert await values(host, review, "path", "a") == ["a.py", "a.md"]


@pytest.mark.exhaustive
async def test_a_completion_beyond_the_rate_is_refused(stage, site, launched):
    scene = await outside(Scene, stage, "legacy")
    review = t.PromptReference(type="ref/prompt", name=f"{scene.slug}__review")
    await outside(
        lambda: type(scene.agent).objects.filter(pk=scene.agent.pk).update(calls_per_minute=3)
    )
    async with connected("http", "auto", scene, site, launched) as host:
        for value in "abc":
            await values(host, review, "path", value)
        with pytest.raises(MCPError, match="calls per minute: 3"):
            await values(host, review, "path", "d")
