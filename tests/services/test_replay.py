"""A draft on past calls: held, denied, let through, and what could not be judged."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from mcpregistry.domain.policy.decision import RuleOutcome
from mcpregistry.domain.snapshot_specs import RUNS
from mcpregistry.models import Agent, Configuration, Endpoint, Invocation, PolicyRule, Server
from mcpregistry.services.policy.replay import EXAMPLES, replay
from tests.services.test_policy import new_tool

pytestmark = pytest.mark.django_db
NOW = timezone.now()
ALLOW = RuleOutcome.ALLOW
ASK = RuleOutcome.ASK
DENY = RuleOutcome.DENY


@pytest.fixture(autouse=True)
def world() -> None:
    Configuration.objects.update(default_outcome="allow")
    Agent.objects.create(slug="ann")
    Endpoint.objects.create(slug="default")
    new_tool("commit")


def call(number: int, arguments: Any = None, **fields: Any) -> Invocation:
    values = {
        "id": f"{number:032x}",
        "state": "succeeded",
        "agent_slug": "ann",
        "endpoint_slug": "default",
        "server_slug": "git",
        "tool_name": "commit",
        "exposed_name": "git__commit",
        "binding": "b",
        "origin": "http",
        "writer": "w",
        "received_at": NOW - timedelta(minutes=number),
        "arguments": json.dumps(arguments or {}),
    }
    return Invocation.objects.create(**values | fields)


def draft(**fields: Any) -> PolicyRule:
    return PolicyRule(**{"name": "draft", "outcome": "deny"} | fields)


def run(*drafts: PolicyRule, **options: Any) -> Any:
    return replay(**{"drafts": drafts, "days": 7, "now": NOW} | options)


def test_every_call_is_counted_once():
    for number in range(5):
        call(number, {"amount": number})
    call(10, {"amount": 1}, received_at=NOW - timedelta(days=8))
    call(11, agent_slug="nobody")
    call(12, server_slug="gone")
    call(13, tool_name="gone")
    call(14)
    Invocation.objects.filter(pk=f"{14:032x}").update(arguments="")  # retention
    call(15, ["no object"])
    call(16, state="denied", binding="")
    call(17, server_slug="")
    report = run(draft(condition="args.amount >= 3"))
    assert report.moved == {(ALLOW, DENY): 2, (ALLOW, ALLOW): 3}
    assert (report.judged, report.changed, report.denied, report.allowed, report.held) == (
        5,
        2,
        2,
        3,
        0,
    )
    assert (report.erased, report.gone, report.found) == (1, 4, 10)
    assert report.by_tool == {"git::commit": {DENY: 2, ALLOW: 3}}
    assert [(e.before, e.after) for e in report.examples] == [(ALLOW, DENY)] * 2
    assert not PolicyRule.objects.exists()


def test_calls_without_an_answer_are_counted():
    call(1)
    report = run(draft(condition="args.amount >= 3"))
    assert (report.failed, report.held) == (1, 1)


def test_the_time_of_the_call_counts_not_todays():
    call(1, received_at=NOW - timedelta(hours=30))
    then = (NOW - timedelta(hours=30)).hour
    assert run(draft(condition=f"call.hour == {then}")).denied == 1
    assert run(draft(condition=f"call.hour != {then}")).denied == 0


@pytest.mark.parametrize(
    "draft_of", [{"condition": "call.host == 'claude-code'"}, {"expert": "digest"}]
)
def test_a_rule_about_who_calls_sees_what_it_saw_then(draft_of: dict[str, Any]):
    call(1, host_name="claude-code 2.1.3")
    call(2, host_name="Other Host 1")
    call(3, origin="run", host_name="digest", endpoint_slug=RUNS.slug)
    call(4, origin="run", host_name="another", endpoint_slug=RUNS.slug)
    assert run(draft(**draft_of)).moved == {(ALLOW, DENY): 1, (ALLOW, ALLOW): 3}


def test_a_draft_takes_the_place_of_its_rule():
    call(1)
    rule = PolicyRule.objects.create(name="draft", outcome="deny", enabled=True)
    changed = PolicyRule.objects.get()
    changed.outcome = "allow"
    assert run(changed).moved == {(DENY, ALLOW): 1}
    assert run(draft(outcome="ask")).moved == {(DENY, ASK): 1}
    rule.refresh_from_db()
    assert rule.outcome == "deny"


def test_progress_bounds_and_examples():
    Invocation.objects.bulk_create(
        Invocation(
            id=f"{n:032x}",
            state="succeeded",
            agent_slug="ann",
            endpoint_slug="default",
            server_slug="git",
            tool_name="commit",
            exposed_name="x",
            binding="b",
            origin="http",
            writer="w",
            received_at=NOW,
            arguments="{}",
        )
        for n in range(1200)
    )
    seen: list[tuple[int, int]] = []
    report = run(draft(), on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(500, 1200), (1000, 1200)]
    assert (report.judged, len(report.examples)) == (1200, EXAMPLES)
    assert run(draft(), most=100).looked_at == 100


# -- manage.py policy ------------------------------------------------------------------------------


def test_the_command_tries_a_file(tmp_path: Any, capsys: Any):
    call(1, {"amount": 5})
    call(2, {"amount": 1})
    file = tmp_path / "rules.yaml"
    file.write_text("- name: big\n  outcome: deny\n  condition: args.amount > 3\n")
    call_command("policy", "test", "--file", str(file), "--days", "3")
    told = capsys.readouterr().out
    assert "2 calls were tested (from the last 3 days). 1 would end differently" in told
    assert "0 held, 1 denied, 1 allowed" in told
    assert "git::commit: allow -> deny" in told


def test_the_command_tries_a_rule_that_is_switched_off(capsys: Any):
    call(1)
    PolicyRule.objects.create(name="off", outcome="deny", enabled=False)
    call_command("policy", "test", "--rule", "off")
    assert "1 denied" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--rule", "nobody"], 'No rule named "nobody".'),
        (["--file", "/nowhere.yaml"], "cannot be read"),
        (["--file", "{broken}"], "column 7"),
        (["--rule", "x", "--days", "0"], "between 1 and 3650"),
    ],
)
def test_the_command_says_what_is_wrong(tmp_path: Any, arguments: list[str], says: str):
    broken = tmp_path / "broken.yaml"
    broken.write_text("- {outcome: deny, condition: 'args. > '}")
    with pytest.raises(CommandError, match=says):
        call_command(
            "policy", "test", *(word.replace("{broken}", str(broken)) for word in arguments)
        )


def test_the_command_adds_the_starter_rules(capsys: Any, django_user_model: Any):
    django_user_model.objects.create_superuser("root")
    call_command("policy", "starter")
    call_command("policy", "starter")
    assert PolicyRule.objects.count() == 3
    assert "exist already" in capsys.readouterr().out


def test_servers_that_are_gone_are_no_error():
    call(1)
    Server.objects.update(lifecycle="disabled")
    assert run(draft()).gone == 1


def test_the_difference_is_told_by_names():
    Agent.objects.create(slug="bob")
    for number, (agent, amount) in enumerate([("ann", 5), ("ann", 6), ("bob", 5), ("bob", 1)]):
        call(number, {"amount": amount}, agent_slug=agent)
    report = run(draft(condition="args.amount > 1"))
    assert report.changes == {
        ("ann", "git::commit", ALLOW, DENY): 2,
        ("bob", "git::commit", ALLOW, DENY): 1,
    }
