"""Rules are refused where they could not work; one click and one template make them; claims count
once confirmed."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.utils import timezone

from mcpregistry.domain.errors import ConfigInvalid, Conflict
from mcpregistry.domain.policy.conditions import ConditionInvalid
from mcpregistry.domain.policy.risk import assess_risk
from mcpregistry.models import (
    Agent,
    AuditEntry,
    Configuration,
    Invocation,
    Permit,
    PolicyRule,
    Server,
    Tool,
)
from mcpregistry.services.configuration.snapshot import load_snapshot
from mcpregistry.services.definitions import behaviour, decisions, observe
from mcpregistry.services.policy.drafts import draft_rule_like_call, fill_rule, read_rules
from mcpregistry.services.policy.rules import (
    add_starter_rules,
    auto_approve,
    delete_rule,
    list_auto_rules,
    make_live,
    save_rule,
    switch_rule,
    withdraw_auto_approval,
)

pytestmark = pytest.mark.django_db
ACTOR = "test"


def person(name: str, role: str = "approver", **fields: Any) -> User:
    user = User.objects.create(username=name, **fields)
    user.groups.add(Group.objects.get(name=role))
    return user


def save(**fields: Any) -> PolicyRule:
    return save_rule(rule=PolicyRule(**{"name": "r", "outcome": "ask"} | fields), actor=ACTOR)


def new_tool(name: str = "commit", **annotations: bool) -> Tool:
    server = Server.objects.get_or_create(
        slug="git", defaults={"command": ["x"], "lifecycle": "active"}
    )[0]
    observe.observe(
        server=server,
        listed=[{"name": name, "inputSchema": {"type": "object"}, "annotations": annotations}],
    )
    decisions.approve_waiting(server=server, actor=ACTOR)
    return Tool.objects.select_related("server", "pinned").get(name=name)


# -- what is refused -------------------------------------------------------------------------------


def test_a_broken_condition_is_refused_with_its_column():
    with pytest.raises(ConditionInvalid, match="column 15"):
        save(outcome="deny", condition="args.amount > ")
    assert not PolicyRule.objects.exists()
    assert not AuditEntry.objects.filter(kind__startswith="rule.").exists()


def test_a_rule_about_a_tool_of_another_server_is_refused():
    other = Server.objects.create(slug="other", command=["x"])
    with pytest.raises(ConfigInvalid, match="never match"):
        save(outcome="deny", tool=new_tool(), server=other)


def nobody() -> dict[str, Any]:
    return {}


def inactive() -> dict[str, Any]:
    person("gone", is_active=False)
    return {}


def viewers() -> dict[str, Any]:
    person("looks", "viewer")
    return {}


def empty_group() -> dict[str, Any]:
    person("ann")
    return {"approvers": Group.objects.create(name="ops")}


def group_without_right() -> dict[str, Any]:
    person("ann")
    group = Group.objects.create(name="ops")
    person("bob", "viewer").groups.add(group)
    return {"approvers": group}


def too_many() -> dict[str, Any]:
    person("ann")
    person("bob")
    return {"quorum": 3}


def only_the_owner() -> dict[str, Any]:
    return {"agent": Agent.objects.create(slug="mine", owner=person("ann"))}


def only_the_owner_of_every_agent() -> dict[str, Any]:
    ann = person("ann")
    Agent.objects.create(slug="one", owner=ann)
    Agent.objects.create(slug="two", owner=ann)
    return {}


FOR_EVER = [
    (nobody, "no active user can approve"),
    (inactive, "no active user"),
    (viewers, "no active user can approve"),
    (empty_group, "no active user in the group 'ops'"),
    (group_without_right, "no active user in the group 'ops'"),
    (too_many, "it requires 3 approvals, but only 2 users can"),
    (only_the_owner, "owners cannot approve calls of their own agents"),
    (only_the_owner_of_every_agent, "owners cannot approve calls of their own agents"),
]


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize(("make", "says"), FOR_EVER, ids=lambda p: getattr(p, "__name__", ""))
def test_a_rule_that_would_ask_for_ever_is_refused_with_the_reason(make: Any, says: str):
    fields = make()
    with pytest.raises(ConfigInvalid, match="could never be approved") as caught:
        save(**fields)
    assert says in caught.value.message
    assert caught.value.remedy
    assert not PolicyRule.objects.exists()
    save(name="switched off", enabled=False, **fields)
    save(name="denies", **fields | {"outcome": "deny"})
    with pytest.raises(ConfigInvalid):
        switch_rule(rule=PolicyRule.objects.get(name="switched off"), enabled=True, actor=ACTOR)
    assert not PolicyRule.objects.get(name="switched off").enabled


def test_rules_that_somebody_can_answer_are_taken():
    ann = person("ann")
    save(name="anybody")
    save(name="own group", approvers=Group.objects.get(name="approver"))
    agent = Agent.objects.create(slug="mine", owner=ann)
    save(name="himself", agent=agent, requester_may_confirm=True)
    bob = User.objects.create(username="bob")
    bob.user_permissions.add(Permission.objects.get(codename="decide_approval"))
    save(name="another", agent=agent)
    User.objects.create(username="root", is_superuser=True)
    User.objects.create(username="toor", is_superuser=True)
    save(name="three", quorum=3)
    assert PolicyRule.objects.count() == 5


def test_saving_changing_and_deleting_is_told_and_counts_at_once():
    rule = save(outcome="allow", priority=7)
    assert [spec.name for spec in load_snapshot().rules] == ["r"]
    before = load_snapshot()
    rule.condition = 'tool.name == "x"'
    save_rule(rule=rule, actor=ACTOR)
    after = load_snapshot()
    assert after.revision > before.revision
    assert after.rules[0].fingerprint != before.rules[0].fingerprint
    delete_rule(rule=rule, actor=ACTOR)
    assert load_snapshot().rules == ()
    assert list(
        AuditEntry.objects.filter(kind__startswith="rule.")
        .order_by("id")
        .values_list("kind", flat=True)
    ) == [
        "rule.created",
        "rule.changed",
        "rule.deleted",
    ]


def test_raw_changes_change_the_fingerprint_too():
    save(outcome="allow")
    before = load_snapshot().rules[0].fingerprint
    PolicyRule.objects.update(quorum=2)
    assert load_snapshot().rules[0].fingerprint != before


# -- template, one click, claims -------------------------------------------------------------------


def test_starter_rules_are_added_once():
    person("ann")
    assert len(add_starter_rules(actor=ACTOR)) == 3
    assert add_starter_rules(actor=ACTOR) == []
    snapshot = load_snapshot()
    assert not any(rule.broken for rule in snapshot.policy.rules)


def test_one_click_lets_run_and_one_click_takes_it_back():
    tool = new_tool()
    rule = auto_approve(tool=tool, actor=ACTOR)
    assert auto_approve(tool=tool, actor=ACTOR) == rule
    assert auto_approve(server=tool.server, actor=ACTOR) != rule
    assert rule.priority < PolicyRule._meta.get_field("priority").default
    assert withdraw_auto_approval(tool=tool, actor=ACTOR) == 1
    assert withdraw_auto_approval(tool=tool, actor=ACTOR) == 0
    assert [r.server for r in PolicyRule.objects.all()] == [tool.server]


def test_claims_count_only_once_confirmed():
    tool = new_tool(readOnlyHint=True, openWorldHint=False)
    assert behaviour.read_claims(tool) == {"read_only": True, "open_world": False}
    assert assess_risk(load_snapshot().tools[tool.pk]).level == "high"
    behaviour.confirm_claims(tool=tool, actor=ACTOR)
    assert assess_risk(load_snapshot().tools[tool.pk]).level == "low"
    behaviour.confirm_annotations(
        tool=tool, actor=ACTOR, read_only=False, destructive=None, open_world=False
    )
    assert assess_risk(load_snapshot().tools[tool.pk]).level == "high"


@pytest.mark.parametrize("annotations", [{}, {"readOnlyHint": "yes"}, {"title": "x"}])
def test_what_claims_nothing_cannot_be_confirmed_in_one_click(annotations: dict[str, Any]):
    with pytest.raises(ConfigInvalid, match="declares no annotations"):
        behaviour.confirm_claims(tool=new_tool(**annotations), actor=ACTOR)


def test_read_only_and_destructive_contradict():
    with pytest.raises(ConfigInvalid):
        behaviour.confirm_annotations(
            tool=new_tool(), actor=ACTOR, read_only=True, destructive=True, open_world=None
        )


# -- snapshot --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("configured", "approval", "expected"),
    [
        ("ask", True, "ask"),
        ("ask", False, "allow"),
        ("allow", True, "allow"),
        ("deny", False, "deny"),
    ],
)
def test_what_happens_when_no_rule_fits(
    settings: Any, configured: str, approval: bool, expected: str
):
    Configuration.objects.update(default_outcome=configured)
    settings.MCP_TOOL_APPROVAL = approval
    assert load_snapshot().default_outcome == expected


def test_only_permits_that_may_be_used_are_in_it():
    tool = new_tool()
    agent = Agent.objects.create(slug="ann")
    now = timezone.now()
    usable = {
        "agent": agent,
        "tool": tool,
        "definition_hash": "h",
        "server_revision": 1,
        "expires_at": now + timedelta(days=1),
    }
    good = Permit.objects.create(**usable, uses_left=2)
    Permit.objects.create(**usable | {"expires_at": now - timedelta(days=1)})
    Permit.objects.create(**usable, uses_left=0)
    Permit.objects.create(**usable, revoked_at=now)
    assert [spec.id for spec in load_snapshot().permits[agent.pk, tool.pk]] == [good.pk]


# -- drafts ----------------------------------------------------------------------------------------


def test_rules_are_read_from_files_by_names():
    tool = new_tool()
    rules = read_rules(
        "- name: big\n  outcome: deny\n  tool: git::commit\n  condition: args.amount > 100\n- outcome: ask\n"
    )
    assert [(r.name, r.outcome, r.tool, r.condition) for r in rules] == [
        ("big", "deny", tool, "args.amount > 100"),
        ("draft 2", "ask", None, ""),
    ]
    assert read_rules('{"rules": [{"name": "x"}]}')[0].name == "x"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- name: [", "line 1"),
        ("3", "does not contain a list of rules"),
        ("- 3", "does not contain a list of rules"),
        ("- nmae: x", "no field 'nmae'"),
        ("- server: nobody", 'No server named "nobody"'),
        ("- tool: nobody::x", "No tool"),
        ("- approvers: nobody", 'No group named "nobody"'),
    ],
)
def test_files_that_cannot_be_read_say_why(text: str, says: str):
    with pytest.raises(ConfigInvalid, match=says):
        read_rules(text)


def test_a_scope_is_taken_away_by_naming_nothing():
    rule = fill_rule(PolicyRule(server=new_tool().server), {"server": None})
    assert rule.server is None


# Drafts


def test_a_draft_decides_nothing_until_it_is_made_live_once():
    new_tool()
    rule = save(name="new", outcome="deny", draft=True, enabled=True)
    # so that an older release, which knows no drafts, does not take it for a rule either
    assert not rule.enabled
    assert load_snapshot().rules == ()
    with pytest.raises(Conflict, match="is still a draft"):
        switch_rule(rule=rule, enabled=True, actor="a")
    make_live(rule=rule, actor="user:ann")
    assert [spec.name for spec in load_snapshot().rules] == ["new"]
    with pytest.raises(Conflict, match="no longer a draft"):
        make_live(rule=rule, actor="user:ann")
    told = AuditEntry.objects.filter(subject=f"rule:{rule.pk}").order_by("id")
    assert [(each.kind, '"draft":true' in each.body) for each in told] == [
        ("rule.created", True),
        ("rule.changed", False),
    ]


def test_a_draft_may_ask_though_nobody_can_answer_yet_but_does_not_live_so():
    rule = save(outcome="ask", draft=True)
    with pytest.raises(ConfigInvalid, match="could never be approved"):
        make_live(rule=rule, actor="a")
    rule.refresh_from_db()
    assert rule.draft
    assert not rule.enabled


def test_a_draft_auto_approves_nothing():
    tool = new_tool()
    save(name="auto", outcome="allow", priority=50, tool=tool, draft=True)
    assert list_auto_rules(tool=tool) == []
    assert auto_approve(tool=tool, actor="a").live


def test_a_rule_is_made_like_a_call():
    tool = new_tool()
    agent = Agent.objects.create(slug="ann")
    arguments = {
        "branch": 'a"b',
        "amount": 3,
        "wide": {"x": 1},
        "odd name": 1,
        "in": 2,
        "long": "x" * 1000,
    }
    call = Invocation(
        agent_slug="ann", server_slug="git", tool_name="commit", arguments=json.dumps(arguments)
    )
    rule = draft_rule_like_call(call)
    assert (rule.agent, rule.tool, rule.draft, rule.pk) == (agent, tool, True, None)
    assert (
        rule.condition
        == 'has(args.branch) && args.branch == "a\\"b" && has(args.amount) && args.amount == 3'
    )
    save_rule(rule=rule, actor="a")
    assert draft_rule_like_call(Invocation(agent_slug="gone", arguments="")).condition == ""
