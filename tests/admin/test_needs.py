"""What the overview lists under "Action required": all that waits for a decision, and work that no
worker takes."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.urls import reverse
from django.utils import timezone

from controlplane import doctor, health
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.ids import make_ordered_id
from mcpregistry.models import (
    ApprovalRequest,
    Channel,
    Configuration,
    Conversation,
    Delivery,
    EnergyPool,
    Install,
    Invocation,
    RegistrySource,
    Server,
    ServerTest,
    Token,
)
from mcpregistry.services.access import tokens
from subagents.models import (
    EffortAgent,
    ExpertTool,
    ExpertVersion,
    MaintenanceRequest,
    Provider,
    Run,
)
from tests.admin.conftest import ClientOf
from tests.fakes.held import hold
from tests.fakes.seed import ACTOR, Site

NEED = r'<b class="sn-(\w+)">(\d+)</b> ([^<]+)<'


def overview(client_of: ClientOf) -> str:
    return client_of("root").get(reverse("admin:index")).content.decode()


@pytest.mark.both_databases
def test_all_kinds_of_work_that_wait_are_named_with_their_pages(
    client_of: ClientOf, site: Site
) -> None:
    now = timezone.now()
    past = timezone.now() - timedelta(minutes=2)
    server = Server.objects.all()[0]
    Install.objects.create(
        ecosystem="npm", package="waits", requested_by="x", state="waiting", state_at=now
    )
    Install.objects.create(
        ecosystem="npm", package="stuck", requested_by="x", state="approved", state_at=past
    )
    RegistrySource.objects.create(
        slug="broken", base_url="https://a.example", error="It did not answer."
    )
    RegistrySource.objects.create(slug="stuck", base_url="https://b.example", asked_at=past)
    EnergyPool.objects.create(slug="dry", level=0.0, level_at=now, regeneration=0.0)
    ServerTest.objects.create(server=server, requested_at=past)
    ended = Conversation.objects.create(agent=site.agents["local"], state=Conversation.State.ENDED)
    EffortAgent.objects.create(
        expert=ExpertTool.objects.create(
            name="speaks", description="d", agent=site.agents["local"]
        ),
        focus=ended.pk,
    )
    needs = re.findall(r'<li><a href="([^"]+)">' + NEED, overview(client_of))
    said = {words: (kind, count) for _, kind, count, words in needs}
    stuck = "waited for a worker for 2 minutes; run manage.py doctor"
    assert said["packages wait for approval"] == ("warn", "2"), "the site has one already"
    for words, kind in {
        "registry could not be read": "warn",
        "hosted agent does not answer: its selected conversation has ended": "warn",
        "energy pool is empty": "bad",
        f"package has {stuck}": "bad",
        f"registry update has {stuck}": "bad",
        f"server test has {stuck}": "bad",
    }.items():
        assert said[words] == (kind, "1")
    for link, *_ in needs:
        assert client_of("root").get(link.replace("&amp;", "&")).status_code == 200, link


@pytest.mark.both_databases
def test_all_work_that_only_a_worker_does_is_named_once_none_takes_it(
    client_of: ClientOf, site: Site
) -> None:
    past = timezone.now() - timedelta(minutes=2)
    request = hold(waiting_as="task")
    Invocation.objects.filter(pk=request.call_id).update(state=InvocationState.READY)
    ApprovalRequest.objects.filter(pk=request.pk).update(decided_at=past)
    channel = Channel.objects.create(name="ops", kind="webhook")
    Delivery.objects.create(
        channel=channel,
        event="asked",
        key="k",
        body="{}",
        created_at=past,
        next_at=past,
        give_up_at=timezone.now(),
    )
    Provider.objects.create(slug="slow", kind="scripted", test_asked_at=past)
    Provider.objects.create(slug="draft", kind="openai")
    expert = ExpertTool.objects.create(name="speaks", description="d", agent=site.agents["local"])
    EffortAgent.objects.create(expert=expert, idle_since=past)
    version = ExpertVersion.objects.create(expert=expert, number=1)
    for state, lease in (("queued", None), ("running", past)):
        Run.objects.create(
            id=make_ordered_id(),
            version=version,
            expert_name="speaks",
            state=state,
            created_at=past,
            lease_until=lease,
        )
    MaintenanceRequest.objects.create(kind="search_servers", requested_by="x", created_at=past)
    stuck = "waited for a worker for 2 minutes; run manage.py doctor"
    said = {words: (kind, count) for kind, count, words in re.findall(NEED, overview(client_of))}
    for words, count in {
        f"approved call has {stuck}": "1",
        f"notification has {stuck}": "1",
        f"hosted agent has {stuck}": "1",
        f"provider test has {stuck}": "1",
        "runs have waited for a worker, the oldest one for 2 minutes; run manage.py doctor": "2",
        f"maintenance request has {stuck}": "1",
    }.items():
        assert said[words] == ("bad", count)
    told = {finding.what for finding in doctor._check_work() if not finding.ok}
    assert "2 runs have waited for a worker, the oldest one for 2 minutes" in told
    assert "2 runs have waited for a worker" in health._describe_unclaimed_work()
    assert said["provider is a draft: confirm it to use its models"] == ("warn", "1")


@pytest.mark.exhaustive
@pytest.mark.both_databases
def test_work_that_waits_rightly_is_not_called_forgotten(client_of: ClientOf, site: Site) -> None:
    now = timezone.now()
    past = timezone.now() - timedelta(minutes=2)
    soon = now + timedelta(minutes=5)
    version = ExpertVersion.objects.create(
        expert=ExpertTool.objects.create(
            name="sleeps", description="d", agent=site.agents["local"]
        ),
        number=1,
    )
    for due in ({"lease_until": soon}, {"wake_at": soon}, {"idle_since": now}):
        Run.objects.create(
            id=make_ordered_id(),
            version=version,
            expert_name="sleeps",
            state="running",
            created_at=past,
            **due,
        )

    def asked(**more: Any) -> MaintenanceRequest:
        return MaintenanceRequest.objects.create(
            kind="test_server", server_slug="git", requested_by="x", created_at=past, **more
        )

    asked(lease_until=soon)
    waits = asked()  # the one before it has the server
    MaintenanceRequest.objects.create(
        kind="search_servers", requested_by="x", created_at=past, wish="pause"
    )
    assert "waited for a worker" not in overview(client_of)
    MaintenanceRequest.objects.filter(pk=waits.pk).update(server_slug="github")
    assert "maintenance request has waited for a worker" in overview(client_of)
    for slug in ("time", "notes"):
        MaintenanceRequest.objects.create(
            kind="test_server",
            server_slug=slug,
            requested_by="x",
            created_at=past,
            lease_until=soon,
        )
    assert "waited for a worker" not in overview(client_of), "the worker's hands are full"
    MaintenanceRequest.objects.filter(lease_until__isnull=False).delete()
    Configuration.objects.update(sub_agent_enabled=False)
    assert "waited for a worker" not in overview(client_of), "the sub-agent is switched off"
    assert health._describe_unclaimed_work() == "ok"
    assert all(finding.ok for finding in doctor._check_work())


@pytest.mark.exhaustive
@pytest.mark.both_databases
def test_a_token_that_was_rotated_and_those_of_others_need_nobody(
    client_of: ClientOf, site: Site
) -> None:
    def ending() -> list[str]:
        return [
            count
            for _, count, words in re.findall(NEED, overview(client_of))
            if words.startswith("token")
        ]

    Token.objects.all().delete()
    soon = timezone.now() + timedelta(days=3)
    old, _ = tokens.issue_token(name="ci", agent=site.agents["local"], actor=ACTOR, expires_at=soon)
    tokens.issue_token(name="mine", user=site.people["root"], actor=ACTOR, expires_at=soon)
    tokens.issue_token(name="theirs", user=site.people["viewer"], actor=ACTOR, expires_at=soon)
    assert ending() == ["2"]
    Token.objects.filter(pk=old.pk).update(created_at=timezone.now() - timedelta(days=60))
    old.refresh_from_db()
    tokens.rotate_token(token=old, actor=ACTOR)
    assert ending() == ["1"]


LEFT_OUT = "Tool a is shown to hosts with changes: icons does not follow the MCP specification.\nb: its name is not text"


@pytest.mark.exhaustive
def test_servers_with_left_out_definitions_are_named_until_they_are_fine(
    client_of: ClientOf, site: Site
) -> None:
    def named() -> list[tuple[str, str]]:
        return re.findall(
            r'<li><a href="([^"]+)"><b class="sn-warn">([^<]+)</b> offers items that are not passed on to hosts',
            overview(client_of),
        )

    assert named() == []
    git = site.servers["git"]
    time = site.servers["time"]
    Server.objects.filter(pk__in=(git.pk, time.pk)).update(left_out=LEFT_OUT, lifecycle="active")
    assert [name for _, name in named()] == ["git", "time"]
    (link, _), _ = named()
    assert 'id="left-out"' in client_of("root").get(link.partition("#")[0]).content.decode()
    Server.objects.filter(pk=git.pk).update(left_out=LEFT_OUT.partition("\n")[0])
    Server.objects.filter(pk=time.pk).update(lifecycle="disabled")
    assert named() == [], "changes alone and disabled servers are not listed"


def test_many_servers_with_left_out_definitions_share_a_row(
    client_of: ClientOf, site: Site
) -> None:
    for number in range(12):
        Server.objects.create(
            slug=f"odd-{number:02}", lifecycle="active", left_out="b: its name is not text"
        )
    html = overview(client_of)
    assert html.count("offers items that are not passed on to hosts") == 10
    assert (
        "warn",
        "2",
        "more servers offer items that are not passed on to hosts: see why",
    ) in re.findall(NEED, html)
