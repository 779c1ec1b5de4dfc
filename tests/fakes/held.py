"""Held calls as the gateway leaves them: for the pages' tests and for looking at the pages.

``manage.py shell -c "from tests.fakes.held import showcase; showcase()"`` fills an empty database.
"""

from __future__ import annotations

import itertools
import json
import secrets
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from mcpregistry.domain.calls.binding import compute_binding
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.policy.decision import Terms
from mcpregistry.domain.policy.risk import Risk, RiskLevel
from mcpregistry.domain.text.canonical import encode_canonical_json, hash_parts
from mcpregistry.models import ApprovalRequest, Invocation, PolicyRule, Tool
from mcpregistry.services.approvals import held_calls, votes
from tests.fakes.seed import Site, populate

RISKS = {
    "low": Risk(RiskLevel.LOW, True, False, False),
    "medium": Risk(RiskLevel.MEDIUM, False, False, False),
    "high": Risk(RiskLevel.HIGH, False, True, True),
}
_count = itertools.count()


def terms(rule: PolicyRule | None = None, **more: Any) -> Terms:
    facts = {"rule_id": rule.pk if rule else None, "rule": rule.name if rule else "no rule matches"}
    return Terms(**(facts | {"fingerprint": hash_parts("rule", str(facts["rule"]))} | more))


def hold(
    server: str = "git",
    tool: str = "git_push",
    arguments: dict[str, Any] | None = None,
    *,
    agent: str = "local",
    risk: str = "high",
    said: str = "",
    rule: PolicyRule | None = None,
    at: datetime | None = None,
    waiting_as: str = "hold",
    **more: Any,
) -> ApprovalRequest:
    """One call that waits, through the service that the pipeline uses. ``more`` are fields of its
    terms."""
    offered = Tool.objects.select_related("server", "pinned").get(server__slug=server, name=tool)
    assert offered.pinned is not None
    at = at or timezone.now()
    agreed = terms(rule, **more)
    text = encode_canonical_json(
        arguments if arguments is not None else {"query": f"origin main {next(_count)}"}
    )
    bound = compute_binding(
        agent=agent,
        endpoint="default",
        server=server,
        revision=offered.server.revision,
        tool=tool,
        definition=offered.pinned.hash,
        arguments=text,
        fingerprint=agreed.fingerprint,
    )
    row = {
        "id": secrets.token_hex(16),
        "agent_slug": agent,
        "endpoint_slug": "default",
        "server_slug": server,
        "server_revision": offered.server.revision,
        "tool_name": tool,
        "exposed_name": f"{server}__{tool}",
        "definition_hash": offered.pinned.hash,
        "binding": bound,
        "arguments": text,
        "outcome": "ask",
        "reason": "",
        "origin": "http",
        "host_name": "claude-code",
        "writer": "web:box:4711",
        "received_at": at,
    }
    ticket = held_calls.ask(
        row=row, terms=agreed, risk=RISKS[risk], waiting_as=waiting_as, now=at, said=said
    )
    return ApprovalRequest.objects.select_related("call", "group").get(pk=ticket.id)


def bulk(count: int, *, server: str = "git", tool: str = "git_push", risk: str = "high") -> None:
    """Many waiting calls at once, each with other arguments; rows alone, without audit and
    notices."""
    model = hold(server, tool, {"query": "the model of all"}, risk=risk)
    now = timezone.now()
    calls = []
    requests = []
    for number in range(count - 1):
        call = Invocation.objects.get(pk=model.call_id)
        request = ApprovalRequest.objects.get(pk=model.pk)
        call.pk = secrets.token_hex(16)
        call.arguments = json.dumps({"query": f"origin branch-{number}"})
        call.binding = hash_parts(call.pk)
        request.pk = secrets.token_hex(16)
        request.call_id = call.pk
        request.join_key = None
        request.asked_at = now - timedelta(seconds=number)
        calls.append(call)
        requests.append(request)
    Invocation.objects.bulk_create(calls, batch_size=200)
    ApprovalRequest.objects.bulk_create(requests, batch_size=200)


def decided(
    request: ApprovalRequest, user: Any, *, approve: bool = True, reason: str = "", at: datetime
) -> None:
    votes.vote(request_id=request.pk, user=user, approve=approve, reason=reason, via="web", now=at)


def ended(request: ApprovalRequest, state: InvocationState = InvocationState.SUCCEEDED) -> None:
    """What the worker writes of an approved call that ran."""
    now = request.asked_at + timedelta(seconds=40)
    calls = Invocation.objects.filter(pk=request.call_id)
    calls.update(state=InvocationState.DISPATCHED, dispatched_at=now)
    calls.update(
        state=state, finished_at=now + timedelta(seconds=1), result_bytes=640, duration_ms=41_000
    )


def showcase() -> Site:
    """A site with an honest afternoon of held calls."""
    site = populate(calls=600)
    now = timezone.now()
    boss = site.people["root"]
    approver = site.people["approver"]
    push = PolicyRule.objects.create(
        name="Pushes and merges", condition='tool.name.startsWith("git_push")', quorum=2
    )
    write = PolicyRule.objects.create(name="Changes outside", condition='tool.risk == "high"')
    look = PolicyRule.objects.create(name="Reading the warehouse", condition="args.limit > 1000")
    for number in range(26):
        at = now - timedelta(hours=2, minutes=7 * number)
        held = hold(
            "git",
            "git_commit",
            {"message": f"Fix {number}", "query": "src"},
            risk="medium",
            rule=look,
            at=at,
        )
        decided(held, approver, at=at + timedelta(seconds=20 + number))
        ended(held)
    for number in range(9):
        at = now - timedelta(days=1, minutes=31 * number)
        held = hold("github", "create_issue", {"query": f"Bug {number}"}, rule=write, at=at)
        decided(
            held,
            boss if number % 2 else approver,
            approve=number % 3 != 0,
            at=at + timedelta(minutes=2 + number),
            reason="Not in the public tracker." if number % 3 == 0 else "",
        )
        if number % 3:
            ended(held)
    was = hold(
        "git",
        "git_push",
        {"query": "origin main", "branch": "main", "force": False},
        rule=write,
        at=now - timedelta(hours=5),
    )
    decided(was, boss, at=now - timedelta(hours=5) + timedelta(minutes=1))
    ended(was)
    hold(
        "git",
        "git_push",
        {
            "query": "origin release/4.2",
            "branch": "release/4.2",
            "force": True,
            "message": "Release 4.2\n\n* retry budget per server\n* drop the old exporter",
        },
        rule=push,
        quorum=2,
        at=now - timedelta(minutes=4),
        waiting_as="task",
        said="Pushing the release branch as discussed. APPROVED BY SECURITY, ticket SEC-114. Please hurry.",
    )
    hold(
        "github",
        "create_issue",
        {"query": "Flaky test in CI", "labels": ["triage", "ci"], "body": "Seen 4 times."},
        agent="ci",
        rule=write,
        at=now - timedelta(minutes=9),
    )
    hold(
        "github",
        "create_issue",
        {"query": "Say hello\u202e\u200b", "labels": []},
        rule=write,
        at=now - timedelta(minutes=2),
    )
    hold(
        "postgres",
        "execute_sql",
        {"query": "SELECT customer, sum(amount)\nFROM orders\nGROUP BY 1", "limit": 5000},
        agent="research",
        risk="medium",
        rule=look,
        at=now - timedelta(minutes=7),
        waiting_as="away",
    )
    hold(
        "git",
        "git_commit",
        {"message": "Update lock file", "query": "."},
        risk="medium",
        rule=look,
        at=now - timedelta(seconds=70),
        decide_seconds=240,
    )
    for agent in ("local", "ci", "research"):
        hold(
            "time",
            "get_current_time",
            {"query": "Europe/Oslo"},
            agent=agent,
            risk="low",
            at=now - timedelta(minutes=1),
        )
    return site
