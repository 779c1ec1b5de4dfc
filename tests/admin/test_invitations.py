"""Inviting people by link: one account for one link, with the role it names, and its secret is
nowhere."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from mcpregistry.domain.errors import ConfigInvalid, NotFound
from mcpregistry.models import AuditEntry, Invitation, Token
from mcpregistry.services.access import invitations, logins, roles, tokens
from tests.admin.conftest import ClientOf
from tests.fakes.seed import ACTOR, Site

GOOD = "a long enough phrase 42"


def made(site: Site, role: str = "approver") -> tuple[Invitation, str]:
    return invitations.invite(name="Kim", role=role, by=site.people["admin"])


@pytest.mark.both_databases
def test_a_link_makes_one_account_with_its_role(site: Site) -> None:
    invitation, raw = made(site)
    client = Client()
    form = {"code": raw, "username": "kim", "password": GOOD, "again": GOOD}
    assert client.post(reverse("join"), form).url == "/admin/"  # type: ignore[attr-defined]
    assert logins.MARK in client.cookies, (
        "a stranger's guesses would lock the browser in which the account was made"
    )
    assert client.get("/approvals/").status_code == 200
    kim = User.objects.get(username="kim")
    assert (kim.is_staff, kim.is_superuser, roles.find_highest_role(kim)) == (
        True,
        False,
        "approver",
    )
    invitation.refresh_from_db()
    assert (invitation.state, invitation.used_by) == ("used", kim)
    assert invitations.find_invitation(raw) is None
    again = Client().post(reverse("join"), form | {"username": "eve"})
    assert again.status_code == 400
    assert "This invitation does not work" in again.content.decode()
    assert not User.objects.filter(username="eve").exists()
    log = str([*AuditEntry.objects.values()])
    assert "invitation.used" in log
    assert raw not in log


@pytest.mark.both_databases
def test_what_is_wrong_leaves_the_link_whole(site: Site) -> None:
    _, raw = made(site)
    for name, password in (("kim", "1234"), ("viewer", GOOD), ("not a name", GOOD)):
        with pytest.raises(ConfigInvalid):
            invitations.accept(raw=raw, username=name, password=password)
    differ = Client().post(
        reverse("join"), {"code": raw, "username": "kim", "password": GOOD, "again": "other"}
    )
    assert "The two passwords do not match." in differ.content.decode()
    assert invitations.accept(raw=raw, username="kim", password=GOOD).username == "kim"


@pytest.mark.both_databases
def test_a_link_ends_by_itself_or_is_withdrawn(client_of: ClientOf, site: Site) -> None:
    ended, raw = made(site)
    Invitation.objects.filter(pk=ended.pk).update(expires_at=timezone.now() - timedelta(minutes=1))
    withdrawn, other = made(site)
    url = reverse("admin:mcpregistry_invitation_verb", args=[withdrawn.pk, "withdraw"])
    assert client_of("operator").post(url).status_code == 403
    client_of("admin").post(url)
    for each in (raw, other, "sli_nothing"):
        assert invitations.find_invitation(each) is None
        with pytest.raises(NotFound):
            invitations.accept(raw=each, username="kim", password=GOOD)
    withdrawn.refresh_from_db()
    assert (Invitation.objects.get(pk=ended.pk).state, withdrawn.state) == ("expired", "withdrawn")


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.attack
@pytest.mark.parametrize("how", ["demoted", "disabled", "deleted"])
def test_a_link_gives_nothing_that_its_maker_could_not_give_now(site: Site, how: str) -> None:
    _, raw = made(site, "admin")
    inviter = site.people["admin"]
    if how == "demoted":
        roles.assign_role(user=inviter, role="viewer")
    elif how == "disabled":
        User.objects.filter(pk=inviter.pk).update(is_active=False)
    else:
        inviter.delete()
    form = {"code": raw, "username": "kim", "password": GOOD, "again": GOOD}
    answer = Client().post(reverse("join"), form)
    assert answer.status_code == 400
    assert "no longer has permission to invite" in answer.content.decode()
    assert not User.objects.filter(username="kim").exists()


def test_of_two_who_use_a_link_at_once_one_gets_in(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, raw = made(site)
    make = invitations._create_account

    def make_second(username: str, password: str) -> User:
        monkeypatch.setattr(invitations, "_create_account", make)
        assert invitations.accept(raw=raw, username="first", password=GOOD).username == "first"
        return make(username, password)

    monkeypatch.setattr(invitations, "_create_account", make_second)
    with pytest.raises(NotFound):
        invitations.accept(raw=raw, username="second", password=GOOD)


def test_the_page_shows_the_link_once_and_only_to_who_may_invite(
    client_of: ClientOf, site: Site
) -> None:
    url = reverse("admin:mcpregistry_invitation_add")
    form = {"name": "Kim", "role": "viewer", "days": "7"}
    assert client_of("approver").post(url, form).status_code == 403
    answer = client_of("admin").post(url, form)
    link = re.search(r'id="link"[^>]*>([^<]+)<', answer.content.decode())
    assert link is not None
    path, _, raw = link[1].partition("#")
    assert 'data-copy="link"' in answer.content.decode()
    assert path.endswith("/join/"), "the secret stands where no request has it"
    assert invitations.find_invitation(raw) is not None
    assert "no-store" in answer["Cache-Control"]
    for page in (
        reverse("admin:mcpregistry_invitation_changelist"),
        "/admin/mcpregistry/auditentry/",
    ):
        assert raw not in client_of("admin").get(page).content.decode()


def test_whoever_may_only_add_people_gives_nobody_a_role_by_a_link(site: Site) -> None:
    helper = User.objects.create_user("helper", is_staff=True)
    helper.user_permissions.set(Permission.objects.filter(codename="add_user"))
    client = Client()
    client.force_login(helper)
    url = reverse("admin:mcpregistry_invitation_add")
    assert client.post(url, {"name": "Me", "role": "admin", "days": "7"}).status_code == 403
    assert not Invitation.objects.exists()


# Roles on the page of a person


def test_a_role_is_one_field_and_staff_follows(client_of: ClientOf, site: Site) -> None:
    client = client_of("admin")
    url = reverse("admin:auth_user_add")
    form = {
        "username": "kim",
        "role": "approver",
        "usable_password": "true",
        "password1": GOOD,
        "password2": GOOD,
    }
    client.post(url, form)
    kim = User.objects.get(username="kim")
    assert (kim.is_staff, roles.find_highest_role(kim)) == (True, "approver")
    assert Client().login(username="kim", password=GOOD)
    page = reverse("admin:auth_user_change", args=[kim.pk])
    for role in ("operator", ""):
        client.post(page, {"username": "kim", "role": role, "is_active": "on"})
        kim = User.objects.get(username="kim")
        assert (roles.find_highest_role(kim), kim.is_staff) == (role, bool(role))
    kinds = AuditEntry.objects.filter(subject="user:kim", kind__contains="roles").values_list(
        "kind", flat=True
    )
    assert {*kinds} == {"user.roles_given", "user.roles_taken"}
    html = client.get(page).content.decode()
    assert 'name="role"' in html
    assert 'name="is_staff"' not in html
    assert "none: cannot log in" in html
    User.objects.filter(pk=kim.pk).update(is_superuser=True, is_staff=True)
    html = client.get(page).content.decode()
    assert "none: a superuser needs no role" in html
    assert "none: cannot log in" not in html


# Tokens


@pytest.mark.both_databases
def test_a_rotated_token_works_beside_the_new_one_until_the_overlap_is_over(
    client_of: ClientOf, site: Site
) -> None:
    old, raw = tokens.issue_token(name="box", agent=site.agents["ci"], actor=ACTOR)
    url = reverse("admin:mcpregistry_token_rotate", args=[old.pk])
    assert client_of("operator").post(url, {"hours": "24"}).status_code == 403
    html = client_of("admin").post(url, {"hours": "24"}).content.decode()
    shown = re.search(r'id="token"[^>]*>([^<]+)<', html)
    assert shown is not None
    assert 'data-copy="token"' in html
    assert "The old token works until" in html
    assert tokens.find_token(raw) is not None
    new = tokens.find_token(shown[1])
    assert new is not None
    assert (new.agent, new.name) == (old.agent, "box")
    assert (
        "The old token no longer works."
        in client_of("admin")
        .post(reverse("admin:mcpregistry_token_rotate", args=[new.pk]), {"hours": "0"})
        .content.decode()
    )
    old.refresh_from_db()
    assert timedelta(hours=23) < old.expires_at - timezone.now() <= timedelta(hours=24, minutes=1)  # type: ignore[operator]
    Token.objects.filter(pk=old.pk).update(expires_at=timezone.now() - timedelta(minutes=1))
    assert tokens.find_token(raw) is None
    with pytest.raises(ConfigInvalid):
        tokens.rotate_token(token=old, actor=ACTOR)
    assert AuditEntry.objects.filter(kind="token.rotated").count() == 2


def test_another_persons_token_is_not_rotated_and_ones_own_is(
    client_of: ClientOf, site: Site
) -> None:
    for name, status in (("approver", 403), ("admin", 200)):
        held, _ = tokens.issue_token(name="laptop", user=site.people[name], actor=ACTOR)
        url = reverse("admin:mcpregistry_token_rotate", args=[held.pk])
        assert client_of("admin").get(url).status_code == status
        page = client_of("admin").get(reverse("admin:mcpregistry_token_change", args=[held.pk]))
        assert (url in page.content.decode()) is (status == 200)
        answer = client_of("admin").post(url, {"hours": "24"})
        assert (answer.status_code, b'id="token"' in answer.content) == (status, status == 200)
        assert Token.objects.filter(user=site.people[name]).count() == (2 if status == 200 else 1)


def test_lists_say_what_ends_soon(client_of: ClientOf, site: Site) -> None:
    old, _ = tokens.issue_token(
        name="brief",
        agent=site.agents["ci"],
        actor=ACTOR,
        expires_at=timezone.now() + timedelta(days=3),
    )
    html = (
        client_of("viewer")
        .get(reverse("admin:mcpregistry_token_changelist") + "?validity=soon")
        .content.decode()
    )
    assert old.prefix in html
    assert "expires soon" in html.lower()
    later, _ = tokens.issue_token(name="long", agent=site.agents["ci"], actor=ACTOR)
    assert (
        later.prefix
        not in client_of("viewer")
        .get(reverse("admin:mcpregistry_token_changelist") + "?validity=soon")
        .content.decode()
    )
