"""The page of who can call what: its cells lead to "Why?", its ticks become narrow grants of those
who may."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from mcpregistry.models import Agent, Grant, Invocation, Tool
from mcpregistry.services.policy import analyzer, findings
from tests.admin.conftest import ClientOf
from tests.fakes.seed import Site

WHO = "/admin/who/"


def ticks(html: str) -> list[str]:
    return re.findall(r'name="tick" value="([0-9.]+)"', html)


def test_a_cell_leads_to_why_and_says_its_word(client_of: ClientOf, site: Site) -> None:
    client = client_of("viewer")
    html = client.get(WHO, {"agent": "local", "server": "git"}).content.decode()
    assert html.count('scope="col"') == 2  # the tool and this agent
    whys = re.findall(r'<td class="sn-is-(\w+)"><a href="([^"]+)"', html)
    assert {standing for standing, _ in whys} <= {"allow", "ask", "deny", "hidden", "absent"}
    answer = client.get(whys[0][1].replace("&amp;", "&")).content.decode()
    assert 'id="answer"' in answer
    assert not ticks(html)  # a viewer grants nothing


def test_a_tick_becomes_a_grant_for_that_tool_alone(client_of: ClientOf, site: Site) -> None:
    client = client_of("admin")
    before = Grant.objects.count()
    tick = ticks(client.get(WHO).content.decode())[0]
    agent, tool = (int(key) for key in tick.split("."))
    sent = {"endpoint": "default", "tick": [tick], "from": ""}
    asked = client.post(reverse("who-grant"), sent)
    assert "only this tool" in asked.content.decode()
    assert Grant.objects.count() == before
    sure = re.search(r'name="sure" value="([^"]+)"', asked.content.decode())
    assert sure is not None
    assert client.post(reverse("who-grant"), sent | {"sure": "0"}).status_code == 409
    client.post(reverse("who-grant"), sent | {"sure": sure[1]})
    made = Grant.objects.latest("pk")
    assert (made.agent_id, made.tool_id, made.server_id) == (agent, tool, None)
    assert made.created_by == site.people["admin"]
    assert tick not in ticks(client.get(WHO).content.decode())


def test_who_may_not_grant_cannot_by_sending_it(client_of: ClientOf, site: Site) -> None:
    tick = ticks(client_of("admin").get(WHO).content.decode())[0]
    assert (
        client_of("approver")
        .post(reverse("who-grant"), {"endpoint": "default", "tick": [tick]})
        .status_code
        == 403
    )
    assert client_of("admin").get(reverse("who-grant")).status_code == 405


@pytest.mark.exhaustive
def test_odd_addresses_are_answered(client_of: ClientOf, site: Site) -> None:
    client = client_of("viewer")
    for query in (
        "tool=9",
        "tool=x",
        "page=99",
        "agents=9",
        "kind=prompt",
        "risk=no",
        "endpoint=no",
        "agent=no",
        "search=%00",
    ):
        assert client.get(f"{WHO}?{query}").status_code == 200, query


def test_a_page_asks_a_fixed_number_of_questions(client_of: ClientOf, site: Site) -> None:
    client = client_of("viewer")

    def asked(query: str) -> int:
        with CaptureQueriesContext(connection) as questions:
            assert client.get(f"{WHO}?{query}").status_code == 200
        return len(questions)

    one = Tool.objects.filter(server__slug="git")[0]
    assert asked("") <= asked(f"tool={one.pk}&agent=local")  # which asks for that tool once more


def test_an_agents_page_names_the_true_cause(client_of: ClientOf, site: Site) -> None:
    Agent.objects.filter(slug="ci").update(capabilities=[])
    html = (
        client_of("viewer")
        .get(reverse("admin:mcpregistry_agent_change", args=[site.agents["ci"].pk]))
        .content.decode()
    )
    assert "capabilities do not cover" in html
    assert "agent=ci&amp;endpoint=" in html


def test_the_analyzer_shows_what_it_would_change_and_does_it_once_asked(
    client_of: ClientOf, site: Site
) -> None:
    Grant.objects.update(created_at=timezone.now() - timedelta(days=60))
    Tool.objects.update(first_seen_at=timezone.now() - timedelta(days=60))
    html = client_of("viewer").get("/admin/analyzer/").content.decode()
    assert "not analyzed yet" in html
    assert "This page shows the state" not in html
    findings.refresh_findings(timezone.now(), seconds=60)
    html = client_of("viewer").get("/admin/analyzer/").content.decode()
    assert "This page shows the state at" in html
    assert "The grant was not used in the last 30 days." in html or "Replacement" in html
    assert "Narrow grant" not in html
    client = client_of("admin")
    html = client.get("/admin/analyzer/?agent=local").content.decode()
    address = re.search(r'action="(/admin/analyzer/\d+/)"', html)
    key = re.search(r'name="key" value="(\w+)"', html)
    assert address is not None
    assert key is not None
    sent = {"key": key[1], "days": "30"}
    before = {*Grant.objects.values_list("pk", flat=True)}
    assert client_of("approver").post(address[1], sent).status_code == 403
    asked = client.post(address[1], sent).content.decode()
    assert {*Grant.objects.values_list("pk", flat=True)} == before
    sure = re.search(r'name="sure" value="([^"]+)"', asked)
    assert sure is not None
    client.post(address[1], sent | {"sure": sure[1]})
    assert int(address[1].split("/")[-2]) not in {*Grant.objects.values_list("pk", flat=True)}
    assert client.get(address[1]).status_code == 405


def test_a_guess_of_the_analyzer_is_proven_before_it_can_be_applied(
    client_of: ClientOf, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = Tool.objects.filter(server__slug="git")[0]
    now = timezone.now()
    grant = Grant.objects.create(agent=Agent.objects.get(slug="ci"), tool=tool)
    Grant.objects.update(created_at=now - timedelta(days=60))
    Invocation.objects.bulk_create(
        Invocation(
            id=f"same-{number}",
            state="succeeded",
            agent_slug="ci",
            endpoint_slug="default",
            server_slug="git",
            tool_name=tool.name,
            exposed_name=tool.name,
            origin="http",
            writer="w",
            binding="b",
            arguments='{"repo":"docs"}',
            received_at=now - timedelta(days=1, minutes=number),
        )
        for number in range(15)
    )
    Invocation.objects.exclude(id__startswith="same-").delete()
    monkeypatch.setattr(analyzer, "MOST_CALLS", 10)
    findings.refresh_findings(now, seconds=60)
    client = client_of("admin")
    address = f"/admin/analyzer/{grant.pk}/"
    page = client.get("/admin/analyzer/?agent=ci").content.decode()
    card = page[page.index(f'id="grant-{grant.pk}"') :].partition("</section>")[0]
    assert "Read all calls" in card
    assert "Narrow grant" not in card
    proven = client.get(f"/admin/analyzer/?grant={grant.pk}").content.decode()
    assert "Checked against all 15 calls" in proven
    assert f'action="{address}"' in proven
    assert "Narrow grant" in proven
    (row,) = client.get(f"/api/v1/access/proposals?grant={grant.pk}").json()["items"]
    assert row["proposal"]["complete"] is True
    assert row["proposal"]["calls"] == 15
