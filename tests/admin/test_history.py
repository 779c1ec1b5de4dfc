"""Putting versions back and undoing, as people meet it: buttons, banner, rights."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import Group, Permission
from django.test import Client
from django.urls import reverse

from controlplane.history import undo_changes
from mcpregistry.models import PolicyRule, Server
from mcpregistry.services.access import roles
from mcpregistry.services.policy import rules
from mcpregistry.services.servers import lifecycle
from tests.admin.conftest import ClientOf
from tests.admin.pressing import pressed
from tests.admin.test_policy import RULES, form
from tests.fakes.seed import ACTOR, Site

pytestmark = [pytest.mark.one_database, pytest.mark.usefixtures("contexts")]


def version_page(number: int) -> str:
    return reverse("history-version", args=["mcpregistry.policyrule", number])


def shown(client: Client, url: str) -> str:
    found = re.search(r'name="shown" value="(\w+)"', client.get(url).content.decode())
    assert found
    return found[1]


@pytest.fixture
def rule(site: Site) -> PolicyRule:
    return rules.save_rule(rule=PolicyRule(name="r", outcome="deny", note="first"), actor=ACTOR)


def test_a_version_is_put_back_from_the_records_history(
    client_of: ClientOf, rule: PolicyRule
) -> None:
    root = client_of("root")
    first = rule.history.get().history_id
    root.post(f"{RULES}{rule.pk}/change/", form(name="r", outcome="ask", note="second"))
    page = root.get(f"{RULES}{rule.pk}/history/").content.decode()
    assert version_page(first) in page
    assert "admin" in page  # from where
    answer = root.post(
        version_page(first), {"shown": shown(root, version_page(first))}, follow=True
    )
    assert "Restored: 1 changed." in answer.content.decode()
    rule.refresh_from_db()
    assert (rule.outcome, rule.note) == ("deny", "first")
    assert rule.history.first().history_change_reason.startswith("admin: restored the version of")
    stale = root.post(version_page(first), {"shown": "x"})
    assert stale.status_code == 409
    assert client_of("viewer").get(version_page(first)).status_code == 403


def undo(client: Client, page: str) -> str:
    """Press the button on a page that was answered earlier."""
    at = re.search(r'name="at" value="([\d.]+)"', page)
    assert at
    return client.post(reverse("history-undo"), {"at": at[1]}, follow=True).content.decode()


@pytest.mark.usefixtures("live_db")
def test_the_last_action_is_undone_from_a_banner(
    client_of: ClientOf, site: Site, rule: PolicyRule
) -> None:
    root = client_of("root")
    answer = pressed(root, rule, "disable")
    assert "Rule r changed." in answer.content.decode()
    assert 'action="/admin/undo/"' in answer.content.decode()
    assert 'action="/admin/undo/"' not in client_of("admin").get(RULES).content.decode()
    answer = undo(root, answer.content.decode())
    assert "The change was undone." in answer
    assert 'action="/admin/undo/"' not in answer
    rule.refresh_from_db()
    assert rule.enabled
    assert "nothing to undo" in root.post(reverse("history-undo"), follow=True).content.decode()
    deleted = root.post(f"{RULES}{rule.pk}/delete/", {"post": "yes"}, follow=True).content.decode()
    undo(root, deleted)
    assert PolicyRule.objects.get().note == "first"
    root.post(f"{RULES}add/", form(name="other", outcome="deny"))
    assert "made another change after this one" in undo(root, deleted)
    assert [row.name for row in PolicyRule.objects.all()] == ["other", "r"]


@pytest.mark.usefixtures("live_db")
def test_undo_on_the_page_of_a_new_record_leads_to_its_list(
    client_of: ClientOf, site: Site
) -> None:
    root = client_of("root")
    saved = root.post(
        f"{RULES}add/", form(name="mistake", outcome="deny") | {"_continue": "1"}, follow=True
    )
    page, _ = saved.redirect_chain[-1]
    at = re.search(r'name="at" value="([\d.]+)"', saved.content.decode())
    assert at
    answer = root.post(
        reverse("history-undo"), {"at": at[1]}, headers={"Referer": f"http://testserver{page}"}
    )
    assert answer["Location"] == RULES
    assert not PolicyRule.objects.filter(name="mistake").exists()


@pytest.mark.exhaustive
@pytest.mark.usefixtures("live_db")
def test_undo_is_not_offered_after_its_minute(
    client_of: ClientOf, rule: PolicyRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = client_of("root")
    page = pressed(root, rule, "disable").content.decode()
    monkeypatch.setattr(undo_changes, "FOR", undo_changes.FOR * 0)
    assert 'action="/admin/undo/"' not in root.get(RULES).content.decode()
    assert "more than one minute ago" in undo(root, page)
    rule.refresh_from_db()
    assert not rule.enabled


@pytest.mark.both_databases
def test_the_site_is_put_back_to_a_time(client_of: ClientOf, site: Site, rule: PolicyRule) -> None:
    root = client_of("root")
    moment = int(rule.history.get().history_date.timestamp()) + 1
    PolicyRule.history.update(history_date=rule.history.get().history_date.replace(microsecond=0))
    servers = Server.objects.count()
    root.post(f"{RULES}{rule.pk}/change/", form(name="r", outcome="ask", note="second"))
    newest = rule.history.first()
    PolicyRule.history.filter(pk=newest.pk).update(
        history_date=newest.history_date.replace(year=2100)
    )
    assert "Restore…" in root.get(reverse("history-site")).content.decode()
    url = f"{reverse('history-site')}?at={moment}"
    site.people["operator"].user_permissions.add(
        Permission.objects.get(codename="change_configuration")
    )
    assert client_of("operator").get(url).status_code == 403, "nor may they change rules"
    proposal = root.get(url).content.decode()
    assert "Restore the configuration of" in proposal
    assert "<strong>rules: r</strong>" in proposal
    answer = root.post(url, {"shown": shown(root, url)}, follow=True)
    assert "Restored: 1 changed." in answer.content.decode()
    rule.refresh_from_db()
    assert (rule.note, Server.objects.count()) == ("first", servers)
    assert client_of("viewer").get(url).status_code == 403


@pytest.mark.exhaustive
@pytest.mark.both_databases
def test_what_a_group_was_allowed_is_put_back(client_of: ClientOf, site: Site) -> None:
    root = client_of("root")
    page = reverse("admin:auth_group_add")
    look, change = (
        Permission.objects.get(codename=f"{verb}_server") for verb in ("view", "change")
    )
    root.post(page, {"name": "keepers", "permissions": [look.pk]})
    group = Group.objects.get(name="keepers")
    first = group.history.first().history_id
    root.post(
        reverse("admin:auth_group_change", args=[group.pk]),
        {"name": "guards", "permissions": [change.pk]},
    )
    said = root.get(reverse("admin:auth_group_history", args=[group.pk])).content.decode()
    assert "Can change server" in said
    url = reverse("history-version", args=["auth.group", first])
    assert url in said
    text = root.get(url).content.decode()
    assert "mcpregistry.view_server" in text
    answer = root.post(url, {"shown": shown(root, url)}, follow=True)
    assert "Restored: 1 changed." in answer.content.decode()
    group.refresh_from_db()
    assert (group.name, [*group.permissions.all()]) == ("keepers", [look])
    group.delete()
    root.post(url, {"shown": shown(root, url)})
    assert [*Group.objects.get(name="keepers").permissions.all()] == [look]


def test_what_a_role_may_do_is_the_releases_word(client_of: ClientOf, site: Site) -> None:
    role = Group.objects.get(name="viewer")
    assert not role.history.exists()
    role.permissions.remove(role.permissions.all()[0])
    version = role.history.get()
    root = client_of("root")
    assert (
        "Restore…"
        not in root.get(reverse("admin:auth_group_history", args=[role.pk])).content.decode()
    )
    answer = root.get(reverse("history-version", args=["auth.group", version.history_id]))
    assert "are fixed by the installed release" in answer.content.decode()


def test_an_accounts_history_is_told_by_the_audit_log_and_nothing_of_it_is_put_back(
    client_of: ClientOf, site: Site
) -> None:
    root = client_of("root")
    person = site.people["viewer"]
    person.user_permissions.clear()
    roles.assign_role(user=person, role="operator")
    name = person.username
    person.username = "renamed"
    person.is_active = False
    person.set_password("canary-password")
    person.save()
    page = root.get(reverse("admin:auth_user_history", args=[person.pk])).content.decode()
    text = re.sub(r"<[^>]+>|\s+", " ", page)
    text = re.sub(r"\s+", " ", text)
    for words in (
        "Roles added",
        "roles : operator",
        "Roles removed",
        "roles : viewer",
        f"username : {name} → renamed",
        "active : yes → no",
        "Password changed",
    ):
        assert words in text, words
    assert "canary" not in page
    assert person.password not in page
    assert "Restore…" not in page
    assert "cannot be restored" in page
    operator = client_of("operator")
    assert operator.get(reverse("admin:auth_user_history", args=[person.pk])).status_code == 403
    person.delete()
    assert root.get(reverse("admin:auth_user_history", args=[4711])).status_code == 302


def test_the_history_says_times_and_digests_as_people_read_them(
    client_of: ClientOf, site: Site
) -> None:
    server = Server.objects.create(slug="fresh", transport="stdio", command=["uvx", "fresh"])
    server = lifecycle.confirm_launch(server=server, launch_hash=server.launch_hash(), actor=ACTOR)
    page = client_of("root").get(f"/admin/mcpregistry/server/{server.pk}/history/").content.decode()
    assert f"{server.confirmed_at:%d %b %Y %H:%M:%S}".lstrip("0") in page
    assert f"{server.confirmed_launch[:12]}…" in page
    assert server.confirmed_launch not in page


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize(("who", "shown"), [("approver", False), ("admin", True)])
def test_the_sites_history_offers_only_what_a_person_may_put_back(
    client_of: ClientOf, site: Site, who: str, shown: bool
) -> None:
    page = client_of(who).get(reverse("history-site")).content.decode()
    links = re.findall(r"/admin/history/mcpregistry\.(\w+)/", page)
    assert ("agent" in links) is shown


def test_the_history_names_other_records(client_of: ClientOf, site: Site) -> None:
    """A person by the name, not by the number."""
    server = site.servers["browser"]
    operator = site.people["operator"]
    lifecycle.confirm_launch(
        server=server, actor=ACTOR, launch_hash=server.launch_hash(), user=operator
    )
    page = (
        client_of("admin")
        .get(reverse("admin:mcpregistry_server_history", args=[server.pk]))
        .content.decode()
    )
    assert '<strong>confirmed by</strong>: <span class="sn-quiet">empty</span> → operator' in page
