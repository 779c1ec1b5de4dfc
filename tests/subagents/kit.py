"""Expert tools over scripted models and fake servers, for every test of runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mcpregistry.calls.call import CallOutcome, CallRequest
from mcpregistry.models import Agent, Endpoint, Server, Tool
from mcpregistry.services.access import grants
from subagents.llm.scripted.app import ScriptedModels
from subagents.llm.scripted.script import load
from subagents.models import ExpertTool, LanguageModel, Provider, Run, ToolCall
from subagents.services import experts, runs
from tests.calls.conftest import ACTOR, add_server, tool
from tests.fakes.journals import called, noted
from tests.waiting import HANG_LIMIT, until

WORDS = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


@dataclass(frozen=True)
class Heard:
    """A request as it reached the scripted server."""

    path: str
    headers: dict[bytes, bytes]
    body: dict[str, Any]


def overhear(monkeypatch: pytest.MonkeyPatch) -> list[Heard]:
    """Every request to scripted servers from now on."""
    heard: list[Heard] = []
    original = ScriptedModels._serve_http

    async def spy(self: ScriptedModels, scope: dict[str, Any], body: bytes, send: Any) -> None:
        heard.append(Heard(scope["path"], dict(scope["headers"]), json.loads(body or b"{}")))
        await original(self, scope, body, send)

    monkeypatch.setattr(ScriptedModels, "_serve_http", spy)
    return heard


def ready_provider(slug: str, **fields: Any) -> Provider:
    """A provider that somebody has confirmed, reachable on this machine."""
    facts = {
        "kind": "scripted",
        "allowed_networks": ["127.0.0.0/8"],
        "timeout": HANG_LIMIT,
    } | fields
    row = Provider(slug=slug, **facts)
    return confirmed(row)


def confirmed(row: Provider) -> Provider:
    """The provider as it is, saved, its destination confirmed."""
    row.confirmed_destination = row.destination_hash()
    row.save()
    return row


class Bench:
    """One provider that is scripted, the servers behind it, and the journal of what they
    received."""

    def __init__(self, base: str, models: ScriptedModels, journal: Path) -> None:
        self.models = models
        self.journal = journal
        self.provider = ready_provider("scripts", base_url=f"{base}/v1")

    def model(
        self, name: str, *turns: Any, final: Any = None, repeat: bool = False, **fields: Any
    ) -> LanguageModel:
        """A model and its script."""
        scenario = {"turns": list(turns), "repeat": repeat} | ({"final": final} if final else {})
        self.models.script = self.models.script.merge(load({name: scenario}))
        facts = {
            "input_price": "1",
            "output_price": "5",
            "tokenizer": "tiktoken:o200k_base",
        } | fields
        return LanguageModel.objects.create(provider=self.provider, name=name, **facts)

    def server(
        self, fake: str = "echo", *names: str, read_only: Sequence[str] = (), **fields: Any
    ) -> Server:
        env = {"FAKE_JOURNAL": str(self.journal)} | fields.pop("env", {})
        fields = {"connect_timeout": HANG_LIMIT, "request_timeout": HANG_LIMIT} | fields
        tools = [tool(name) for name in names or ("echo",)]
        server = add_server(fake, *tools, env=env, ignored="subagents_", **fields)
        Tool.objects.filter(server=server, name__in=read_only).update(read_only=True)
        return server

    def expert(
        self, *targets: LanguageModel, uses: Sequence[Server] = (), **fields: Any
    ) -> ExpertTool:
        facts = {"name": "expert", "description": "Knows.", "arguments": WORDS} | fields
        facts = {"max_seconds": int(4 * HANG_LIMIT)} | facts
        expert = experts.save_expert(expert=ExpertTool(**facts), targets=targets, actor=ACTOR)
        for server in uses:
            grants.grant_access(agent=expert.agent, server=server, actor=ACTOR)
        return expert

    def start(self, text: str = "why?", expert: str = "expert") -> Run:
        return runs.start(expert=expert, arguments={"text": text}, origin="rest")

    def sent(self) -> list[dict[str, Any]]:
        """The parameters of every ``tools/call`` that reached a server."""
        return called(self.journal)

    async def until_told_to_stop(self) -> None:
        """Until a server has read that one of its calls was cancelled, which it is told beside the
        call's end."""
        await until(
            lambda: any(m.get("method") == "notifications/cancelled" for m in noted(self.journal))
        )


def calls(*asked: tuple[str, Any], **turn: Any) -> dict[str, Any]:
    """A turn that asks for these tool calls."""
    return {"calls": [{"name": name, "arguments": arguments} for name, arguments in asked], **turn}


def states(run: Run) -> list[tuple[str, str]]:
    return list(
        ToolCall.objects.filter(run=run)
        .order_by("turn_number", "index")
        .values_list("name", "state")
    )


LOOK = calls(("echo__echo", {"text": "{{ user.json.text }}"}))
ANSWER = {"text": "It said {{ last.json.arguments.text }}."}


def offered(bench: Bench, *turns: Any, **fields: Any) -> ExpertTool:
    """The expert tool, for agent "ann" on the endpoint "default"."""
    server = bench.server("echo", "echo", "pid")
    expert = bench.expert(bench.model("m", *(turns or (LOOK, ANSWER))), uses=[server], **fields)
    expert.users.add(Agent.objects.get(slug="ann"))
    expert.endpoints.add(Endpoint.objects.get(slug="default"))
    return expert


async def call(
    here: Any,
    name: str = "expert",
    agent: str = "ann",
    arguments: dict[str, Any] | None = None,
    **facts: Any,
) -> CallOutcome:
    catalogue = here.engine.get_catalogue("default", agent)
    return await here.engine.call(
        CallRequest(catalogue, name, arguments or {"text": "hello"}, "http", **facts)
    )
