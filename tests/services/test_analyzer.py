"""The access analyzer on a made history: what it proposes stops nothing that was used, and
concludes nothing too early."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from mcpregistry.domain.errors import Conflict
from mcpregistry.domain.policy.access import may_call
from mcpregistry.domain.policy.narrowing import LEAST, CommonArguments, Folder
from mcpregistry.models import (
    Agent,
    AuditEntry,
    Configuration,
    CountedSpan,
    Endpoint,
    Grant,
    Invocation,
    Server,
    Tool,
)
from mcpregistry.models.usage import SpanLength
from mcpregistry.queries.calls import count_known_days
from mcpregistry.services.access import agents, grants
from mcpregistry.services.configuration.snapshot import build_grant_spec, load_snapshot
from mcpregistry.services.definitions import decisions, observe
from mcpregistry.services.policy import analyzer, hiding
from mcpregistry.services.policy.analyzer import (
    GrantProposal,
    analyse,
    analyse_whole,
    apply_grant_proposal,
    select_candidates,
)
from mcpregistry.services.records import audit, call_hours
from mcpregistry.services.records.signed_calls import FORGOTTEN

pytestmark = pytest.mark.django_db
ACTOR = "test"
NOW = timezone.now()
DAYS = 30


def call(
    number: int, server: str, tool: str, arguments: Mapping[str, Any] | None, **more: Any
) -> Invocation:
    values: dict[str, Any] = {
        "id": f"c{number}",
        "state": "succeeded",
        "agent_slug": "ann",
        "endpoint_slug": "default",
        "server_slug": server,
        "tool_name": tool,
        "exposed_name": tool,
        "origin": "http",
        "writer": "w",
        "binding": "b",
        "arguments": "" if arguments is None else json.dumps(arguments),
        "received_at": NOW - timedelta(hours=number % 700),
    }
    return Invocation(**(values | more))


@pytest.fixture
def ann() -> Agent:
    """With three servers of ten tools, whole, for half a year."""
    agent = agents.save_agent(agent=Agent(slug="ann"), actor=ACTOR)
    for slug in ("git", "bank", "idle"):
        server = Server.objects.create(slug=slug, command=["x"], lifecycle="active")
        observe.observe(
            server=server,
            listed=[{"name": f"t{n}", "inputSchema": {"type": "object"}} for n in range(10)],
        )
        decisions.approve_waiting(server=server, actor=ACTOR)
        grants.grant_access(agent=agent, server=server, actor=ACTOR)
    agents.save_endpoint(endpoint=Endpoint(slug="default"), actor=ACTOR)
    Grant.objects.update(created_at=NOW - timedelta(days=180))
    Tool.objects.update(first_seen_at=NOW - timedelta(days=180))
    return agent


def proposed(**narrow: Any) -> list[GrantProposal]:
    return analyse(select_candidates().filter(**narrow).order_by("pk"), days=DAYS, now=NOW)


def test_what_it_proposes_stops_nothing_that_was_used(ann: Agent) -> None:
    dice = random.Random(7)
    made = []
    for number in range(600):
        tool = dice.choice(["t1", "t2", "t3", "t3"])
        arguments: dict[str, Any] = {"repo": "docs", "n": dice.randrange(3), "deep": True}
        if tool == "t2":
            arguments["repo"] = dice.choice(["docs", "code"])
        made.append(call(number, dice.choice(["git", "bank"]), tool, arguments))
    Invocation.objects.bulk_create(made)
    rounds = 0
    while found := proposed():
        rounds += 1
        for each in found:
            assert not each.stopped
            assert not each.unjudged
            apply_grant_proposal(
                grant=each.grant, key=each.key, days=DAYS, now=NOW, actor=ACTOR, user=None
            )
        # as if half a year had gone by with the same calls
        Grant.objects.update(created_at=NOW - timedelta(days=180))
    assert rounds == 2  # servers became tools, and these got pins
    snapshot = load_snapshot()
    who = snapshot.agents["ann"]
    where = snapshot.endpoints["default"]
    tools = {
        (snapshot.servers[each.server_id].slug, each.key): each for each in snapshot.tools.values()
    }
    for row in made:
        assert may_call(
            who,
            where,
            tools[row.server_slug, row.tool_name],
            json.loads(row.arguments),
            NOW.timestamp(),
        )
    left = {str(row.tool): row.argument_pins for row in Grant.objects.all()}
    once = {"repo": "docs", "deep": True}
    twice = {"deep": True}
    assert left == {
        f"{slug}::{t}": twice if t == "t2" else once
        for slug in ("git", "bank")
        for t in ("t1", "t2", "t3")
    }
    assert not may_call(
        who, where, tools["git", "t1"], {"repo": "code", "deep": True}, NOW.timestamp()
    )
    assert {"grant.created", "grant.withdrawn"} <= {
        *AuditEntry.objects.values_list("kind", flat=True)
    }


def test_nothing_is_concluded_too_early(ann: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    Grant.objects.update(created_at=NOW - timedelta(days=3))
    assert not proposed()  # nobody knows yet
    Grant.objects.update(created_at=NOW - timedelta(days=180))
    Invocation.objects.bulk_create(call(n, "git", "t1", {}) for n in range(5))
    assert {str(each.grant.server): each.kind for each in proposed()} == {
        "git": "tools",
        "bank": "withdraw",
        "idle": "withdraw",
    }
    monkeypatch.setattr(analyzer, "MOST_CALLS", 4)  # the fifth was not read
    assert not proposed(server__slug="git")
    Invocation.objects.update(tool_name="prompt:t1")
    assert proposed(server__slug="git")[0].kind == "withdraw", (
        "there are many calls, and none of a tool"
    )
    Grant.objects.update(kind="prompt")
    assert not proposed(server__slug="git")


def test_a_tool_that_is_too_new_to_tell_stays_granted(ann: Agent) -> None:
    Invocation.objects.bulk_create(call(n, "git", "t1", {}) for n in range(5))
    Tool.objects.filter(server__slug="git", name="t7").update(first_seen_at=NOW - timedelta(days=1))
    (found,) = proposed(server__slug="git")
    assert [str(row.tool) for row in found.after] == ["git::t1", "git::t7"]
    assert "New tools stay granted: t7." in found.says


def test_calls_of_other_kinds_are_not_counted(ann: Agent) -> None:
    names = ["t1", "t2", "prompt:t1", "resource:x", "template:y", "Prompt:t1", "tool:prompt:t1"]
    Invocation.objects.bulk_create(call(n, "git", name, {}) for n, name in enumerate(names))
    (found,) = proposed(server__slug="git")
    assert (found.kind, found.looked.calls, found.judged) == ("tools", 4, 2)
    kinds = {kind: {*git_calls(kind)} for kind in ("tool", "prompt", "resource", "template")}
    assert kinds["tool"] == {"t1", "t2", "Prompt:t1", "tool:prompt:t1"}
    assert (kinds["prompt"], kinds["resource"], kinds["template"]) == (
        {"prompt:t1"},
        {"resource:x"},
        {"template:y"},
    )


def git_calls(kind: str) -> list[str]:
    return list(
        Invocation.objects.filter(server_slug="git")
        .of_kind(kind)
        .values_list("tool_name", flat=True)
    )


def test_of_a_period_that_is_not_kept_nothing_is_concluded(ann: Agent) -> None:
    Configuration.objects.update(keep_calls_days=DAYS - 1)
    assert not proposed()
    Configuration.objects.update(keep_calls_days=365)
    assert proposed()
    audit.record_entry(
        kind="calls.forgotten",
        actor="retention",
        subject=FORGOTTEN,
        calls_before=(NOW - timedelta(days=7)).isoformat(),
        payloads_before=NOW.isoformat(),
    )
    assert not proposed(), "they were kept for a week until now, and are gone"
    assert count_known_days(NOW) == 7


def test_arguments_are_read_where_they_are_needed_and_only_short_ones(ann: Agent) -> None:
    long = {"a": 1, "text": "x" * 20_000}
    Invocation.objects.bulk_create(
        call(n, "git", "t1", {"a": 1} if n else long) for n in range(LEAST)
    )
    with CaptureQueriesContext(connection) as asked:
        assert proposed(server__slug="git")[0].judged == LEAST
    assert not any('"arguments"' in each["sql"] for each in asked)
    Grant.objects.all().delete()
    grants.grant_access(
        agent=ann, tool=Tool.objects.get(server__slug="git", name="t1"), actor=ACTOR
    )
    Grant.objects.update(created_at=NOW - timedelta(days=180))
    assert not proposed(), "what a long one says is not known"
    Invocation.objects.filter(pk="c0").update(arguments='{"a": 1}')
    assert proposed()[0].pins == {"a": 1}


def test_calls_that_were_refused_before_they_were_decided_on_are_no_use(ann: Agent) -> None:
    call(1, "git", "t1", {}, state="denied", binding="").save()
    call(2, "git", "t1", {}, agent_slug="ben").save()
    call(3, "git", "t1", {}, received_at=NOW - timedelta(days=31)).save()
    (found,) = proposed(server__slug="git")
    assert (found.kind, found.looked.calls) == ("withdraw", 0)


def test_erased_arguments_pin_nothing_and_secrets_are_not_pinned() -> None:
    alike = CommonArguments()
    gone = CommonArguments()
    for number in range(LEAST):
        alike.take(
            {
                "a": 1,
                "api_key": "x",
                "shown": "[secret]",
                "long": "x" * 500,
                "list": [1],
                "b": number == 0,
            }
        )
        gone.take({"a": 1} if number else None)
    assert alike.pins() == {"a": 1}
    assert gone.pins() == {}
    few = CommonArguments()
    few.take({"a": 1})
    assert few.pins() == {}


@pytest.mark.parametrize(
    ("pattern", "uris", "narrow"),
    [
        ("file:///*", ["file:///docs/a", "file:///docs/b/c"], "file:///docs/*"),
        ("", ["file:///docs/a", "file:///docs/a"], "file:///docs/*"),
        ("file:///docs/*", ["file:///docs/a", "file:///docs/b"], ""),
        ("", ["file:///a/b", "http://a/b"], ""),
        ("", ["mem://a", "mem://b"], ""),
    ],
)
def test_a_pattern_becomes_the_folder_of_all_that_was_read(
    pattern: str, uris: list[str], narrow: str
) -> None:
    folder = Folder()
    few = Folder()
    unknown = Folder()
    for uri in uris * LEAST:
        folder.take(uri)
        unknown.take(uri)
    few.take(uris[0])
    unknown.take(None)
    assert folder.narrower(pattern) == narrow
    assert few.narrower(pattern) == ""
    assert unknown.narrower(pattern) == ""


def test_only_what_was_shown_is_done_and_pins_can_be_left_out(ann: Agent) -> None:
    tool = Tool.objects.get(server__slug="git", name="t1")
    Grant.objects.all().delete()
    grants.grant_access(agent=ann, tool=tool, actor=ACTOR)
    Grant.objects.update(created_at=NOW - timedelta(days=180))
    Invocation.objects.bulk_create(call(n, "git", "t1", {"a": 1, "b": 2}) for n in range(LEAST))
    (found,) = proposed()
    call(99, "git", "t1", {"a": 1, "b": 3}).save()
    with pytest.raises(Conflict):
        apply_grant_proposal(
            grant=found.grant, key=found.key, days=DAYS, now=NOW, actor=ACTOR, user=None
        )
    Invocation.objects.filter(pk="c99").delete()
    with pytest.raises(Conflict):
        apply_grant_proposal(
            grant=found.grant, key=found.key, days=DAYS, now=NOW, actor=ACTOR, user=None, pins=[]
        )
    assert Grant.objects.get().argument_pins == {}
    apply_grant_proposal(
        grant=found.grant, key=found.key, days=DAYS, now=NOW, actor=ACTOR, user=None, pins=["a"]
    )
    assert Grant.objects.get().argument_pins == {"a": 1}


def test_hiding_locks_the_grants_that_it_exchanges(ann: Agent) -> None:
    gone = Tool.objects.get(server__slug="git", name="t1")
    with CaptureQueriesContext(connection) as asked:
        assert hiding.hide_tools(ann, [gone], actor=ACTOR) == (1, 9)
    locked = any("FOR UPDATE OF" in each["sql"] for each in asked)
    assert locked is connection.features.has_select_for_update_of
    assert not Grant.objects.filter(tool=gone).exists()


def busy(ann: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred calls of two tools, the rarer of which is not among the newest ten that are
    read."""
    calls = [call(n, "git", "t1", {}, received_at=NOW - timedelta(minutes=n)) for n in range(99)]
    Invocation.objects.bulk_create(
        [*calls, call(99, "git", "t2", {}, received_at=NOW - timedelta(days=20))]
    )
    monkeypatch.setattr(analyzer, "MOST_CALLS", 10)


def test_a_proof_reads_no_grants_of_other_servers(
    ann: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    Invocation.objects.bulk_create(call(n, "git", "t1", {}) for n in range(LEAST))
    for tool in Tool.objects.filter(server__slug="bank"):
        grants.grant_access(agent=ann, tool=tool, actor=ACTOR)
    read = []
    monkeypatch.setattr(
        analyzer, "build_grant_spec", lambda row: read.append(row) or build_grant_spec(row)
    )
    assert proposed(server__slug="git")[0].kind == "tools"
    assert {(row.tool.server if row.tool else row.server).slug for row in read} == {"git"}


@pytest.mark.exhaustive
def test_a_server_with_more_calls_than_are_read_is_narrowed_to_every_tool_that_was_used(
    ann: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy(ann, monkeypatch)
    call_hours.count_due(NOW)
    (found,) = proposed(server__slug="git")
    assert [str(row.tool) for row in found.after] == ["git::t1", "git::t2"]
    assert "t1 (99), t2 (1)" in found.says
    assert (found.judged, found.stopped, found.looked.all) == (10, (), False)
    apply_grant_proposal(
        grant=found.grant, key=found.key, days=DAYS, now=NOW, actor=ACTOR, user=None
    )
    assert Grant.objects.filter(agent=ann, tool__server__slug="git").count() == 2


@pytest.mark.exhaustive
def test_nothing_is_concluded_from_hours_that_are_not_counted(
    ann: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy(ann, monkeypatch)
    assert not proposed(server__slug="git"), "the clock has counted nothing yet"
    call_hours.count_due(NOW)
    assert proposed(server__slug="git")
    hours = CountedSpan.objects.filter(span=SpanLength.HOUR).order_by("begins")
    hours[len(hours) // 2].delete()
    assert not proposed(server__slug="git"), "an hour is missing"


def one_tool(monkeypatch: pytest.MonkeyPatch, last: Mapping[str, Any] | None) -> Grant:
    """A grant of a tool with thirty calls, of which a page reads ten; ``last``: the arguments of
    the oldest."""
    calls = [call(n, "git", "t1", {"repo": "docs", "deep": True, "n": n}) for n in range(29)]
    Invocation.objects.bulk_create([*calls, call(29, "git", "t1", last)])
    tool = Tool.objects.get(server__slug="git", name="t1")
    Grant.objects.filter(server__slug="git").update(server=None, tool=tool)
    monkeypatch.setattr(analyzer, "MOST_CALLS", 10)
    return select_candidates().get(tool=tool)


@pytest.mark.both_databases
def test_pins_of_a_busy_tool_are_what_all_its_calls_had_in_common(
    ann: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant = one_tool(monkeypatch, {"repo": "code", "deep": True, "n": 0})
    (guess,) = proposed(pk=grant.pk)
    assert guess.is_guess
    assert guess.says.startswith("In the latest 10 calls")
    assert set(guess.pins) == {"repo", "deep"}
    with pytest.raises(Conflict):
        apply_grant_proposal(grant=grant, key=guess.key, days=DAYS, now=NOW, actor=ACTOR, user=None)
    proven = analyse_whole(grant, days=DAYS, now=NOW)
    assert proven is not None
    assert not proven.is_guess
    assert proven.pins == {"deep": True}
    assert (proven.judged, proven.stops, proven.unjudged) == (30, 0, 0)
    apply_grant_proposal(grant=grant, key=proven.key, days=DAYS, now=NOW, actor=ACTOR, user=None)
    assert Grant.objects.get(tool=grant.tool).argument_pins == {"deep": True}


def test_a_guess_that_all_calls_confirm_can_be_applied(
    ann: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant = one_tool(monkeypatch, {"repo": "docs", "deep": True, "n": 0})
    (guess,) = proposed(pk=grant.pk)
    apply_grant_proposal(grant=grant, key=guess.key, days=DAYS, now=NOW, actor=ACTOR, user=None)
    assert Grant.objects.get(tool=grant.tool).argument_pins == {"repo": "docs", "deep": True}


def test_a_busy_tool_whose_old_arguments_are_erased_gets_no_pins(
    ann: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant = one_tool(monkeypatch, None)
    assert proposed(pk=grant.pk)
    assert analyse_whole(grant, days=DAYS, now=NOW) is None


def test_a_grant_with_more_calls_than_a_proof_reads_gets_no_pins(
    ann: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant = one_tool(monkeypatch, {"repo": "docs", "deep": True, "n": 0})
    monkeypatch.setattr(analyzer, "MOST_WHOLE", 29)
    assert analyse_whole(grant, days=DAYS, now=NOW) is None


def test_a_grant_that_was_changed_during_the_proof_is_left_alone(
    ann: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant = one_tool(monkeypatch, {"repo": "docs", "deep": True, "n": 0})
    (guess,) = proposed(pk=grant.pk)

    def changed(*found: Any, **given: Any) -> GrantProposal | None:
        proven = analyse_whole(*found, **given)
        Grant.objects.filter(pk=grant.pk).update(note="changed")
        return proven

    monkeypatch.setattr(analyzer, "analyse_whole", changed)
    with pytest.raises(Conflict):
        apply_grant_proposal(grant=grant, key=guess.key, days=DAYS, now=NOW, actor=ACTOR, user=None)
    assert Grant.objects.get(pk=grant.pk).argument_pins == {}
