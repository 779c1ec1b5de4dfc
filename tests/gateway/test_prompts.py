"""Prompts of servers, through both doors and to and from both eras: listed, got, recorded and
refused as tools are."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from mcp import Client, MCPError
from mcp import types as t
from mcp.client.stdio import stdio_client

from mcpregistry.models import Agent, ApprovalRequest, AuditEntry, Grant, PolicyRule, Tool
from mcpregistry.services.access import grants
from mcpregistry.services.approvals import votes
from mcpregistry.services.definitions import decisions
from mcpregistry.services.policy import rules
from tests.fakes.stage import ACTOR, Stage, Web, fresh, outside, web
from tests.fakes.targets import SERVERS
from tests.gateway.talking import ERAS, MODES
from tests.launcher import Launcher
from tests.waiting import HANG_LIMIT, until

pytestmark = pytest.mark.e2e
SECRET = "sk-prompts-0123456789abcdef"


@pytest.fixture(scope="module")
def site(stage: Stage) -> Iterator[Web]:
    with web(stage.env | {"SLIPSNISSE_HOLD": "0.2"}) as running:
        yield running


class Scene:
    """An agent that is granted everything of a server with two tools and two prompts; one of these
    is approved."""

    def __init__(self, stage: Stage, era: str = "both", *, kind: str = "") -> None:
        self.stage = stage
        self.slug = fresh("p")
        self.endpoint = stage.endpoint(self.slug)
        self.server = stage.real(
            self.slug,
            "review",
            "change",
            command=[sys.executable, "-S", str(SERVERS / "prompts.py")],
            env={"FAKE_ERA": era, "API_KEY": SECRET},
            connect_timeout=HANG_LIMIT,
        )
        self.token = stage.agent(self.slug)
        self.agent = Agent.objects.get(slug=self.slug)
        grants.save_grant(grant=Grant(agent=self.agent, server=self.server, kind=kind), actor=ACTOR)

    @property
    def prompt(self) -> str:
        return f"{self.slug}__review"

    def rule(self, outcome: str, condition: str = 'tool.kind == "prompt"') -> PolicyRule:
        rule = PolicyRule(
            name=fresh("rule"), server=self.server, outcome=outcome, condition=condition
        )
        return rules.save_rule(rule=rule, actor=ACTOR, unanswered=True)

    def calls(self) -> list[tuple[str, str, str]]:
        rows = Stage.calls(server_slug=self.slug)
        return [(row.tool_name, row.state, row.arguments) for row in rows]


@contextlib.asynccontextmanager
async def connected(
    door: str, mode: str, scene: Scene, site: Web, launched: Launcher, **options: Any
) -> AsyncIterator[Client]:
    async with contextlib.AsyncExitStack() as stack:
        if door == "http":
            # it has seen all before that
            await outside(lambda: site.wait_known(scene.stage.agent(fresh("marker"))))
            yield await stack.enter_async_context(
                site.client(scene.token, mode, scene.slug, **options)
            )
            return
        log = stack.enter_context(tempfile.TemporaryFile("w+"))  # noqa: SIM115
        parameters = launched.parameters(
            "manage.py", "runmcp", "--endpoint", scene.slug, "--agent", scene.slug
        )
        transport = stdio_client(parameters, errlog=log)
        yield await stack.enter_async_context(Client(transport, mode=mode, cache=None, **options))


def said(result: t.GetPromptResult) -> list[str]:
    return [message.content.text for message in result.messages]  # type: ignore[union-attr]


@pytest.mark.exhaustive(but=("stdio-legacy-legacy",))
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("door", ["http", "stdio"])
async def test_an_approved_prompt_is_listed_got_and_recorded(
    stage, site, launched, door, mode, era
):
    scene = await outside(Scene, stage, era)
    async with connected(door, mode, scene, site, launched) as host:
        assert host.server_capabilities.prompts == t.PromptsCapability(list_changed=True)
        (prompt,) = (await host.list_prompts()).prompts  # "greet" waits for a decision
        assert (prompt.name, prompt.title) == (scene.prompt, "Review a file")
        assert [(a.name, a.required) for a in prompt.arguments or []] == [
            ("path", True),
            ("tone", None),
        ]
        got = await host.get_prompt(scene.prompt, {"path": "a.py"})
        assert (got.description, said(got)) == ("A review", ["Review a.py in a plain tone."])
        for name, arguments, why in (
            (scene.prompt, {"tone": "sharp"}, "path"),
            (scene.prompt, {"path": "a.py", "more": "x"}, "more"),
            (scene.prompt, {"path": "gone"}, "There is no such file"),
            (f"{scene.slug}__greet", {}, "Unknown prompt"),
            (f"{scene.slug}__change", {}, "Unknown prompt"),
        ):
            with pytest.raises(MCPError, match=why) as refusal:
                await host.get_prompt(name, arguments)
            assert refusal.value.code == t.INVALID_PARAMS
        # The tool of the same name is another thing.
        assert (await host.call_tool(scene.prompt, {})).content == [t.TextContent(text="done")]
    calls = await outside(scene.calls)
    assert [(name, state) for name, state, _ in calls] == [
        ("prompt:review", "succeeded"),
        ("prompt:review", "denied"),
        ("prompt:review", "denied"),
        ("prompt:review", "tool_error"),
        ("review", "succeeded"),
    ]
    assert calls[0][2] == '{"path":"a.py"}'


async def test_a_rule_denies_prompts_or_has_people_asked(stage, site, launched):
    scene = await outside(Scene, stage)
    async with connected("http", "auto", scene, site, launched) as host:
        rule = await outside(scene.rule, "deny")
        denied = await refused(host, scene, "DENIED")
        assert "A rule denies this call" in denied.message
        assert not (await host.call_tool(scene.prompt, {})).is_error  # the rule is about prompts
        await outside(PolicyRule.objects.filter(pk=rule.pk).update, outcome="ask")
        pending = await refused(host, scene, "pending")
        assert "request the same prompt again" in pending.message
        held = await outside(
            ApprovalRequest.objects.select_related("call").get, pk=pending.data["approval"]
        )
        assert (held.call.tool_name, held.call.state) == ("prompt:review", "pending")
        await outside(approve, held.pk)
        got = await host.get_prompt(scene.prompt, {"path": "a.py"})
        assert said(got) == ["Review a.py in a plain tone."]
    entry = await outside(AuditEntry.objects.filter(subject=f"call:{held.call_id}").first)
    assert f"{scene.slug}::prompt:review" in entry.body


def approver() -> User:
    user = User.objects.create(username=fresh("ann"), password="!")
    user.groups.add(Group.objects.get(name="approver"))
    return user


def approve(request_id: str) -> None:
    votes.vote(request_id=request_id, user=approver(), approve=True, via="test")


async def refused(host: Client, scene: Scene, word: str) -> Any:
    """The error once the rule that says so has reached the process."""

    async def look() -> Any:
        try:
            await host.get_prompt(scene.prompt, {"path": "a.py"})
        except MCPError as error:
            return error.error if word in (error.error.data or {}).values() else None
        return None

    return await until(look)


async def test_a_grant_of_a_servers_tools_shows_no_prompt(stage, site, launched):
    scene = await outside(lambda: Scene(stage, kind="tool"))
    async with connected("http", "auto", scene, site, launched) as host:
        assert (await host.list_prompts()).prompts == []
        assert len((await host.list_tools()).tools) > 1
        with pytest.raises(MCPError, match="Unknown prompt"):
            await host.get_prompt(scene.prompt, {"path": "a.py"})


async def test_what_a_prompt_says_of_its_servers_secrets_is_redacted(stage, site, launched):
    scene = await outside(Scene, stage)
    await outside(lambda: decisions.approve_waiting(server=scene.server, actor=ACTOR))
    async with connected("http", "auto", scene, site, launched) as host:
        (text,) = said(await host.get_prompt(f"{scene.slug}__greet", {}))
    assert text.startswith("The key is ")
    assert SECRET not in text


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_prompt_that_its_server_changes_is_withdrawn_and_hosts_are_told(
    stage, site, launched, mode
):
    scene = await outside(Scene, stage)
    told: list[type] = []

    async def on_message(message: Any) -> None:
        told.append(type(message))

    options = {"message_handler": on_message} if mode == "legacy" else {}
    streams = site.streams
    async with (
        connected("http", mode, scene, site, launched, **options) as host,
        contextlib.AsyncExitStack() as stack,
    ):
        if mode == "legacy":
            await until(lambda: site.streams > streams)
        else:
            changes = await stack.enter_async_context(
                host.listen(tools_list_changed=True, prompts_list_changed=True)
            )

            async def hear() -> None:
                async for event in changes:
                    told.append(type(event))

            task = asyncio.create_task(hear())
            stack.callback(task.cancel)
        assert len((await host.list_prompts()).prompts) == 1
        await host.call_tool(f"{scene.slug}__change", {})
        await until(lambda: told)
        assert (await host.list_prompts()).prompts == []
        assert {name.__name__ for name in told} <= {
            "PromptListChangedNotification",
            "PromptsListChanged",
        }
    prompt = await outside(
        Tool.offers.select_related("latest").get, server=scene.server, kind="prompt", name="review"
    )
    assert prompt.status == "changed"
    assert "evil.example" in prompt.latest.body
