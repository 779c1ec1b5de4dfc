"""What the access analyzer shows was worked out ahead: the oldest first, and never of a grant that is another now."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from mcpregistry.models import AccessFinding, Agent, Grant, Invocation, Server, Tool
from mcpregistry.services.access import agents, grants
from mcpregistry.services.definitions import decisions, observe
from mcpregistry.services.policy import findings
from mcpregistry.services.policy.analyzer import DAYS, Proposal, Use, analyse, candidates, stopped_by_tool

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
ACTOR, NOW = "test", timezone.now()


@pytest.fixture
def ann() -> Agent:
    """With one server that it uses a part of, one tool with equal arguments, and one that it never uses."""
    agent = agents.save_agent(agent=Agent(slug="ann"), actor=ACTOR)
    for slug in ("git", "idle"):
        server = Server.objects.create(slug=slug, command=["x"], lifecycle="active")
        observe.observe(server=server, listed=[{"name": f"t{n}", "inputSchema": {"type": "object"}} for n in range(4)])
        decisions.approve_waiting(server=server, actor=ACTOR)
        grants.grant(agent=agent, server=server, actor=ACTOR)
    grants.grant(agent=agent, tool=Tool.objects.get(server__slug="git", name="t1"), actor=ACTOR)
    Grant.objects.update(created_at=NOW - timedelta(days=180))
    Tool.objects.update(first_seen_at=NOW - timedelta(days=180))
    Invocation.objects.bulk_create(
        Invocation(
            id=f"c{n}", state="succeeded", agent_slug="ann", endpoint_slug="default", server_slug="git", tool_name="t1",
            exposed_name="t1", origin="http", writer="w", binding="b", arguments=json.dumps({"repo": "docs", "n": n}),
            received_at=NOW - timedelta(hours=n + 1),
        )
        for n in range(40)
    )  # fmt: skip
    return agent


def facts(found: Proposal) -> list[Any]:
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


@pytest.mark.parametrize("days", findings.PERIODS)
def test_findings_are_what_the_analyzer_proposes(ann: Agent, days: int) -> None:
    assert findings.refresh(NOW) == 3
    rows = list(candidates().order_by("pk"))
    shown = findings.load(rows, days=days)
    proposed = analyse(rows, days=days, now=NOW)
    assert len(proposed) == 3
    assert [facts(shown.proposals[row.pk]) for row in rows] == [facts(each) for each in proposed]
    assert shown.as_of == NOW


def test_examples_of_stopped_calls_are_kept(ann: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    use = Use("c1", "t1", NOW, {"repo": "docs"})

    def stopping(*given: Any, **named: Any) -> list[Proposal]:
        return [replace(each, stops=7, unjudged=2, stopped=(use,)) for each in analyse(*given, **named)]

    monkeypatch.setattr(findings, "analyse", stopping)
    findings.refresh(NOW)
    row = candidates().get(server__slug="git")
    shown = findings.load([row], days=DAYS).proposals[row.pk]
    assert (shown.stops, shown.unjudged, shown.judged) == (7, 2, 38)
    assert stopped_by_tool(shown) == [("t1", 1, [replace(use, arguments=None)])], "arguments stay with the call"


def test_a_page_reads_findings_in_a_fixed_number_of_queries(ann: Agent) -> None:
    findings.refresh(NOW)
    rows = list(candidates())
    with CaptureQueriesContext(connection) as few:
        findings.load(rows[:1], days=DAYS)
    with CaptureQueriesContext(connection) as all_of_them:
        findings.load(rows, days=DAYS)
    assert len(all_of_them) <= len(few) + 1 == 2 + (len(few) - 1)
    assert not any("mcpregistry_invocation" in each["sql"] for each in all_of_them)


def test_a_changed_grant_shows_no_older_finding(ann: Agent) -> None:
    findings.refresh(NOW)
    Grant.objects.filter(server__slug="idle").update(note="changed")
    rows = list(candidates())
    shown = findings.load(rows, days=DAYS)
    changed = candidates().get(server__slug="idle")
    assert {row.pk for row in rows} - {*shown.made} == {changed.pk}
    assert changed.pk not in shown.proposals
    findings.refresh(NOW + findings.RENEWED)
    assert findings.load([changed], days=DAYS).proposals[changed.pk].kind == "withdraw"


def test_a_proposal_with_a_deleted_tool_is_not_shown(ann: Agent) -> None:
    findings.refresh(NOW)
    finding = AccessFinding.objects.get(grant__server__slug="git")
    finding.body[str(DAYS)]["after"][0]["tool_id"] = 10**6
    finding.save()
    row = candidates().get(server__slug="git")
    assert not findings.load([row], days=DAYS).proposals


def test_a_pass_begins_with_what_was_never_analyzed_then_with_the_oldest(
    ann: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "_BATCH", 1)
    keys = list(Grant.objects.order_by("pk").values_list("pk", flat=True))
    for number in range(3):
        assert findings.refresh(NOW + timedelta(minutes=number), seconds=0) == 1
    made = dict(AccessFinding.objects.values_list("pk", "made_at"))
    assert [made[key] for key in keys] == [NOW + timedelta(minutes=number) for number in range(3)]
    assert findings.refresh(NOW + timedelta(minutes=3), seconds=0) == 0, "all are new enough"
    later = NOW + findings.RENEWED
    assert findings.refresh(later, seconds=0) == 1
    assert AccessFinding.objects.get(pk=keys[0]).made_at == later


def test_after_a_clock_was_set_back_findings_of_the_future_are_made_anew(ann: Agent) -> None:
    findings.refresh(NOW)
    assert findings.refresh(NOW - timedelta(minutes=5)) == 3


def test_a_grant_that_is_deleted_during_a_pass_gets_no_finding(ann: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    def deleting(*given: Any, **named: Any) -> list[Proposal]:
        Grant.objects.filter(server__slug="idle").delete()
        return analyse(*given, **named)

    monkeypatch.setattr(findings, "analyse", deleting)
    findings.refresh(NOW)
    assert AccessFinding.objects.count() == Grant.objects.count() == 2
