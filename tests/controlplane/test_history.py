"""Versions are put back by the import's checks, one by one or all of a time, and the last action is
undone for a minute."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.db import transaction
from django.utils import timezone
from simple_history.models import HistoricalRecords

from controlplane.history import past_versions, undo_changes
from controlplane.history.proposals import RestoreProposal, carry_out, propose
from controlplane.history.version_recording import LATEST, collect_versions
from mcpregistry.domain.caller_rights import grant_all_rights
from mcpregistry.domain.errors import ConfigInvalid, Conflict, Denied
from mcpregistry.models import (
    Agent,
    AuditEntry,
    Channel,
    Configuration,
    Credential,
    Endpoint,
    Grant,
    PolicyRule,
    Server,
    SlackIdentity,
)
from mcpregistry.models.server import Lifecycle
from mcpregistry.services.access import agents, credentials, grants
from mcpregistry.services.configuration import site as settings_of
from mcpregistry.services.definitions import observe
from mcpregistry.services.notifications import outbox
from mcpregistry.services.policy import rules
from mcpregistry.services.servers import lifecycle
from mcpregistry.services.upkeep import retention

pytestmark = pytest.mark.django_db
ACTOR = "user:ann"
SECRET = "s3cret-of-before"


@pytest.fixture
def server() -> Server:
    row = Server(slug="git", command=["/bin/git"])
    row.env = {"TOKEN": SECRET}
    row = lifecycle.save_server(server=row, actor=ACTOR)
    return lifecycle.confirm_launch(server=row, actor=ACTOR, launch_hash=row.launch_hash())


@pytest.fixture
def root() -> User:
    return User.objects.create_superuser("root")


def rule(**fields: Any) -> PolicyRule:
    return rules.save_rule(
        rule=PolicyRule(**{"name": "r", "outcome": "deny"} | fields), actor=ACTOR
    )


def back(version: Any) -> RestoreProposal:
    def items() -> list[Any]:
        return [past_versions.item_of(version)]

    return carry_out(items, actor=ACTOR, shown=propose(items, actor=ACTOR).shown, reason="put back")


@pytest.fixture
def made() -> Iterator[list[Any]]:
    """The versions that a test has made so far; ``clear`` it before the action in question."""
    with collect_versions() as versions:
        yield versions


def undo(made: list[Any], user: User, *, after: float = 0) -> Any:
    kept = [(version.instance_type._meta.label_lower, version.history_id) for version in made]
    for version in made:
        type(version).objects.filter(pk=version.pk).update(history_user=user)
    now = timezone.now()
    return undo_changes.undo(
        made=kept, at=now - timedelta(seconds=after), user=user, actor=ACTOR, now=now
    )


# One version


def test_a_rule_is_put_back_with_its_name_and_what_would_change_is_shown_first():
    row = rule(condition="args.x == 1", note="first")
    before = row.history.first()
    row.name = "renamed"
    row.condition = ""
    row.outcome = "allow"
    rules.save_rule(rule=row, actor=ACTOR)
    proposal = propose(lambda: [past_versions.item_of(before)], actor=ACTOR)
    assert "+    condition: args.x == 1" in proposal.lines
    assert "-    outcome: allow" in proposal.lines
    row.refresh_from_db()
    assert (row.name, row.history.count()) == ("renamed", 2), "a proposal keeps nothing"
    back(before)
    row.refresh_from_db()
    assert (row.name, row.condition, row.outcome, row.note) == ("r", "args.x == 1", "deny", "first")
    assert "put back" in row.history.first().history_change_reason
    assert AuditEntry.objects.filter(kind="rule.changed", actor=ACTOR).count() == 2
    assert propose(lambda: [past_versions.item_of(before)], actor=ACTOR).empty


def test_a_launch_of_before_is_not_live_until_it_is_confirmed_anew(server):
    old = server.history.first()
    server.command = ["/bin/other"]
    server = lifecycle.save_server(server=server, actor=ACTOR)
    server = lifecycle.confirm_launch(server=server, actor=ACTOR, launch_hash=server.launch_hash())
    proposal = back(old)
    server.refresh_from_db()
    assert (server.command, server.lifecycle, server.launch_confirmed) == (
        ["/bin/git"],
        Lifecycle.DRAFT,
        False,
    )
    assert "must be confirmed" in " ".join(proposal.report.notes)


def test_secrets_of_before_come_back_and_are_never_shown(server):
    old = server.history.first()
    server.env = {"TOKEN": "another"}
    lifecycle.save_server(server=server, actor=ACTOR)
    proposal = back(old)
    assert Server.objects.get().env == {"TOKEN": SECRET}
    assert "! servers/git/env/TOKEN: different value" in proposal.lines
    assert not any(text in str(proposal) for text in (SECRET, "another'"))


def test_a_credential_keeps_the_value_of_today():
    row = credentials.save_credential(
        credential=Credential(name="c", description="old"), actor=ACTOR, value="v1"
    )
    old = row.history.first()
    row.description = "new"
    credentials.save_credential(credential=row, actor=ACTOR, value="v2")
    back(old)
    row = Credential.objects.get()
    assert (row.description, row.value) == ("old", "v2")


def test_a_changed_grant_is_put_back_in_place_and_a_channel_with_its_lists(server):
    agent = agents.save_agent(agent=Agent(slug="ann"), actor=ACTOR)
    grant = grants.save_grant(grant=Grant(agent=agent, server=server, note="old"), actor=ACTOR)
    old = grant.history.first()
    grant.note = "new"
    grants.save_grant(grant=grant, actor=ACTOR)
    back(old)
    assert [(row.pk, row.note) for row in Grant.objects.all()] == [(grant.pk, "old")]
    channel = Channel(name="mail", kind="email", addresses=["a@example.org"])
    outbox.save_channel(channel=channel, actor=ACTOR, servers=[server], rules=[])
    old = channel.history.first()
    outbox.save_channel(channel=channel, actor=ACTOR, servers=[], rules=[])
    back(old)
    assert list(channel.servers.all()) == [server]
    lifecycle.delete_server(server=server, actor=ACTOR, rights=grant_all_rights)
    # not a channel of all servers
    with pytest.raises(ConfigInvalid, match='No server named "git"'):
        back(old)


def test_a_grant_that_was_withdrawn_is_put_back_once_however_often_it_is_asked_for(
    made, root, server
):
    agent = agents.save_agent(agent=Agent(slug="ann"), actor=ACTOR)
    grant = grants.save_grant(grant=Grant(agent=agent, server=server), actor=ACTOR)
    old = grant.history.first()
    key = grant.pk
    moment = timezone.now()
    grants.withdraw_grant(grant=grant, actor=ACTOR)
    proposal = back(old)
    assert (len(proposal.report.made), AuditEntry.objects.filter(kind="grant.created").count()) == (
        1,
        2,
    )
    assert Grant.objects.get().pk == key
    assert propose(lambda: [past_versions.item_of(old)], actor=ACTOR).empty
    assert propose(lambda: past_versions.list_items_at(moment), actor=ACTOR).empty
    made.clear()
    grants.withdraw_grant(grant=Grant.objects.get(), actor=ACTOR)
    mine = list(made)
    undo(mine, root)
    with pytest.raises(Conflict):
        undo(mine, root)
    assert Grant.objects.get().pk == key


def test_what_was_made_again_by_its_name_is_changed_not_made_twice(made, root):
    first = rule(note="old")
    old = first.history.first()
    moment = timezone.now()
    made.clear()
    rules.delete_rule(rule=first, actor=ACTOR)
    mine = list(made)
    again = rule(note="new")
    with pytest.raises(Conflict, match='A rule named "r" already exists'):
        undo(mine, root)
    proposal = propose(lambda: past_versions.list_items_at(moment), actor=ACTOR)
    assert (proposal.report.made, proposal.report.changed) == ([], ["rules/r"])
    assert past_versions.since(moment) == []
    back(old)
    assert [(row.pk, row.note) for row in PolicyRule.objects.all()] == [(again.pk, "old")]


def test_a_version_sealed_with_a_lost_key_leaves_the_secrets_of_today(server):
    server.description = "new"
    server.env = {"TOKEN": "another"}
    lifecycle.save_server(server=server, actor=ACTOR)
    old = server.history.last()
    type(old).objects.filter(pk=old.pk).update(
        sealed_env=f"v1.lost.{old.sealed_env.rpartition('.')[2]}"
    )
    old.refresh_from_db()
    back(old)
    row = Server.objects.get()
    assert (row.description, row.env) == ("", {"TOKEN": "another"})


def test_what_was_changed_meanwhile_is_not_put_over():
    row = rule()
    old = row.history.first()
    row.note = "mine"
    rules.save_rule(rule=row, actor=ACTOR)
    shown = propose(lambda: [past_versions.item_of(old)], actor=ACTOR).shown
    row.note = "theirs"
    rules.save_rule(rule=row, actor=ACTOR)
    with pytest.raises(Conflict, match="changed after these changes were shown"):
        carry_out(lambda: [past_versions.item_of(old)], actor=ACTOR, shown=shown, reason="")
    assert PolicyRule.objects.get().note == "theirs"


# The whole site


def test_the_site_as_of_a_time(server):
    row = rule(note="old")
    gone = rule(name="gone")
    site = Configuration.load()
    site.keep_calls_days = 99
    settings_of.save_configuration(configuration=site, actor=ACTOR)
    moment = timezone.now()
    row.note = "new"
    rules.save_rule(rule=row, actor=ACTOR)
    rules.delete_rule(rule=gone, actor=ACTOR)
    site.keep_calls_days = 5
    settings_of.save_configuration(configuration=site, actor=ACTOR)
    late = rule(name="late")
    assert [(kind.section, name) for kind, name in past_versions.since(moment)] == [
        ("rules", "late")
    ]
    proposal = propose(lambda: past_versions.list_items_at(moment), actor=ACTOR)
    assert (proposal.report.made, proposal.report.changed) == (
        ["rules/gone"],
        ["configuration/site", "rules/r"],
    )
    carry_out(
        lambda: past_versions.list_items_at(moment),
        actor=ACTOR,
        shown=proposal.shown,
        reason="as of",
    )
    assert set(PolicyRule.objects.values_list("name", "note")) == {
        ("r", "old"),
        ("gone", ""),
        ("late", ""),
    }
    assert Configuration.load().keep_calls_days == 99
    assert late.history.count() == 1
    assert Server.objects.get().launch_confirmed


def test_before_its_first_change_the_site_was_as_a_new_one():
    site = Configuration.load()
    moment = timezone.now()
    assert not Configuration.history.exists()
    site.default_outcome = "deny"
    settings_of.save_configuration(configuration=site, actor=ACTOR)
    shown = propose(lambda: past_versions.list_items_at(moment), actor=ACTOR).shown
    carry_out(lambda: past_versions.list_items_at(moment), actor=ACTOR, shown=shown, reason="")
    assert Configuration.load().default_outcome == "ask"


def test_an_account_that_is_gone_stands_in_the_way_of_nothing(root, server):
    ann = User.objects.create_user("ann")
    agent = agents.save_agent(agent=Agent(slug="a", owner=ann, description="old"), actor=ACTOR)
    grant = grants.save_grant(
        grant=Grant(agent=agent, server=server, note="old"), actor=ACTOR, user=ann
    )
    person = SlackIdentity(team="T1", member="U1", user=ann)
    outbox.save_slack_identity(identity=person, actor=ACTOR)
    moment = timezone.now()
    old = [agent.history.first(), grant.history.first()]
    ann.delete()
    agent.refresh_from_db()
    grant.refresh_from_db()
    agent.description = "new"
    grant.note = "new"
    agents.save_agent(agent=agent, actor=ACTOR)
    grants.save_grant(grant=grant, actor=ACTOR)
    for version in old:
        back(version)
    assert (Agent.objects.get().description, Grant.objects.get().note) == ("old", "old")
    proposal = propose(lambda: past_versions.list_items_at(moment), actor=ACTOR)
    assert proposal.empty
    assert any("left out: its user" in note for note in proposal.report.notes)


def test_a_list_of_what_does_not_come_back_is_left_out_and_the_rest_is_put_back(server):
    tool = observe.record_described_tool(
        server=server, key="log", body={"name": "log", "inputSchema": {"type": "object"}}
    )
    channel = Channel(name="hook", kind="email", addresses=["a@example.org"])
    outbox.save_channel(channel=channel, actor=ACTOR, rules=[rule(tool=tool)])
    kept = agents.save_agent(agent=Agent(slug="ann", description="old"), actor=ACTOR)
    moment = timezone.now()
    kept.description = "new"
    agents.save_agent(agent=kept, actor=ACTOR)
    lifecycle.delete_server(server=server, actor=ACTOR, rights=grant_all_rights)
    proposal = propose(lambda: past_versions.list_items_at(moment), actor=ACTOR)
    assert (proposal.report.made, proposal.report.changed) == (["servers/git"], ["agents/ann"])
    assert any(
        "channels/hook is left out: one of its rules no longer exists" in note
        for note in proposal.report.notes
    )


@pytest.mark.exhaustive
def test_thousands_of_records_that_are_as_they_were_cost_no_looks_of_their_own(
    server, django_assert_max_num_queries
):
    for number in range(20):
        agents.save_agent(agent=Agent(slug=f"a{number}"), actor=ACTOR)
    with django_assert_max_num_queries(45):
        assert list(past_versions.list_items_at(timezone.now())) == []
    Agent.objects.filter(slug="a7").update(description="by the back door")
    assert [item.name for item in past_versions.list_items_at(timezone.now())] == ["a7"], (
        "also what left no version"
    )


def test_what_hangs_on_a_tool_of_a_deleted_server_is_left_out_and_said(server):
    tool = observe.record_described_tool(
        server=server, key="log", body={"name": "log", "inputSchema": {"type": "object"}}
    )
    agent = agents.save_agent(agent=Agent(slug="ann"), actor=ACTOR)
    grant = grants.save_grant(grant=Grant(agent=agent, tool=tool), actor=ACTOR)
    rule(tool=tool)
    moment = timezone.now()
    old = grant.history.first()
    lifecycle.delete_server(server=server, actor=ACTOR, rights=grant_all_rights)
    with pytest.raises(ConfigInvalid, match='No tool named "git::log"'):
        back(old)
    proposal = propose(lambda: past_versions.list_items_at(moment), actor=ACTOR)
    assert proposal.report.made == ["servers/git"]
    assert (
        sum("is left out: its tool no longer exists" in note for note in proposal.report.notes) == 2
    )


def test_what_stands_in_the_way_of_the_whole_site_is_named_with_its_place():
    group = Group.objects.create(name="night")
    row = PolicyRule(name="r", outcome="ask", approvers=group)
    rules.save_rule(rule=row, actor=ACTOR, unanswered=True)
    moment = timezone.now()
    PolicyRule.objects.all().delete()
    group.delete()
    Group.history.all().delete()  # type: ignore[attr-defined]  # retention has forgotten it
    with pytest.raises(Conflict, match='rules/r: The field "approvers"'):
        propose(lambda: past_versions.list_items_at(moment), actor=ACTOR)


# Undo


def test_a_change_a_making_and_a_deletion_are_undone(made, root, server):
    endpoint = agents.save_endpoint(endpoint=Endpoint(slug="e"), actor=ACTOR)
    grants.save_grant(grant=Grant(endpoint=endpoint, server=server), actor=ACTOR)
    made.clear()
    agents.delete_endpoint(endpoint=endpoint, actor=ACTOR, rights=grant_all_rights)
    undo(made, root)
    assert [str(each.endpoint) for each in Grant.objects.all()] == ["e"]
    made.clear()
    lifecycle.disable_server(server=server, actor=ACTOR)
    assert undo_changes.can_be_undone(made)
    undo(made, root)
    server.refresh_from_db()
    assert server.lifecycle == Lifecycle.ACTIVE
    made.clear()
    rules.auto_approve(server=server, actor=ACTOR)
    undo(made, root)
    assert not PolicyRule.objects.exists()


def test_undo_is_refused_after_a_minute_a_later_change_or_without_the_right(made, root):
    row = rule(note="first")
    made.clear()
    row.note = "second"
    rules.save_rule(rule=row, actor=ACTOR)
    mine = list(made)
    with pytest.raises(Conflict, match="more than one minute ago"):
        undo(mine, root, after=61)
    with pytest.raises(Denied):
        undo(mine, User.objects.create_user("bob"))
    row.note = "third"
    rules.save_rule(rule=row, actor="user:other")
    with pytest.raises(Conflict, match="was changed again after this change"):
        undo(mine, root)
    row.refresh_from_db()
    assert row.note == "third"


def test_nobody_takes_back_what_somebody_else_did_or_what_cannot_be(made, root):
    row = rule(note="first")
    made.clear()
    row.note = "second"
    rules.save_rule(rule=row, actor=ACTOR)
    kept = [("mcpregistry.policyrule", made[0].history_id)]
    now = timezone.now()
    with pytest.raises(Conflict, match="made by another user"):
        undo_changes.undo(made=kept, at=now, user=root, actor=ACTOR, now=now)
    row.history.last().delete()  # as retention does
    with pytest.raises(Conflict, match="cannot be undone"):
        undo(made, root)
    row.refresh_from_db()
    assert row.note == "second"


def test_what_the_database_took_back_is_not_offered(
    rf, root, monkeypatch, django_capture_on_commit_callbacks
):
    request = rf.post("/admin/")
    request.user = root
    request.session = {}
    monkeypatch.setattr(HistoricalRecords.context, "request", request, raising=False)

    @transaction.atomic
    def fails() -> None:
        rule()
        raise LookupError

    with django_capture_on_commit_callbacks(execute=True), pytest.raises(LookupError):
        fails()
    assert request.session == {}
    with django_capture_on_commit_callbacks(execute=True):
        rule()
    assert [label for label, _ in request.session[LATEST]["made"]] == ["mcpregistry.policyrule"]
    assert undo_changes.latest(request.session, timezone.now()).words == "Rule r created."


def test_each_thing_that_would_be_done_needs_its_own_right(made):
    bob = User.objects.create_user("bob")
    row = rule(note="old")
    old = row.history.first()

    def allow(*names: str) -> User:
        bob.user_permissions.set(Permission.objects.filter(codename__in=names))
        return User.objects.get(pk=bob.pk)

    made.clear()
    rules.delete_rule(rule=row, actor=ACTOR)
    for page in (
        lambda user: propose(lambda: [past_versions.item_of(old)], actor=ACTOR, user=user),
        lambda user: undo(made, user),
    ):
        with pytest.raises(Denied):
            page(allow("change_policyrule", "delete_policyrule"))
        page(allow("add_policyrule"))
    credential = credentials.save_credential(
        credential=Credential(name="c", description="old"), actor=ACTOR, value="v"
    )
    credential.description = "new"
    made.clear()
    credentials.save_credential(credential=credential, actor=ACTOR)
    with pytest.raises(Denied):
        undo(made, allow("change_credential"))
    undo(made, allow("change_credential", "change_configuration"))


def test_secrets_that_are_gone_are_to_be_entered_again_and_what_takes_tokens_along_is_not_offered(
    made, root
):
    row = credentials.save_credential(credential=Credential(name="c"), actor=ACTOR, value="v")
    made.clear()
    credentials.delete_credential(credential=row, actor=ACTOR)
    report = undo(made, root)
    assert Credential.objects.get().needs_value
    assert report.notes == ["credentials/c: enter the missing secrets: credentials/c/value."]
    agent = agents.save_agent(agent=Agent(slug="ann"), actor=ACTOR)
    made.clear()
    agents.delete_agent(agent=agent, actor=ACTOR, rights=grant_all_rights)
    assert not undo_changes.can_be_undone(made)


def test_what_people_confirm_is_not_offered_to_be_undone(made, server):
    made.clear()
    server.command = ["/bin/new"]
    server = lifecycle.save_server(server=server, actor=ACTOR)
    made.clear()
    lifecycle.confirm_launch(server=server, actor=ACTOR, launch_hash=server.launch_hash())
    assert [version.history_type for version in made] == ["~"]
    assert not undo_changes.can_be_undone(made)


# Retention


def test_old_versions_go_but_the_newest_of_each_record_stays():
    kept = rule()
    gone = rule(name="gone")
    rules.save_rule(rule=kept, actor=ACTOR)
    rules.delete_rule(rule=gone, actor=ACTOR)
    newest = kept.history.first().history_id
    PolicyRule.history.update(history_date=timezone.now() - timedelta(days=400))
    retention.prune(timezone.now())
    assert [version.history_id for version in PolicyRule.history.all()] == [newest]
