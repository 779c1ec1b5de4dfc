"""How many questions a file of expert tools asks the database: for each tool that is new, changed,
or the same as before.

A start of ``runmcp --config`` imports the file while a host waits.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from mcpregistry.models import Agent, AuditEntry, Endpoint, Grant, Server, Tool
from mcpregistry.services.definitions import observe
from mcpregistry.services.exchange.importing import import_file
from mcpregistry.services.records import chains
from mcpregistry.services.servers.lifecycle import confirm_launch
from subagents.models import ExpertTool, Provider
from subagents.services.exchange import served_experts
from tests.subagents.kit import confirmed

pytestmark = pytest.mark.django_db
FEW = 4
MANY = 12


class Start:
    """What ``runmcp --config`` does, without processes; ``asked`` counts the questions of each
    part."""

    def __init__(self, count: int) -> None:
        self.asked = Counter[str]()
        self.texts = dict[str, list[str]]()
        self.names = [f"read_{number}" for number in range(count)]
        self.experts = [f"of{count}_{number}" for number in range(count)]
        self.server = f"fs{count}"

    def file(self, description: str) -> bytes:
        tools = [
            {
                "name": name,
                "description": description,
                "internal_tools": {self.server: [read, self.names[0]]},
                "provider": "google",
                "model": "m",
            }
            for name, read in zip(self.experts, self.names, strict=True)
        ]
        return json.dumps(
            {"mcps": {self.server: {"command": "fs", "args": []}}, "tools": tools}
        ).encode()

    @contextmanager
    def counted(self, part: str) -> Iterator[None]:
        with CaptureQueriesContext(connection) as asked:
            yield
        self.asked[part] += len(asked)
        self.texts[part] = [question["sql"][:160] for question in asked.captured_queries]

    def start(self, description: str) -> None:
        with self.counted("import"):
            outcome = import_file(
                raw=self.file(description),
                path=f"{self.server}.json",
                actor="test",
                may_rule=True,
                may_grant=True,
                on_conflict="own",
            )
        assert outcome.saved, outcome.refused
        server = Server.objects.get(slug=self.server)
        if not server.launch_confirmed:
            server = confirm_launch(server=server, actor="test", launch_hash=server.launch_hash())
            with self.counted("servers"):
                observe.observe(
                    server=server, listed=[{"name": name, "inputSchema": {}} for name in self.names]
                )
        with self.counted("serve"):
            labels = frozenset(f"tool/{name}" for name in self.experts)
            agent = Agent.objects.get(slug="host")
            endpoint = Endpoint.objects.get(slug=self.server)
            assert served_experts.serve(labels, agent=agent, endpoint=endpoint, actor="test") == []


@pytest.fixture
def starts() -> tuple[Start, Start]:
    Agent.objects.create(slug="host")
    confirmed(Provider(slug="google", kind="scripted", base_url="http://127.0.0.1:9/v1"))
    for each in (made := (Start(FEW), Start(MANY))):
        Endpoint.objects.create(slug=each.server)
    return made


@pytest.mark.exhaustive
def test_a_tool_more_is_few_questions_more(starts: tuple[Start, Start]) -> None:
    """Each saves, audits and remembers what it changes; what is read is read once for the whole
    file."""
    few, many = starts
    for what, description, most in (
        ("new", "d", {"import": 28, "servers": 0.5, "serve": 26}),
        ("the same", "d", {"import": 0, "serve": 2}),
        ("changed", "e", {"import": 24, "serve": 2}),
    ):
        for each in starts:
            each.asked.clear()
            each.start(description)
        for part, allowed in most.items():
            more = (many.asked[part] - few.asked[part]) / (MANY - FEW)
            assert more <= allowed, f"{what}: {part}: {more} questions a tool\n" + "\n".join(
                many.texts[part]
            )


def test_what_is_taken_together_is_audited_and_remembered_one_by_one(
    starts: tuple[Start, Start],
) -> None:
    few, _ = starts
    few.start("d")
    kinds = Counter(AuditEntry.objects.values_list("kind", flat=True))
    every = {
        "expert.created",
        "grant.created",
        "definition.approved",
        "expert.offered",
        "expert.vouched",
    }
    # Each tool of a whitelist beside the first, which stands on all of them.
    assert {kind: kinds[kind] for kind in every} == dict.fromkeys(every, FEW) | {
        "grant.created": 2 * FEW - 1
    }
    assert list(chains.verify_chains()) == []
    for tool in Tool.objects.all():
        assert [row.pinned_id for row in tool.history.all()] == [tool.pinned_id, None]
        assert tool.pinned_id == tool.latest_id
    for grant in Grant.objects.all():
        assert grant.history.count() == 1
    for expert in ExpertTool.objects.all():
        newest, *older = expert.history.all()
        assert [each.endpoint.slug for each in newest.endpoints.all()] == [few.server]
        assert [each.agent.slug for each in newest.users.all()] == ["host"]
        assert [row.endpoints.count() for row in older] == [0], "an offer is one change"
