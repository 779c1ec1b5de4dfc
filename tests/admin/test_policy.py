"""Rules, permits, what tools do, the replay and the why: every page, for whoever may see it."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from mcpregistry.models import AuditEntry, Invocation, Permit, PolicyRule, Server, Tool
from mcpregistry.services.access import tokens
from mcpregistry.services.definitions import behaviour, decisions, observe
from mcpregistry.services.policy import rules
from mcpregistry.services.records import audit
from tests.admin.conftest import ClientOf
from tests.admin.pressing import asked, chosen, pressed
from tests.fakes.held import hold
from tests.fakes.seed import ACTOR, Site, tool

pytestmark = [pytest.mark.one_database, pytest.mark.usefixtures("contexts")]

RULES = "/admin/mcpregistry/policyrule/"


def form(**changes: Any) -> dict[str, Any]:
    values = {
        "name": "Big",
        "enabled": "on",
        "outcome": "ask",
        "priority": 100,
        "quorum": 1,
        "decide_seconds": 900,
        "execute_seconds": 600,
        "refusal_seconds": 300,
        "condition": "",
        "expert": "",
        "note": "",
    }
    return values | changes


def test_a_rule_is_made_changed_and_deleted(client_of: ClientOf, site: Site) -> None:
    root = client_of("root")
    answer = root.post(
        f"{RULES}add/", form(condition="args.amount > 100", tool=Tool.objects.all()[0].pk)
    )
    assert answer.status_code == 302
    rule = PolicyRule.objects.get()
    assert (rule.condition, rule.history.count()) == ("args.amount > 100", 1)
    assert root.post(f"{RULES}{rule.pk}/change/", form(outcome="deny")).status_code == 302
    assert PolicyRule.objects.get().outcome == "deny"
    assert root.post(f"{RULES}{rule.pk}/delete/", {"post": "yes"}).status_code == 302
    assert not PolicyRule.objects.exists()
    told = (
        AuditEntry.objects.filter(subject=f"rule:{rule.pk}")
        .order_by("id")
        .values_list("kind", flat=True)
    )
    assert list(told) == ["rule.created", "rule.changed", "rule.deleted"]


def test_a_broken_condition_is_said_at_its_field_and_what_was_typed_stays(
    client_of: ClientOf,
) -> None:
    answer = client_of("root").post(f"{RULES}add/", form(condition="args.amount > 100 &&"))
    assert answer.status_code == 200
    assert "column 21" in str(answer.context["adminform"].form.errors["condition"])
    assert "args.amount &gt; 100 &amp;&amp;" in answer.content.decode()
    assert not PolicyRule.objects.exists()


def test_a_rule_that_nobody_could_answer_is_refused_in_the_form(client_of: ClientOf) -> None:
    answer = client_of("root").post(f"{RULES}add/", form(quorum=10))
    assert "could never be approved" in str(answer.context["adminform"].form.non_field_errors())
    assert not PolicyRule.objects.exists()


@pytest.mark.both_databases
def test_rules_are_found_filtered_and_switched_in_bulk(client_of: ClientOf, site: Site) -> None:
    root = client_of("root")
    assert root.get(RULES).status_code == 200
    assert root.post(f"{RULES}starter/").status_code == 302
    assert root.get(f"{RULES}starter/").status_code == 302
    assert PolicyRule.objects.count() == 3
    assert len(root.get(f"{RULES}?q=Destructive").context["cl"].result_list) == 1
    assert len(root.get(f"{RULES}?outcome__exact=allow").context["cl"].result_list) == 2
    every = {"_selected_action": [rule.pk for rule in PolicyRule.objects.all()]}
    chosen(root, RULES, "disable_selected", PolicyRule.objects.all())
    assert not PolicyRule.objects.filter(enabled=True).exists()
    root.post(RULES, every | {"action": "enable_selected"})
    assert PolicyRule.objects.filter(enabled=True).count() == 3


@pytest.mark.exhaustive
def test_a_rule_is_switched_by_its_buttons_and_shows_its_failures(
    client_of: ClientOf, site: Site
) -> None:
    rule = rules.save_rule(rule=PolicyRule(name="r<b>", condition="args.x == 1"), actor=ACTOR)
    audit.record_entry(
        kind=rules.CONDITION_FAILED, actor="policy", subject=f"rule:{rule.pk}", why="reads 'x'"
    )
    root = client_of("root")
    page = root.get(f"{RULES}{rule.pk}/change/").content.decode()
    assert "Failed evaluations of the condition" in page
    assert "r&lt;b&gt;" in page
    for name, enabled in (("disable", False), ("enable", True)):
        pressed(root, rule, name)
        assert PolicyRule.objects.get().enabled is enabled


@pytest.mark.exhaustive(one_in=4)
@pytest.mark.parametrize(
    ("role", "may"), [("viewer", False), ("operator", False), ("approver", False), ("admin", True)]
)
def test_only_administrators_write_rules(client_of: ClientOf, role: str, may: bool) -> None:
    client = client_of(role)
    assert client.get(RULES).status_code == 200
    assert (client.post(f"{RULES}add/", form()).status_code == 302) is may
    client.post(f"{RULES}starter/")
    assert PolicyRule.objects.exists() is may


@pytest.mark.exhaustive
def test_a_rule_made_from_a_call_is_a_draft_that_is_tried_and_then_made_live(
    client_of: ClientOf, site: Site
) -> None:
    root = client_of("root")
    call = Invocation.objects.filter(server_slug="git", state="succeeded").first()
    assert call is not None
    page = root.get(f"/admin/mcpregistry/invocation/{call.pk}/change/").content.decode()
    assert f"policyrule/add/?call={call.pk}" in page
    assert (
        f"?call={call.pk}"
        not in client_of("viewer")
        .get(f"/admin/mcpregistry/invocation/{call.pk}/change/")
        .content.decode()
    )
    begun = root.get(f"{RULES}add/?call={call.pk}").context["adminform"].form.initial
    assert (begun["draft"], Tool.objects.get(pk=begun["tool"]).name) == (True, call.tool_name)
    written = form(
        **{name: value for name, value in begun.items() if value}
        | {"outcome": "deny", "draft": "on"}
    )
    tried = root.post(f"{RULES}add/", written)
    rule = PolicyRule.objects.get()
    assert (tried.url, rule.draft, rule.live) == (f"{RULES}{rule.pk}/try/", True, False)
    assert "Enable the saved draft" in root.get(tried.url).content.decode()
    assert (
        root.post(reverse("admin:mcpregistry_policyrule_verb", args=[rule.pk, "live"])).status_code
        == 302
    )
    assert PolicyRule.objects.get().live


# -- replay ----------------------------------------------------------------------------------------


@pytest.mark.both_databases
def test_a_draft_is_tried_on_past_calls_and_nothing_is_saved(
    client_of: ClientOf, site: Site
) -> None:
    client = client_of("viewer")
    assert client.get(f"{RULES}try/").status_code == 200
    draft = {"outcome": "deny", "priority": 100, "condition": 'args.query == "number 1"', "days": 7}
    answer = client.post(f"{RULES}try/", draft)
    report = answer.context["report"]
    assert (report.denied, report.changed) == (1, 1)
    assert report.judged + report.gone == report.found > 30
    assert "number 1" in answer.content.decode()
    assert [(calls, change.after) for change, calls in answer.context["changes"]] == [(1, "deny")]
    assert not PolicyRule.objects.exists()


def test_a_saved_rule_is_tried_with_changes(client_of: ClientOf, site: Site) -> None:
    rule = rules.save_rule(rule=PolicyRule(name="all", outcome="deny", enabled=False), actor=ACTOR)
    url = reverse("admin:mcpregistry_policyrule_try_one", args=[rule.pk])
    client = client_of("viewer")
    assert client.get(url).context["form"].initial["outcome"] == "deny"
    report = client.post(
        url, {"outcome": "allow", "priority": 1, "server": "git", "days": 7}
    ).context["report"]
    assert report.allowed > 0
    rule.refresh_from_db()
    assert (rule.outcome, rule.server_id) == ("deny", None)


def test_a_broken_draft_says_where(client_of: ClientOf) -> None:
    draft = {"outcome": "deny", "priority": 100, "condition": "args.", "days": 7}
    answer = client_of("viewer").post(f"{RULES}try/", draft)
    assert "column 6" in str(answer.context["form"].errors["condition"])
    answer = client_of("viewer").post(
        f"{RULES}try/", draft | {"condition": "", "tool": "nobody::nothing"}
    )
    assert "No tool named" in str(answer.context["form"].non_field_errors())


# -- why -------------------------------------------------------------------------------------------


def test_why_says_every_stage(client_of: ClientOf, site: Site) -> None:
    client = client_of("viewer")
    assert client.get(f"{RULES}why/").status_code == 200
    asked = {
        "agent": "local",
        "endpoint": "default",
        "tool": "git::git_push",
        "arguments": '{"query": "x"}',
    }
    found = client.get(f"{RULES}why/", asked)
    assert found.context["why"].listed
    assert "The call waits for 1 approval" in found.content.decode()
    hidden = client.get(f"{RULES}why/", asked | {"tool": "github::delete_repository"})
    assert "definition is not approved yet" in hidden.content.decode()
    wrong = client.get(f"{RULES}why/", asked | {"tool": "nobody::nothing"})
    assert "No tool named" in str(wrong.context["form"].errors["tool"])
    assert (
        client.get(f"{RULES}why/", asked | {"arguments": "[1]"}).context["form"].errors["arguments"]
    )


def test_whoever_may_not_see_calls_tries_no_rule_on_them(site: Site) -> None:
    """The page and REST answer with arguments of past calls, and conditions can ask for each letter
    of them."""
    rule = PolicyRule.objects.create(name="Big", outcome="ask")
    user = User.objects.create(username="rules-only", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_policyrule"))
    client = Client()
    client.force_login(user)
    page = client.get(f"{RULES}{rule.pk}/change/")
    assert page.status_code == 200
    assert "Try on past calls" not in page.content.decode()
    assert "Try a rule on past calls" not in client.get(RULES).content.decode()
    assert client.get(f"{RULES}{rule.pk}/try/").status_code == 403
    assert client.get(f"{RULES}try/").status_code == 403
    _, raw = tokens.issue_token(name="t", actor=ACTOR, user=user)
    asked = {"data": {"rule": {"condition": "true"}}, "content_type": "application/json"}
    answer = Client().post(
        "/api/v1/rules/test", **asked, headers={"authorization": f"Bearer {raw}"}
    )
    assert (answer.status_code, answer.json()["code"]) == (403, "DENIED")


# -- what a tool does ------------------------------------------------------------------------------


@pytest.fixture
def claimed(site: Site) -> Tool:
    listed = tool("fetch", "Fetch.", annotations={"readOnlyHint": True, "openWorldHint": True})
    observe.observe(server=site.servers["time"], listed=[listed])
    decisions.approve_waiting(server=site.servers["time"], actor=ACTOR)
    return Tool.objects.get(name="fetch")


def tool_verb(found: Tool, name: str) -> str:
    return reverse("admin:mcpregistry_tool_verb", args=[found.pk, name])


def test_claims_stand_beside_what_is_confirmed(client_of: ClientOf, claimed: Tool) -> None:
    client = client_of("approver")
    page = client.get(reverse("admin:mcpregistry_tool_change", args=[claimed.pk]))
    assert page.context["risk"] == "high"
    assert client.post(tool_verb(claimed, "confirm-claims")).status_code == 302
    claimed.refresh_from_db()
    assert (claimed.read_only, claimed.destructive, claimed.open_world) == (True, False, True)
    page = client.get(reverse("admin:mcpregistry_tool_change", args=[claimed.pk]))
    assert page.context["risk"] == "medium"
    assert "Confirm claims" not in page.content.decode()


def test_a_person_says_what_a_tool_does(client_of: ClientOf, claimed: Tool) -> None:
    url = reverse("admin:mcpregistry_tool_behaviour", args=[claimed.pk])
    client = client_of("approver")
    assert client.get(url).status_code == 200
    assert (
        client.post(url, {"read_only": "true", "destructive": "true", "open_world": ""}).status_code
        == 200
    )
    assert (
        client.post(
            url, {"read_only": "false", "destructive": "false", "open_world": ""}
        ).status_code
        == 302
    )
    claimed.refresh_from_db()
    assert (claimed.read_only, claimed.destructive, claimed.open_world) == (False, False, None)
    assert client_of("operator").post(url, {"read_only": "true"}).status_code == 403


def test_nobody_vouches_for_what_was_changed_after_the_page_was_shown(
    client_of: ClientOf, claimed: Tool
) -> None:
    client = client_of("approver")
    url = reverse("admin:mcpregistry_tool_behaviour", args=[claimed.pk])
    shown = client.get(url).context["seen"]
    behaviour.confirm_annotations(
        tool=claimed, actor=ACTOR, read_only=False, destructive=True, open_world=None
    )
    refused = client.post(
        url, {"read_only": "true", "destructive": "", "open_world": "", "seen": shown}
    )
    assert "The tool was changed after you opened it" in refused.content.decode()
    assert "destructive: yes" in refused.content.decode()
    client.post(tool_verb(claimed, "confirm-claims"), {"seen": shown})
    claimed.refresh_from_db()
    assert (claimed.read_only, claimed.destructive, claimed.open_world) == (False, True, None)
    again = {
        "read_only": "true",
        "destructive": "false",
        "open_world": "",
        "seen": refused.context["seen"],
    }
    assert client.post(url, again).status_code == 302


def test_claims_of_a_new_definition_are_not_confirmed_by_an_older_page(
    client_of: ClientOf, claimed: Tool
) -> None:
    client = client_of("approver")
    page = client.get(reverse("admin:mcpregistry_tool_change", args=[claimed.pk]))
    assert f'name="seen" value="{page.context["seen"]}"' in page.content.decode()
    listed = tool("fetch", "Fetch.", annotations={"readOnlyHint": True, "openWorldHint": False})
    observe.observe(server=claimed.server, listed=[listed])
    decisions.approve_waiting(server=claimed.server, actor=ACTOR)
    client.post(tool_verb(claimed, "confirm-claims"), {"seen": page.context["seen"]})
    claimed.refresh_from_db()
    assert (claimed.read_only, claimed.destructive, claimed.open_world) == (None, None, None)


def test_one_click_approves_ahead_and_takes_it_back(client_of: ClientOf, claimed: Tool) -> None:
    root = client_of("root")
    server = Server.objects.get(slug="git")
    for name, count in (("auto-approve", 1), ("ask-again", 0)):
        root.post(tool_verb(claimed, name))
        pressed(root, server, name)
        assert (
            len(rules.list_auto_rules(tool=claimed))
            == len(rules.list_auto_rules(server=server))
            == count
        )
    assert client_of("approver").post(tool_verb(claimed, "auto-approve")).status_code == 403


# -- permits ---------------------------------------------------------------------------------------


def test_permits_are_seen_and_revoked(client_of: ClientOf, site: Site, claimed: Tool) -> None:
    permit = Permit.objects.create(
        agent=site.agents["local"],
        tool=claimed,
        definition_hash="h",
        server_revision=1,
        argument_pins={"a": "\u202e"},
        expires_at=timezone.now() + timedelta(days=1),
    )
    client = client_of("approver")
    page = client.get("/admin/mcpregistry/permit/?usable=yes")
    assert [row.pk for row in page.context["cl"].result_list] == [permit.pk]
    assert "\u202e" not in page.content.decode()
    assert client.get(f"/admin/mcpregistry/permit/{permit.pk}/change/").status_code == 200
    assert (
        client_of("operator")
        .post(reverse("admin:mcpregistry_permit_verb", args=[permit.pk, "revoke"]))
        .status_code
        == 403
    )
    pressed(client, permit, "revoke")
    permit.refresh_from_db()
    assert permit.revoked_at is not None
    assert not client.get("/admin/mcpregistry/permit/?usable=yes").context["cl"].result_list


# Serious buttons ask


def test_a_serious_button_says_first_what_will_happen_and_does_exactly_that(
    client_of: ClientOf, site: Site
) -> None:
    root = client_of("root")
    server = Server.objects.get(slug="git")
    url = reverse("admin:mcpregistry_server_verb", args=[server.pk, "disable"])
    said = asked(root, server, "disable")
    assert re.fullmatch(r"\d+ agents? can no longer see or call \d+ tools?\.", said[0])
    assert "without an approval" in asked(root, server, "auto-approve")[0]
    sure = root.post(url).context["sure"]
    hold()
    again = root.post(url, {"sure": sure})
    assert again.status_code == 409
    assert "1 call that waits for a decision will not run" in " ".join(again.context["sentences"])
    server.refresh_from_db()
    assert server.enabled
    pressed(root, server, "disable")
    server.refresh_from_db()
    assert not server.enabled
    assert client_of("viewer").post(url).status_code == 403
