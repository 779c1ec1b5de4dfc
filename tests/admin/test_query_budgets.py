"""Lists ask the database a fixed number of questions, however many rows they show."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from mcpregistry.models import (
    Agent,
    Channel,
    Connection,
    Conversation,
    Grant,
    Install,
    Invocation,
    Permit,
    PolicyRule,
    Server,
    ServerEvent,
    ServerTest,
    SlackIdentity,
    Token,
    Tool,
)
from mcpregistry.services.access import agents, grants, tokens
from mcpregistry.services.definitions import decisions, observe
from mcpregistry.services.notifications import outbox
from mcpregistry.services.servers import lifecycle
from tests.admin.conftest import ClientOf
from tests.fakes.seed import ACTOR, Site, tool

BUDGETS = {
    "server": 12,
    "tool": 12,
    "definition": 12,
    "agent": 10,
    "token": 10,
    "endpoint": 9,
    "grant": 14,
    "workspace": 11,
    "credential": 9,
    "invocation": 11,
    "auditentry": 9,
    "connection": 11,
    "servertest": 11,
    "serverevent": 11,
    "channel": 12,
    "delivery": 11,
    "slackidentity": 9,
    "policyrule": 14,
    "permit": 10,
    "conversation": 10,
    "install": 9,
    "projectfile": 9,
}


MORE = 10  # one question for each row would show with two


def more(site: Site) -> None:
    """As many more of everything that lists show."""
    now = timezone.now()
    owner = site.people["admin"]
    for number in range(MORE):
        server = lifecycle.save_server(
            server=Server(slug=f"more-{number}", command=["x"]), actor=ACTOR
        )
        observe.observe(server=server, listed=[tool("a", "b")])
        decisions.approve_waiting(server=server, actor=ACTOR, user=owner)
        agent = agents.save_agent(agent=Agent(slug=f"agent-{number}", owner=owner), actor=ACTOR)
        tokens.issue_token(name="t", agent=agent, actor=ACTOR)
        Conversation.objects.create(agent=agent)
        grants.save_grant(
            grant=Grant(agent=agent, tool=Tool.objects.get(server=server)), actor=ACTOR, user=owner
        )
        found = Tool.objects.get(server=server)
        PolicyRule.objects.create(name=f"more {number}", tool=found, agent=agent, server=server)
        Permit.objects.create(
            agent=agent, tool=found, definition_hash="h", server_revision=1, expires_at=now
        )
        Connection.objects.create(
            server=server, process="p", state="connected", since=now, seen_at=now
        )
        ServerEvent.objects.create(server=server, at=now, kind="connected")
        ServerTest.objects.create(server=server, requested_at=now, requested_by=owner)
        Install.objects.create(
            server=server, ecosystem="npm", package="a", requested_by=ACTOR, state_at=now
        )
        channel = Channel(name=f"more-{number}", kind="email", addresses=["a@example.org"])
        outbox.save_channel(channel=channel, actor=ACTOR, servers=[server])
        outbox.send_test(channel=channel, actor=ACTOR)
        SlackIdentity.objects.create(team="T0", member=f"U{number}", user=owner)
        Invocation.objects.create(
            id=f"more-{number}",
            state="succeeded",
            agent_slug=agent.slug,
            server_slug=server.slug,
            tool_name="a",
            exposed_name="a",
            origin="http",
            writer="w",
            received_at=now - timedelta(minutes=number),
        )


def asked(client_of: ClientOf, url: str) -> int:
    client = client_of("viewer")
    with CaptureQueriesContext(
        connection,
    ) as questions:
        assert client.get(url).status_code == 200
    return len(questions)


@pytest.mark.exhaustive
def test_lists_and_overview_keep_their_budget_when_rows_multiply(
    client_of: ClientOf, site: Site
) -> None:
    urls = {name: reverse(f"admin:mcpregistry_{name}_changelist") for name in BUDGETS} | {
        "index": reverse("admin:index")
    }
    before = {name: asked(client_of, url) for name, url in urls.items()}
    more(site)
    after = {name: asked(client_of, url) for name, url in urls.items()}
    assert after == before
    assert {
        name: count for name, count in after.items() if count > (BUDGETS | {"index": 31})[name]
    } == {}


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize("name", ["server", "agent"])
def test_a_records_page_keeps_its_budget_when_rows_multiply(
    client_of: ClientOf, site: Site, name: str
) -> None:
    row = site.servers["github"] if name == "server" else site.agents["local"]
    url = reverse(f"admin:mcpregistry_{name}_change", args=[row.pk])
    before = asked(client_of, url)
    observe.observe(
        server=site.servers["github"], listed=[tool(f"t{number}", "x") for number in range(MORE)]
    )
    decisions.approve_waiting(server=site.servers["github"], actor=ACTOR)
    for number in range(MORE):
        tokens.issue_token(name=f"t{number}", agent=site.agents["local"], actor=ACTOR)
    assert Token.objects.count() > MORE
    assert asked(client_of, url) <= before
    assert before <= 30


def test_pages_of_calls_do_not_read_payloads(client_of: ClientOf, site: Site) -> None:
    client = client_of("viewer")
    with CaptureQueriesContext(connection) as questions:
        client.get("/admin/mcpregistry/invocation/")
    assert not any(
        '"result",' in question["sql"] or '"arguments",' in question["sql"]
        for question in questions
    )
