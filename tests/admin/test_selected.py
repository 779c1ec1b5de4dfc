"""Serious actions on several rows of a list ask first, and do it to exactly the rows that were
shown."""

from __future__ import annotations

import re

from django.urls import reverse

from mcpregistry.models import AuditEntry, Server, Token, Tool
from mcpregistry.models.server import Lifecycle
from mcpregistry.queries import consequences
from mcpregistry.services.access import tokens
from mcpregistry.services.definitions import observe
from tests.admin.conftest import ClientOf
from tests.admin.pressing import asks
from tests.fakes.seed import ACTOR, Site, tool

SERVERS = reverse("admin:mcpregistry_server_changelist")
TOOLS = reverse("admin:mcpregistry_tool_changelist")
TOKENS = reverse("admin:mcpregistry_token_changelist")


def test_it_says_what_will_happen_and_does_nothing_yet(client_of: ClientOf, site: Site) -> None:
    client = client_of("admin")
    rows = [site.servers["git"], site.servers["time"]]
    wish = {"action": "disable_selected", "_selected_action": [row.pk for row in rows]}
    before = AuditEntry.objects.count()
    page = client.post(f"{SERVERS}?q=t", wish)
    assert re.findall(
        r"<li>(\w+): \d agents? can no longer see or call \d tools", page.content.decode()
    ) == [
        "git",
        "time",
    ]
    assert AuditEntry.objects.count() == before
    answer = client.post(f"{SERVERS}?q=t", wish | {"sure": asks(page)})
    assert (answer.status_code, answer["Location"]) == (302, f"{SERVERS}?q=t")
    states = Server.objects.filter(pk__in=[row.pk for row in rows]).values_list(
        "lifecycle", flat=True
    )
    assert set(states) == {Lifecycle.DISABLED}


def test_a_yes_to_other_rows_asks_again(client_of: ClientOf, site: Site) -> None:
    client = client_of("admin")
    agent = site.agents["local"]
    made = [tokens.issue_token(name=name, agent=agent, actor=ACTOR)[0] for name in ("one", "two")]
    wish = {"action": "revoke_selected", "_selected_action": [made[0].pk]}
    sure = asks(client.post(TOKENS, wish))
    answer = client.post(
        TOKENS, wish | {"_selected_action": [row.pk for row in made], "sure": sure}
    )
    assert answer.status_code == 409
    assert "The data has changed" in answer.content.decode()
    assert not Token.objects.filter(
        revoked_at__isnull=False, pk__in=[row.pk for row in made]
    ).exists()


def test_a_yes_to_definitions_that_have_changed_since_asks_again(
    client_of: ClientOf, site: Site
) -> None:
    client = client_of("approver")
    waiting = Tool.objects.get(name="delete_repository")
    wish = {"action": "approve_selected", "_selected_action": [waiting.pk]}
    sure = asks(client.post(TOOLS, wish))
    observe.observe(
        server=site.servers["github"], listed=[tool("delete_repository", "Another text by now.")]
    )
    assert client.post(TOOLS, wish | {"sure": sure}).status_code == 409
    assert Tool.objects.get(pk=waiting.pk).pinned is None


def test_tokens_that_go_together_are_not_said_to_go_on(client_of: ClientOf, site: Site) -> None:
    agent = site.agents["research"]
    made = [tokens.issue_token(name=name, agent=agent, actor=ACTOR)[0] for name in ("one", "two")]
    gone, _ = tokens.issue_token(name="three", agent=agent, actor=ACTOR)
    tokens.revoke_token(token=gone, actor=ACTOR)
    gone.refresh_from_db()
    told = consequences.revoking_tokens([*made, gone])
    assert [line for line in told if "still works" in line] == []
    assert len([line for line in told if "has no other token" in line]) == 2
