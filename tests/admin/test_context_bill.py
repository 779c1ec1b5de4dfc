"""The context bill: figures of the very list that hosts get, and tools that are hidden by narrower
grants."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from mcpregistry.calls import context_bill
from mcpregistry.calls.catalog import build_current_catalogue
from mcpregistry.calls.context_bill import build_bill
from mcpregistry.domain.text.canonical import encode_lossy_json
from mcpregistry.domain.text.undo_texts import MOST, explain_undo
from mcpregistry.models import Configuration, Endpoint, Grant, Invocation, Tool
from mcpregistry.services.policy import hiding
from mcpregistry.services.records import call_hours
from subagents.models import ExpertTool
from tests.admin.conftest import ClientOf
from tests.fakes.seed import Site, govern

PAGE = "/admin/context-bill/"
HIDE = "/admin/context-bill/hide/"


def test_it_counts_what_hosts_are_sent_and_what_was_called(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = site.agents["local"]
    endpoint = Endpoint.objects.get(slug="default")
    now = timezone.now()
    endpoint.hide_unavailable = False
    endpoint.save()
    aged()
    seen = build_current_catalogue(agent, endpoint, now=now)
    found = build_bill(agent, endpoint, now=now)
    assert seen is not None
    assert found is not None
    sizes = {
        entry.name: round(len(encode_lossy_json(entry.listing).encode()) / 4)
        for entry in seen.entries.values()
    }
    assert {line.name: line.tokens for line in found.lines} == sizes
    assert found.total == sum(sizes.values()) + context_bill.estimate_text_tokens(
        seen.merge_instructions()
    )
    calls = Invocation.objects.filter(agent_slug="local", endpoint_slug="default")
    for line in found.lines:
        assert line.calls == calls.filter(server_slug=line.server, tool_name=line.key).count()
    assert {line.name for line in found.unused} == {
        line.name for line in found.lines if not line.calls
    }
    monkeypatch.setattr(context_bill, "MOST_CALLS", 1)
    partly = build_bill(agent, endpoint, now=now)
    assert partly is not None
    assert (partly.all, partly.unused, partly.looked) == (False, [], 1)
    call_hours.count_due(now)
    counted = build_bill(agent, endpoint, now=now)
    assert counted is not None
    assert counted.all, "the counted hours know every tool that was called"
    assert counted.lines == found.lines
    assert counted.unused == found.unused


def aged() -> None:
    """As if all had been there for long."""
    before = timezone.now() - timedelta(days=90)
    Grant.objects.update(created_at=before)
    Tool.objects.update(first_seen_at=before)


def unused(site: Site, *, by_list: bool = False) -> set[str]:
    agent = site.agents["local"]
    endpoint = Endpoint.objects.get(slug="default")
    found = build_bill(agent, endpoint, now=timezone.now(), holder=endpoint if by_list else agent)
    assert found is not None
    return {f"{line.server}::{line.key}" for line in found.unused}


@pytest.mark.exhaustive
def test_use_is_counted_as_far_as_hiding_reaches(site: Site) -> None:
    Endpoint.objects.filter(slug="default").update(hide_unavailable=False, scope="listed")
    endpoint = Endpoint.objects.get(slug="default")
    for grant in Grant.objects.filter(agent=site.agents["local"]):
        Grant.objects.create(
            endpoint=endpoint, server=grant.server, tool=grant.tool, kind=grant.kind
        )
    aged()
    Invocation.objects.all().delete()
    first, second, *_ = sorted(unused(site))
    assert unused(site) == unused(site, by_list=True)
    called(first, agent_slug="local", endpoint_slug="elsewhere")
    called(second, agent_slug="other", endpoint_slug="default")
    assert (first in unused(site), second in unused(site)) == (False, True)
    assert (first in unused(site, by_list=True), second in unused(site, by_list=True)) == (
        True,
        False,
    )


def called(name: str, **by: str) -> None:
    server, _, tool = name.partition("::")
    Invocation.objects.create(
        id=by["agent_slug"],
        state="succeeded",
        server_slug=server,
        tool_name=tool,
        received_at=timezone.now(),
        **by,
    )


def test_what_is_new_or_not_kept_so_long_is_not_unused(site: Site) -> None:
    Endpoint.objects.update(hide_unavailable=False)
    Invocation.objects.all().delete()
    assert not unused(site)
    aged()
    old = unused(site)
    young = Tool.objects.filter(server__slug="git")[0]
    Tool.objects.filter(pk=young.pk).update(first_seen_at=timezone.now())
    assert old - unused(site) == {str(young)}
    Configuration.objects.update(keep_calls_days=7)
    assert not unused(site)


def test_all_that_is_unused_is_asked_about_as_one_choice(client_of: ClientOf, site: Site) -> None:
    Endpoint.objects.update(hide_unavailable=False)
    aged()
    Invocation.objects.all().delete()
    client = client_of("admin")
    sent = {"agent": "local", "endpoint": "default", "days": "30", "unused": "1"}
    asked = client.post(HIDE, sent).content.decode()
    sure = re.search(r'name="sure" value="([^"]+)"', asked)
    assert sure is not None
    assert 'name="unused" value="1"' in asked
    assert 'name="tick"' not in asked
    called(min(unused(site)), agent_slug="local", endpoint_slug="default")
    assert client.post(HIDE, sent | {"sure": sure[1]}).status_code == 409, (
        "it is not the same any more"
    )


def test_undo_is_promised_only_where_it_is_so() -> None:
    assert "for a minute" in explain_undo(MOST)
    assert "for a minute" not in explain_undo(MOST + 1)


def test_hiding_says_before_and_after_and_leaves_the_rest(client_of: ClientOf, site: Site) -> None:
    agent = site.agents["local"]
    endpoint = Endpoint.objects.get(slug="default")
    Endpoint.objects.update(hide_unavailable=False)
    endpoint.refresh_from_db()
    before = build_bill(agent, endpoint, now=timezone.now())
    assert before is not None
    assert (
        hiding.count_grant_changes(agent, [Tool.objects.get(server__slug="git", name="git_status")])
        > 1
    )
    gone = next(line for line in before.lines if line.server == "git")
    sent = {"agent": "local", "endpoint": "default", "days": "30", "tick": [str(gone.tool_id)]}
    assert client_of("approver").post(HIDE, sent).status_code == 403
    client = client_of("admin")
    asked = client.post(HIDE, sent).content.decode()
    assert f"has about {before.total - gone.tokens:,} tokens" in asked
    sure = re.search(r'name="sure" value="([^"]+)"', asked)
    assert sure is not None
    assert Grant.objects.filter(agent=agent, server__slug="git").exists()
    done = client.post(HIDE, sent | {"sure": sure[1]}, follow=True).content.decode()
    assert "Hidden tools: 1. Revoked grants: 1. " in done
    after = build_bill(agent, endpoint, now=timezone.now())
    assert after is not None
    assert {line.name for line in before.lines} - {line.name for line in after.lines} == {gone.name}
    assert after.total == before.count_without({gone.tool_id})
    assert not Grant.objects.filter(agent=agent, server__slug="git").exists()


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize(
    "query", ["", "agent=no&endpoint=no", "days=x", "agent=research&endpoint=readonly"]
)
def test_the_page_opens_for_who_may_only_look(client_of: ClientOf, site: Site, query: str) -> None:
    html = client_of("viewer").get(f"{PAGE}?{query}").content.decode()
    assert "Context bill" in html
    assert "Hide selected tools" not in html
    assert client_of("admin").get(reverse("context-bill-hide")).status_code == 405


@pytest.mark.exhaustive
def test_expert_tools_that_the_agent_is_shown_are_on_the_bill(
    client_of: ClientOf, site: Site
) -> None:
    govern(site)
    agent = site.agents["ci"]
    endpoint = Endpoint.objects.get(slug="default")
    now = timezone.now()
    expert = ExpertTool.objects.get()
    expert.users.set([])
    before = build_bill(agent, endpoint, now=now)
    expert.users.set([agent])
    expert.endpoints.set([endpoint])
    called(f"expert::{expert.name}", agent_slug="ci")
    after = build_bill(agent, endpoint, now=now)
    assert before is not None
    assert after is not None
    (line,) = [line for line in after.lines if line.own]
    assert (line.name, line.calls) == (expert.name, 1)
    assert after.total == before.total + line.tokens
    assert line not in after.unused
    page = client_of("admin").get(PAGE, {"agent": "ci", "endpoint": "default"}).content.decode()
    assert expert.name in page
