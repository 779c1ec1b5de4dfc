"""The page *Connect*: what people are shown to enter in their host, and that it has called."""

from __future__ import annotations

from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from mcpregistry.domain.hosts.table import HOSTS
from mcpregistry.models import Agent, Endpoint
from tests.admin.conftest import ClientOf
from tests.fakes.seed import Site
from tests.services.rows import dispatched

pytestmark = [pytest.mark.one_database, pytest.mark.usefixtures("contexts")]


def test_the_first_look_shows_a_whole_entry_that_starts_this_site(
    client_of: ClientOf, site: Site
) -> None:
    Agent.objects.get_or_create(slug="local")
    answer = client_of("viewer").get(reverse("connect"))
    panel = answer.context["panel"]
    assert (panel.slug, answer.context["agent"].slug, answer.context["endpoint"].slug) == (
        "claude-code",
        "local",
        "default",
    )
    for word in (
        str(settings.BASE_DIR / "manage.py"),
        "--agent",
        "SLIPSNISSE_VAR",
        str(settings.VAR_DIR),
    ):
        assert word in panel.text
    page = answer.content.decode()
    assert "~/.claude.json" in page
    assert "claude mcp add" in page
    assert f"connect claude-code --endpoint default --agent {answer.context['agent'].slug}" in page
    assert "Waiting for the first call" in page


def test_an_entry_for_project_files_can_be_chosen(client_of: ClientOf, site: Site) -> None:
    answer = client_of("viewer").get(reverse("connect"), {"way": "workspace", "agent": "ci"})
    assert '"--workspace",' in answer.context["panel"].text
    assert "connect claude-code --workspace --agent ci" in answer.content.decode()
    assert "Project files" in answer.content.decode()


@pytest.mark.exhaustive(one_in=10)
@pytest.mark.parametrize("slug", [*HOSTS, "python", "typescript", "curl"])
@pytest.mark.parametrize("way", ["stdio", "http"])
def test_every_host_is_shown_or_says_what_to_choose(
    client_of: ClientOf, site: Site, slug: str, way: str
) -> None:
    answer = client_of("operator").get(
        reverse("connect"), {"host": slug, "way": way, "agent": "ci"}
    )
    panel = answer.context["panel"]
    assert (
        ("Choose" in panel.refused)
        if panel.refused
        else f'id="host-{slug}"' in answer.content.decode()
    )
    assert bool(answer.context["seen"])  # what "ci" is granted


def test_the_page_asks_the_same_questions_however_many_agents_there_are(
    client_of: ClientOf, site: Site
) -> None:
    client = client_of("viewer")
    asked = []
    for _ in range(2):
        with CaptureQueriesContext(connection) as questions:
            client.get(reverse("connect"), {"agent": "ci"})
        asked.append(len(questions))
        Agent.objects.bulk_create(Agent(slug=f"more-{len(asked)}-{number}") for number in range(20))
    assert asked[1] <= asked[0] <= 31


def test_it_turns_green_with_the_first_call_after_the_page_was_opened(
    client_of: ClientOf, site: Site
) -> None:
    client = client_of("viewer")
    live = client.get(reverse("connect"), {"agent": "ci"}).context["live"]
    asked = parse_qs(urlsplit(live).query)
    dispatched(
        "old",
        agent_slug="ci",
        endpoint_slug="default",
        received_at=timezone.now() - timedelta(hours=1),
    )
    dispatched("other", agent_slug="else", endpoint_slug="default", received_at=timezone.now())
    waiting = client.get(live)
    assert (waiting.status_code, asked["agent"]) == (200, ["ci"])
    assert "Waiting" in waiting.content.decode()
    dispatched(
        "mine",
        agent_slug="ci",
        endpoint_slug="default",
        host_name="<b>claude",
        received_at=timezone.now() + timedelta(minutes=1),
    )
    there = client.get(live)
    assert there.status_code == 286
    assert "Connected." in there.content.decode()
    assert "<b>" not in there.content.decode()
    for wrong in ("", "x", "9" * 12, "9" * 13):
        assert (
            client.get(
                reverse("connect-live"), {"agent": "ci", "endpoint": "default", "since": wrong}
            ).status_code
            == 404
        )


def test_who_sees_no_agents_sees_no_page_and_strangers_are_sent_to_the_login(site: Site) -> None:
    stranger = Client()
    assert stranger.get(reverse("connect")).status_code == 302
    stranger.force_login(User.objects.create_user("nobody", is_staff=True))
    assert stranger.get(reverse("connect")).status_code == 403
    assert stranger.get(reverse("connect-live"), {"since": "1"}).status_code == 404


def test_without_an_agent_or_an_endpoint_it_says_what_to_add(
    client_of: ClientOf, site: Site
) -> None:
    client = client_of("admin")
    Agent.objects.update(enabled=False)
    assert "Add an agent" in client.get(reverse("connect")).content.decode()
    Agent.objects.update(enabled=True)
    Endpoint.objects.update(enabled=False)
    assert "Add an endpoint" in client.get(reverse("connect")).content.decode()


def test_a_new_token_stands_in_every_hosts_entry_once_and_in_no_link(
    client_of: ClientOf, site: Site
) -> None:
    client = client_of("admin")
    agent = site.agents["ci"]
    where = reverse("admin:mcpregistry_agent_issue_token", args=[agent.pk])
    answer = client.post(where, {"name": "box", "days": 7, "endpoint": "default"})
    token = answer.context["issued"]
    panels = [one["panel"] for one in answer.context["panels"]]
    assert {panel.slug for panel in panels} == {*HOSTS, "python", "typescript", "curl"} - {
        "claude-desktop"
    }
    assert all(token in panel.text for panel in panels)
    assert not any(token in panel.link + panel.command for panel in panels)
    assert answer.content.decode().count(token) == 1 + len(panels)
    assert "no-store" in answer["Cache-Control"]


def test_the_button_on_an_agents_page_leads_here(client_of: ClientOf, site: Site) -> None:
    answer = client_of("viewer").get(
        reverse("admin:mcpregistry_agent_connect", args=[site.agents["ci"].pk])
    )
    assert answer["Location"] == f"{reverse('connect')}?agent=ci"
