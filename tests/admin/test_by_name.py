"""Filters by a name: links while there are few, a field that finds them when there are many, and
what belongs to nobody."""

from __future__ import annotations

import re

import pytest
from django.contrib import admin
from django.contrib.admin.widgets import AutocompleteSelectMultiple
from django.contrib.auth.models import User
from django.test import Client, RequestFactory
from django.urls import reverse
from django.utils import timezone

from mcpregistry.admin.set_up.forms import AccessForm
from mcpregistry.models import Agent, AuditEntry, Endpoint, Grant, PolicyRule, Server

pytestmark = pytest.mark.django_db
GRANTS = "/admin/mcpregistry/grant/"


@pytest.fixture
def client() -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("owner"))
    return client


def servers(count: int) -> list[Server]:
    return Server.objects.bulk_create(
        Server(slug=f"server-{n:03}", command=["x"]) for n in range(count)
    )


def grants(agents: int) -> None:
    (server,) = servers(1)
    Agent.objects.bulk_create(Agent(slug=f"agent-{n:03}") for n in range(agents))
    Grant.objects.bulk_create(
        Grant(agent=agent, server=server)
        for agent in Agent.objects.filter(slug__startswith="agent-")
    )


def shown(client: Client, address: str) -> int:
    answer = client.get(address)
    assert answer.status_code == 200
    return answer.context_data["cl"].result_count  # type: ignore[attr-defined]


def test_few_are_links(client: Client) -> None:
    grants(3)
    page = client.get(GRANTS).content.decode()
    assert "?agent=agent-002" in page
    assert "names-of-agent" not in page


def test_of_many_one_is_typed(client: Client) -> None:
    grants(30)
    page = client.get(f"{GRANTS}?validity=live&p=1&agent=agent-007").content.decode()
    assert 'name="agent" value="agent-007"' in page
    assert 'name="validity" value="live"' in page  # what else is filtered by stays
    assert 'type="hidden" name="p"' not in page
    assert "agent-011" not in page.split('id="changelist-filter"')[1]
    assert shown(client, f"{GRANTS}?agent=agent-007") == 1
    assert shown(client, f"{GRANTS}?agent=nobody-at-all") == 0


def test_rows_that_have_none(client: Client) -> None:
    grants(2)
    endpoint, _ = Endpoint.objects.get_or_create(slug="door")
    Grant.objects.create(endpoint=endpoint, server=Server.objects.get())
    assert shown(client, f"{GRANTS}?agent=-") == 1


def test_what_is_typed_is_found(client: Client) -> None:
    servers(40)
    found = client.get("/admin/names/server/?server=er-03").content.decode()
    assert [part.split('"')[0] for part in found.split('value="')[1:]] == [
        f"server-03{n}" for n in range(10)
    ]
    assert client.get("/admin/names/server/").content.decode().count("<option") == 20
    assert client.get("/admin/names/user/").status_code == 404


def test_names_are_for_who_may_see_them(client: Client) -> None:
    servers(1)
    client.force_login(User.objects.create_user("clerk", is_staff=True))
    assert client.get("/admin/names/server/").status_code == 403


def test_a_long_list_counts_a_thousand_and_goes_on(client: Client) -> None:
    AuditEntry.objects.bulk_create(
        AuditEntry(
            writer="w",
            seq=n + 1,
            at=timezone.now(),
            kind="odd",
            actor="a",
            subject="s",
            body="{}",
            prev="p",
            hash="h",
        )
        for n in range(1_300)
    )
    first = client.get("/admin/mcpregistry/auditentry/")
    assert "1,000+" in first.content.decode()
    further = client.get("/admin/mcpregistry/auditentry/?p=10").content.decode()
    there = f"{AuditEntry.objects.count():,}"  # what the site itself has noted counts too
    assert there in further
    assert f"{there}+" not in further


def test_an_endpoint_offers_one_chooser_for_any_number_of_agents(client: Client) -> None:
    grants(60)
    endpoint = Endpoint.objects.create(slug="main")
    address = f"/admin/mcpregistry/endpoint/{endpoint.pk}/change/?agent=agent-059"
    page = client.get(address).content.decode()
    assert page.count("agent-0") < 10  # the chosen one, and no other
    assert 'name="agent" value="agent-059"' in page
    assert f"{reverse('connect')}?endpoint=main&amp;agent=agent-059" in page


def test_an_agent_offers_one_chooser_for_any_number_of_endpoints(client: Client) -> None:
    Endpoint.objects.bulk_create(Endpoint(slug=f"endpoint-{n:03}") for n in range(60))
    agent = Agent.objects.create(slug="ann")
    page = client.get(
        f"/admin/mcpregistry/agent/{agent.pk}/change/?endpoint=endpoint-059"
    ).content.decode()
    assert "endpoint-011" not in page
    assert 'name="endpoint" value="endpoint-059"' in page


def test_few_agents_are_selected_and_an_unknown_one_is_named(client: Client) -> None:
    grants(3)
    endpoint = Endpoint.objects.create(slug="main")
    page = client.get(
        f"/admin/mcpregistry/endpoint/{endpoint.pk}/change/?agent=nobody"
    ).content.decode()
    assert "<option>agent-002</option>" in page
    assert "No enabled agent is named “nobody”." in page


MANY = 25
PAGES_THAT_CHOOSE_AGENTS = (
    "/admin/connect/",
    "/admin/mcpregistry/policyrule/why/",
    "/admin/mcpregistry/policyrule/try/",
    "/admin/analyzer/",
    "/admin/who/",
    "/admin/context-bill/",
    "/usage/",
    "/approvals/history/",
)


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize("address", PAGES_THAT_CHOOSE_AGENTS)
def test_one_of_many_agents_is_typed(client: Client, address: str) -> None:
    grants(MANY)
    Endpoint.objects.get_or_create(slug="default")
    page = client.get(address).content.decode()
    assert 'list="names-of-agent"' in page
    assert '<select name="agent"' not in page


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize("address", PAGES_THAT_CHOOSE_AGENTS)
def test_one_of_few_agents_is_selected(client: Client, address: str) -> None:
    grants(3)
    Endpoint.objects.get_or_create(slug="default")
    page = client.get(address).content.decode()
    assert "names-of-agent" not in page
    assert re.search(r'<option value="agent-002"', page)


def test_connect_takes_a_typed_name_and_says_which_is_unknown(client: Client) -> None:
    grants(MANY)
    Endpoint.objects.get_or_create(slug="default")
    page = client.get("/admin/connect/?agent=agent-017&endpoint=default").content.decode()
    assert 'value="agent-017"' in page
    assert "--agent" in page
    unknown = client.get("/admin/connect/?agent=nobody&endpoint=default").content.decode()
    assert "No agent named &quot;nobody&quot; can be chosen here." in unknown


def test_names_that_can_be_used_now(client: Client) -> None:
    Agent.objects.create(slug="ann")
    Agent.objects.create(slug="anton", enabled=False)
    Agent.objects.create(slug="expert.ann")
    found = client.get("/admin/names/agent/?field=who&usable=1&who=an").content.decode()
    assert 'value="ann"' in found
    assert "anton" not in found
    assert "expert.ann" not in found
    assert "anton" in client.get("/admin/names/agent/?agent=an").content.decode()


def test_a_draft_rule_for_one_of_many_agents_is_tried(client: Client) -> None:
    grants(MANY)
    agent = Agent.objects.get(slug="agent-017")
    rule = PolicyRule.objects.create(name="Own", outcome="ask", agent=agent, draft=True)
    page = client.get(f"/admin/mcpregistry/policyrule/{rule.pk}/try/").content.decode()
    assert 'value="agent-017"' in page
    assert 'id="report"' in page


def test_the_last_step_of_a_server_finds_agents_among_many(client: Client) -> None:
    grants(MANY)
    assert isinstance(AccessForm(may_add=True).fields["agents"].widget, AutocompleteSelectMultiple)
    chosen = Agent.objects.filter(slug__in=["agent-003", "agent-021"])
    form = AccessForm({"agents": [agent.pk for agent in chosen]}, may_add=True)
    assert form.is_valid()
    assert {agent.slug for agent in form.cleaned_data["agents"]} == {"agent-003", "agent-021"}
    assert "agent-011" not in str(form)
    chosen.update(enabled=False)
    assert "Choose only agents that are enabled" in str(AccessForm(form.data, may_add=True).errors)


def test_the_last_step_of_a_server_lists_few_agents(client: Client) -> None:
    grants(3)
    assert "agent-002" in str(AccessForm(may_add=True))


def test_what_fields_find_has_an_order(client: Client, rf: RequestFactory) -> None:
    """Without one, a record can be missing on every page of what is found."""
    request = rf.get("/")
    request.user = User.objects.get(username="owner")
    found = {
        f"{model.__name__}.{name}": model._meta.get_field(name).remote_field.model
        for model, pages in admin.site._registry.items()
        for name in pages.autocomplete_fields
    }
    assert len(found) > 10
    assert [
        name
        for name, kind in found.items()
        if not admin.site._registry[kind].get_queryset(request).ordered
    ] == []
