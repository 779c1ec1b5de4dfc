"""Versions over REST and by ``manage.py history``: read, put back once, whole as of a time; by the
rights and words of the pages."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.core.management import CommandError, call_command
from django.utils import timezone

from controlplane.history import version_lists
from mcpregistry.models import AuditEntry, Credential, Grant, PolicyRule, Server
from mcpregistry.models.server import Lifecycle
from mcpregistry.services.access import agents, credentials, grants
from mcpregistry.services.policy import rules
from mcpregistry.services.servers import lifecycle
from tests.api.conftest import Caller, new_agent, new_server, new_tool

pytestmark = pytest.mark.django_db
ACTOR = "user:ann"
SECRET = "s3cret-of-before"
FLAG = "s3cret-of-a-flag"
CallerOf = Callable[[str], Caller]
KEYED = {"Idempotency-Key": "k-1"}


@pytest.fixture
def rule() -> PolicyRule:
    """Made to deny, then changed to allow under another name."""
    row = rules.save_rule(rule=PolicyRule(name="r", outcome="deny", note="first"), actor=ACTOR)
    row.name = "renamed"
    row.outcome = "allow"
    row.note = "second"
    return rules.save_rule(rule=row, actor=ACTOR)


@pytest.fixture
def server() -> Server:
    """Its environment and a flag of its command hold secrets; both were changed."""
    row = new_server("git", command=["/bin/git", "--token", FLAG], env={"TOKEN": SECRET})
    row.env = {"TOKEN": f"{SECRET}-2"}
    row.command = ["/bin/git", f"--token={FLAG}-2"]
    return lifecycle.save_server(server=row, actor=ACTOR)


def numbers(row: Any) -> list[int]:
    """Of a record's versions, oldest first."""
    return [version.history_id for version in row.history.order_by("history_id")]


def said(*words: str, **options: Any) -> str:
    out = StringIO()
    call_command("history", *words, stdout=out, stderr=out, **options)
    return out.getvalue()


def read(answer: Any, status: int = 200) -> Any:
    assert answer.status_code == status, answer.content
    return answer.json()


# Over REST


def test_a_records_versions_say_what_changed_and_go_on_page_by_page(
    caller: CallerOf, rule: PolicyRule
):
    admin = caller("admin")
    first = read(admin.get("/history?kind=rules&record=renamed&limit=1"))
    assert [(each["what"], each["record"]) for each in first["items"]] == [("changed", "renamed")]
    assert {"field": "outcome", "before": "deny", "after": "allow"} in first["items"][0]["changes"]
    rest = read(admin.get(f"/history?kind=rules&record=renamed&limit=1&cursor={first['next']}"))
    assert [(each["what"], each["changes"], rest["next"]) for each in rest["items"]] == [
        ("made", [], None)
    ]
    everything = read(admin.get("/history?limit=2"))["items"]
    assert [each["id"] for each in everything if each["kind"] == "rules"] == numbers(rule)[::-1]
    assert everything[0]["changes"] is None


def test_a_version_is_put_back_as_it_was_shown_and_once(caller: CallerOf, rule: PolicyRule):
    admin = caller("admin")
    place = f"/history/rules/{numbers(rule)[0]}"
    shown = read(admin.get(place))
    assert (shown["problem"], shown["proposal"]["saved"]) == ("", False)
    assert "+    outcome: deny" in shown["proposal"]["diff"]
    rule.refresh_from_db()
    assert rule.name == "renamed", "reading changes nothing"
    assert read(admin.post(f"{place}/restore", {"shown": "x"}), 409)["code"] == "CONFLICT"
    body = {"shown": shown["proposal"]["shown"]}
    answers = [admin.post(f"{place}/restore", body, **KEYED) for _ in range(2)]
    assert answers[0].content == answers[1].content
    assert read(answers[0])["changed"] == ["rules/renamed"] or read(answers[0])["changed"] == [
        "rules/r"
    ]
    rule.refresh_from_db()
    assert (rule.name, rule.outcome, rule.history.count()) == ("r", "deny", 3)
    newest = rule.history.first()
    assert newest.history_user == User.objects.get()
    assert newest.history_change_reason.startswith("REST: restored the version of")
    assert (
        AuditEntry.objects.filter(kind="rule.changed", actor__startswith="user:admin").count() == 1
    )


def test_what_was_deleted_is_found_by_its_name_and_comes_back(caller: CallerOf, rule: PolicyRule):
    admin = caller("admin")
    rules.delete_rule(rule=rule, actor=ACTOR)
    found = read(admin.get("/history?kind=rules&record=renamed"))["items"]
    assert [each["what"] for each in found] == ["deleted", "changed", "made"]
    gone = read(admin.get(f"/history/rules/{found[0]['id']}"))
    assert (gone["proposal"], "cannot be restored" in gone["problem"]) == (None, True)
    place = f"/history/rules/{found[1]['id']}"
    shown = read(admin.get(place))["proposal"]["shown"]
    assert read(admin.post(f"{place}/restore", {"shown": shown}))["made"] == ["rules/renamed"]
    assert PolicyRule.objects.get(name="renamed").outcome == "allow"


def test_no_secret_stands_in_a_version(caller: CallerOf, server: Server):
    credential = credentials.save_credential(
        credential=Credential(name="key"), actor=ACTOR, value=SECRET
    )
    admin = caller("admin")
    told = read(admin.get("/history?kind=servers&record=git"))
    changed = {each["field"] for each in told["items"][0]["changes"]}
    assert {"env", "command"} <= changed
    texts = [str(told), str(read(admin.get("/history"))), said("servers/git"), said()]
    for section, row in (("servers", server), ("credentials", credential)):
        for number in numbers(row):
            texts += [
                str(read(admin.get(f"/history/{section}/{number}"))),
                said(section, show=number),
            ]
    assert not [text for text in texts if SECRET in text or FLAG in text]


def test_the_whole_site_as_of_a_time_is_shown_then_done(caller: CallerOf, rule: PolicyRule):
    admin = caller("admin")
    at = between(rule)
    new_agent("ann")
    shown = read(admin.get(f"/config/as-of?at={at}"))
    assert (shown["saved"], "agents: ann" in shown["kept"]) == (False, True)
    done = read(admin.post("/config/as-of", {"at": at, "shown": shown["shown"]}, **KEYED))
    assert (done["saved"], len(done["changed"]), done["diff"]) == (True, 1, shown["diff"])
    rule.refresh_from_db()
    assert (rule.name, rule.outcome) == ("r", "deny")
    again = read(admin.get(f"/config/as-of?at={at}"))
    assert (again["diff"], again["changed"]) == ("", [])


def between(row: PolicyRule) -> str:
    """A time between the two versions, which are then an hour apart."""
    first, second = row.history.order_by("history_id")
    at = timezone.now() - timedelta(hours=1)
    type(first).objects.filter(pk=first.pk).update(history_date=at)
    assert second.history_date > at
    return f"{at + timedelta(minutes=1):%Y-%m-%dT%H:%M:%SZ}"


def test_people_read_and_put_back_what_their_role_lets_them(
    caller: CallerOf, rule: PolicyRule, server: Server
):
    group = Group.objects.create(name="night shift")
    viewer = caller("viewer")
    operator = caller("operator")
    place = f"/history/rules/{numbers(rule)[0]}"
    seen = read(viewer.get(place))
    assert (seen["proposal"], "do not have permission to change rules" in seen["problem"]) == (
        None,
        True,
    )
    shown = read(caller("admin").get(place))["proposal"]["shown"]
    for one in (viewer, operator):
        assert read(one.post(f"{place}/restore", {"shown": shown}), 403)["code"] == "DENIED"
    assert read(operator.get(f"/history/servers/{numbers(server)[0]}"))["proposal"]["changed"] == [
        "servers/git"
    ]
    assert {each["kind"] for each in read(viewer.get("/history"))["items"]} == {"rules", "servers"}
    assert read(viewer.get("/history?kind=roles"), 403)["code"] == "DENIED"
    assert (
        read(viewer.get(f"/history/roles/{group.history.get().history_id}"), 403)["code"]
        == "DENIED"
    )


def test_where_a_credential_may_go_is_put_back_by_those_who_may_say_that(caller: CallerOf):
    row = credentials.save_credential(credential=Credential(name="key"), actor=ACTOR, value=SECRET)
    place = f"/history/credentials/{numbers(row)[0]}/restore"
    assert read(caller("operator").post(place, {"shown": "x"}), 403)["code"] == "DENIED"


@pytest.mark.parametrize(
    "path", ["/history?kind=users", "/history/users/1", "/history?kind=calls&record=x"]
)
def test_what_has_no_versions_is_refused_with_where_to_look(caller: CallerOf, path: str):
    refused = read(caller("admin").get(path), 404)
    assert "The site keeps no versions of" in refused["message"]
    assert "audit log" in refused["remedy"]


@pytest.mark.parametrize(
    "path", ["/history/rules/4711", "/history?kind=rules&record=x", "/history?kind=grants&record=x"]
)
def test_what_is_not_there_is_not_found(caller: CallerOf, path: str):
    assert read(caller("admin").get(path), 404)["code"] == "NOT_FOUND"


# Names of each kind


def test_records_are_found_by_their_names_in_the_document(rule: PolicyRule, server: Server):
    tool = new_tool(server)
    grant = grants.save_grant(grant=Grant(agent=new_agent("ann"), server=server), actor=ACTOR)
    for section, name, row in (
        ("tools", "git::say", tool),
        ("grants", str(grant.pk), grant),
        ("agents", "ann", grant.agent),
        ("servers", "git", server),
        ("rules", "r", rule),
    ):
        found = version_lists.of_record(version_lists.kind_named(section), name)
        assert sorted(each.history_id for each in found) == numbers(row), section
        assert version_lists.names_of(list(found[:1])) == [
            name if section != "rules" else "renamed"
        ]


def test_a_list_of_versions_asks_the_database_no_more_for_more_records(
    django_assert_max_num_queries: Any,
):
    for number in range(12):
        new_agent(f"a{number}")
    rows = list(version_lists.rows_of(version_lists.kind_named("agents")))
    with django_assert_max_num_queries(1):
        assert len(set(version_lists.names_of(rows))) == 12


# The command


def test_the_command_lists_shows_and_puts_back(rule: PolicyRule):
    first, second = numbers(rule)
    assert f"{first}  rules/renamed: created" in " ".join(said().split()).replace(
        f"{first} rules", f"{first}  rules"
    )
    assert "outcome: deny -> allow" in said("rules/renamed")
    assert "+    outcome: deny" in said("rules/renamed", show=first)
    assert "There is nothing to change." in said("rules", show=second)
    assert "Nothing was changed." in said("rules", restore=first)
    rule.refresh_from_db()
    assert rule.outcome == "allow"
    assert "Restored: 1 changed." in said("rules", restore=first, apply=True)
    rule.refresh_from_db()
    assert (rule.name, rule.outcome, rule.history.count()) == ("r", "deny", 3)
    assert AuditEntry.objects.filter(kind="rule.changed", actor="manage.py history").count() == 1


def test_the_command_makes_the_site_as_of_a_time(rule: PolicyRule):
    at = datetime.fromisoformat(between(rule))
    assert "Nothing was changed." in said(as_of=at.isoformat())
    assert "Restored: 1 changed." in said(as_of=at.isoformat(), apply=True)
    rule.refresh_from_db()
    assert rule.name == "r"
    assert "There is nothing to change." in said(as_of=at.isoformat(), apply=True)


def test_a_launch_that_is_put_back_waits_for_its_confirmation(server: Server):
    lifecycle.confirm_launch(server=server, actor=ACTOR, launch_hash=server.launch_hash())
    assert "Restored: 1 changed." in said("servers/git", restore=numbers(server)[0], apply=True)
    server.refresh_from_db()
    assert (server.lifecycle, server.env) == (Lifecycle.DRAFT, {"TOKEN": SECRET})


@pytest.mark.parametrize(
    ("words", "options", "why"),
    [
        (["users/root"], {}, 'The site keeps no versions of "users"'),
        ([], {"restore": 1}, "The kind of record is missing"),
        (["rules/x"], {}, 'There is no record named "x" in rules'),
        (["rules"], {"show": 0}, "No version with the number 0"),
        (["rules"], {"as_of": "2026-01-01T00:00"}, "applies to the whole site"),
        ([], {"as_of": "noon"}, "is not a valid time"),
        ([], {"as_of": "2026-13-01T00:00"}, "is not a valid time"),
        ([], {"apply": True}, "--apply requires --restore"),
    ],
)
def test_the_command_refuses_with_what_to_do(words: list[str], options: dict[str, Any], why: str):
    with pytest.raises(CommandError, match=why):
        said(*words, **options)


def test_a_number_of_another_record_is_refused(rule: PolicyRule):
    other = rules.save_rule(rule=PolicyRule(name="other", outcome="deny"), actor=ACTOR)
    with pytest.raises(CommandError, match='belongs to "renamed"'):
        said("rules/other", restore=numbers(rule)[0], apply=True)
    other.refresh_from_db()
    assert "No versions" not in said("rules/other")


def test_who_changed_it_is_said_and_nothing_where_nothing_was(rule: PolicyRule):
    agents.save_agent(agent=new_agent("ann"), actor=ACTOR)
    assert "No versions yet" in said("channels")
    assert Permission.objects.exists()
    assert "agents/ann" in said("agents")
