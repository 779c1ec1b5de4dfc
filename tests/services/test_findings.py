"""What the access analyzer shows was worked out ahead: the oldest first, and never of a grant that
is another now."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from mcpregistry.models import AccessFinding, Agent, Endpoint, Grant, Invocation, Server, Tool
from mcpregistry.services.access import agents, grants
from mcpregistry.services.definitions import decisions, observe
from mcpregistry.services.policy import findings, past_calls
from mcpregistry.services.policy.analyzer import (
    DAYS,
    GrantProposal,
    PastUse,
    analyse,
    group_stopped_by_tool,
    propose,
    select_candidates,
)

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
ACTOR = "test"
NOW = timezone.now()


@pytest.fixture
def ann() -> Agent:
    """With one server that it uses a part of, one tool with equal arguments, and one that it never
    uses."""
    agent = agents.save_agent(agent=Agent(slug="ann"), actor=ACTOR)
    for slug in ("git", "idle"):
        server = Server.objects.create(slug=slug, command=["x"], lifecycle="active")
        observe.observe(
            server=server,
            listed=[{"name": f"t{n}", "inputSchema": {"type": "object"}} for n in range(4)],
        )
        decisions.approve_waiting(server=server, actor=ACTOR)
        grants.grant_access(agent=agent, server=server, actor=ACTOR)
    grants.grant_access(
        agent=agent, tool=Tool.objects.get(server__slug="git", name="t1"), actor=ACTOR
    )
    Grant.objects.update(created_at=NOW - timedelta(days=180))
    Tool.objects.update(first_seen_at=NOW - timedelta(days=180))
    Invocation.objects.bulk_create(
        Invocation(
            id=f"c{n}",
            state="succeeded",
            agent_slug="ann",
            endpoint_slug="default",
            server_slug="git",
            tool_name="t1",
            exposed_name="t1",
            origin="http",
            writer="w",
            binding="b",
            arguments=json.dumps({"repo": "docs", "n": n}),
            received_at=NOW - timedelta(hours=n + 1),
        )
        for n in range(40)
    )
    return agent


def facts(found: GrantProposal) -> list[Any]:
    after = [(str(row), row.uri, row.argument_pins) for row in found.after]
    return [
        found.grant.pk,
        found.kind,
        found.says,
        found.key,
        after,
        found.pins,
        found.looked,
        found.stops,
        found.judged,
    ]


@pytest.mark.exhaustive(one_in=4)
@pytest.mark.parametrize("days", findings.PERIODS)
def test_findings_are_what_the_analyzer_proposes(ann: Agent, days: int) -> None:
    assert findings.refresh_findings(NOW, seconds=60) == 3
    rows = list(select_candidates().order_by("pk"))
    shown = findings.load_findings(rows, days=days)
    proposed = analyse(rows, days=days, now=NOW)
    assert len(proposed) == 3
    assert [facts(shown.proposals[row.pk]) for row in rows] == [facts(each) for each in proposed]
    assert shown.as_of == NOW


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize("together", [past_calls._READ_TOGETHER, 0])
def test_grants_of_every_form_get_what_the_analyzer_proposes_of_each_alone(
    ann: Agent, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    # 0: every server has too many calls
    monkeypatch.setattr(past_calls, "_READ_TOGETHER", together)
    git = Server.objects.get(slug="git")
    place = Endpoint.objects.create(slug="default")
    other = Agent.objects.create(slug="bob")
    elsewhere = Endpoint.objects.create(slug="other")
    prompt = Tool.objects.create(
        server=git, name="ask", kind="prompt", first_seen_at=NOW, last_seen_at=NOW
    )
    odd = Tool.objects.create(server=git, name="prompt:ask", first_seen_at=NOW, last_seen_at=NOW)
    for holder in ({"agent": ann}, {"agent": other}, {"endpoint": place}, {"endpoint": elsewhere}):
        for kind in ("", "tool", "prompt", "resource"):
            Grant.objects.filter(**holder, server=git, kind=kind).delete()
            Grant.objects.create(**holder, server=git, kind=kind)
        for tool in (prompt, odd, *Tool.objects.filter(name__in=["t1", "t2"], server=git)):
            Grant.objects.filter(**holder, tool=tool).delete()
            Grant.objects.create(**holder, tool=tool)
    Grant.objects.update(created_at=NOW - timedelta(days=180))
    call = Invocation.objects.get(pk="c3")
    for number, (name, binding) in enumerate(
        (("prompt:ask", "b"), ("tool:prompt:ask", "b"), ("t2", ""))
    ):
        call.pk = f"d{number}"
        call.tool_name = name
        call.binding = binding
        call.state = "succeeded" if binding else "denied"
        call.save(force_insert=True)
    findings.refresh_findings(NOW, seconds=60)
    rows = list(select_candidates().order_by("pk"))
    for days in findings.PERIODS:
        shown = findings.load_findings(rows, days=days).proposals
        alone = {each.grant.pk: facts(each) for each in analyse(rows, days=days, now=NOW)}
        assert {pk: facts(each) for pk, each in shown.items()} == alone
        assert 0 < len(alone) < len(rows)


@pytest.mark.exhaustive
def test_grants_that_nobody_uses_need_no_query_of_their_own(ann: Agent) -> None:
    tools = [
        Tool(
            server_id=Server.objects.get(slug="idle").pk,
            name=f"more{n}",
            first_seen_at=NOW,
            last_seen_at=NOW,
        )
        for n in range(60)
    ]
    findings.refresh_findings(NOW, seconds=60)
    with CaptureQueriesContext(connection) as few:
        findings.refresh_findings(NOW + findings.RENEWED, seconds=60)
    Grant.objects.bulk_create(
        Grant(agent=ann, tool=tool) for tool in Tool.objects.bulk_create(tools)
    )
    Grant.objects.update(created_at=NOW - timedelta(days=180))
    with CaptureQueriesContext(connection) as many:
        assert findings.refresh_findings(NOW + 2 * findings.RENEWED, seconds=60) == 63
    assert len(many) <= len(few) + 1


def test_examples_of_stopped_calls_are_kept(ann: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    use = PastUse("c1", "t1", NOW, {"repo": "docs"})

    def stopping(*given: Any, **named: Any) -> GrantProposal | None:
        found = propose(*given, **named)
        return found and replace(found, stops=7, unjudged=2, stopped=(use,))

    monkeypatch.setattr(findings, "propose", stopping)
    findings.refresh_findings(NOW, seconds=60)
    row = select_candidates().get(server__slug="git")
    shown = findings.load_findings([row], days=DAYS).proposals[row.pk]
    assert (shown.stops, shown.unjudged, shown.judged) == (7, 2, 38)
    assert group_stopped_by_tool(shown) == [("t1", 1, [replace(use, arguments=None)])], (
        "arguments stay with the call"
    )


def test_a_page_reads_findings_in_a_fixed_number_of_queries(ann: Agent) -> None:
    findings.refresh_findings(NOW, seconds=60)
    rows = list(select_candidates())
    with CaptureQueriesContext(connection) as few:
        findings.load_findings(rows[:1], days=DAYS)
    with CaptureQueriesContext(connection) as all_of_them:
        findings.load_findings(rows, days=DAYS)
    assert len(all_of_them) <= len(few) + 1 == 2 + (len(few) - 1)
    assert not any("mcpregistry_invocation" in each["sql"] for each in all_of_them)


def test_a_changed_grant_shows_no_older_finding(ann: Agent) -> None:
    findings.refresh_findings(NOW, seconds=60)
    Grant.objects.filter(server__slug="idle").update(note="changed")
    rows = list(select_candidates())
    shown = findings.load_findings(rows, days=DAYS)
    changed = select_candidates().get(server__slug="idle")
    assert {row.pk for row in rows} - {*shown.made} == {changed.pk}
    assert changed.pk not in shown.proposals
    findings.refresh_findings(NOW + findings.RENEWED, seconds=60)
    assert findings.load_findings([changed], days=DAYS).proposals[changed.pk].kind == "withdraw"


def test_a_proposal_with_a_deleted_tool_is_not_shown(ann: Agent) -> None:
    findings.refresh_findings(NOW, seconds=60)
    finding = AccessFinding.objects.get(grant__server__slug="git")
    finding.body[str(DAYS)]["after"][0]["tool_id"] = 10**6
    finding.save()
    row = select_candidates().get(server__slug="git")
    assert not findings.load_findings([row], days=DAYS).proposals


@pytest.mark.exhaustive
def test_a_pass_begins_with_what_was_never_analyzed_then_with_the_oldest(
    ann: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "_BATCH", 1)
    keys = [
        row.pk
        for row in sorted(
            select_candidates(), key=lambda row: (past_calls.get_grant_server(row).pk, row.pk)
        )
    ]
    for number in range(3):
        assert findings.refresh_findings(NOW + timedelta(minutes=number), seconds=0) == 1
    made = dict(AccessFinding.objects.values_list("pk", "made_at"))
    assert [made[key] for key in keys] == [NOW + timedelta(minutes=number) for number in range(3)]
    assert findings.refresh_findings(NOW + timedelta(minutes=3), seconds=0) == 0, (
        "all are new enough"
    )
    later = NOW + findings.RENEWED
    assert findings.refresh_findings(later, seconds=0) == 1
    assert AccessFinding.objects.get(pk=keys[0]).made_at == later


@pytest.mark.exhaustive
def test_after_a_clock_was_set_back_findings_of_the_future_are_made_anew(ann: Agent) -> None:
    findings.refresh_findings(NOW, seconds=60)
    assert findings.refresh_findings(NOW - timedelta(minutes=5), seconds=60) == 3


def test_a_grant_that_is_deleted_during_a_pass_gets_no_finding(
    ann: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deleting(*given: Any, **named: Any) -> GrantProposal | None:
        Grant.objects.filter(server__slug="idle").delete()
        return propose(*given, **named)

    monkeypatch.setattr(findings, "propose", deleting)
    findings.refresh_findings(NOW, seconds=60)
    assert AccessFinding.objects.count() == Grant.objects.count() == 2
