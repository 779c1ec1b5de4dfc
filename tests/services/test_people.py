"""Whatever happens to accounts, roles and permissions is in the audit log, by whom, and without a
secret."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import Group, Permission, User
from django.db import OperationalError
from django.test import Client
from pytest_django import Settings

from mcpregistry.models import AuditEntry
from mcpregistry.services.access import tokens
from mcpregistry.services.access.roles import install_roles

pytestmark = [pytest.mark.django_db, pytest.mark.attack]


@pytest.fixture(autouse=True)
def root() -> User:
    return User.objects.create_superuser("root", password="canary-root")


def since(seq: int) -> list[tuple[str, str, str, dict[str, Any]]]:
    rows = AuditEntry.objects.filter(seq__gt=seq).order_by("seq")
    named = ("writer", "seq", "at", "kind", "actor", "subject")
    return [
        (
            r.kind,
            r.actor,
            r.subject,
            {k: v for k, v in json.loads(r.body).items() if k not in named},
        )
        for r in rows
    ]


def now() -> int:
    last = AuditEntry.objects.order_by("seq").last()
    return last.seq if last else 0


def test_an_account_is_told_from_its_making_to_its_end():
    before = now()
    user = User.objects.create_user("ann", email="a@example.org", password="canary-one")
    user.is_staff = True
    user.save()
    user.set_password("canary-two")
    user.save()
    user.save(update_fields=["last_login"])
    user.groups.add(Group.objects.get(name="viewer"))
    user.groups.set([Group.objects.get(name="admin")])
    user.user_permissions.add(Permission.objects.get(codename="view_user"))
    user.groups.clear()
    user.delete()
    told = [
        (kind, facts)
        for kind, actor, subject, facts in since(before)
        if (actor, subject) == ("system", "user:ann")
    ]
    assert [kind for kind, _ in told] == [
        "user.created",
        "user.changed",
        "user.password_changed",
        "user.roles_given",
        "user.roles_taken",
        "user.roles_given",
        "user.permissions_given",
        "user.roles_taken",
        "user.deleted",
    ]
    assert told[1][1] == {"is_staff": [False, True]}
    assert [facts.get("roles") or facts.get("permissions") for _, facts in told[3:8]] == [
        ["viewer"],
        ["viewer"],
        ["admin"],
        ["auth.view_user"],
        ["admin"],
    ]
    bodies = " ".join(AuditEntry.objects.values_list("body", flat=True))
    assert "canary" not in bodies
    assert user.password not in bodies


def test_from_the_other_side_it_is_the_same():
    ann = User.objects.create(username="ann")
    role = Group.objects.create(name="night")
    before = now()
    role.user_set.add(ann)
    Permission.objects.get(codename="decide_approval").group_set.add(role)
    role.permissions.clear()
    role.delete()
    assert since(before) == [
        ("user.roles_given", "system", "user:ann", {"roles": ["night"]}),
        (
            "group.permissions_given",
            "system",
            "group:night",
            {"permissions": ["mcpregistry.decide_approval"]},
        ),
        (
            "group.permissions_taken",
            "system",
            "group:night",
            {"permissions": ["mcpregistry.decide_approval"]},
        ),
        ("group.deleted", "system", "group:night", {}),
    ]


def test_a_permission_that_is_told_its_groups_leaves_a_version_of_each():
    day = Group.objects.create(name="day")
    night = Group.objects.create(name="night")
    permission = Permission.objects.get(codename="decide_approval")
    permission.group_set.add(day, night)
    permission.group_set.remove(day)
    permission.group_set.clear()
    allowed = {
        group.name: [version.permissions.count() for version in group.history.all()]
        for group in (day, night)
    }
    assert allowed == {"day": [0, 1, 0], "night": [0, 1, 0]}


def test_what_is_done_on_a_page_names_who_did_it(root: User):
    client = Client()
    ann = User.objects.create(username="ann", password="!")
    client.force_login(root)
    before = now()
    form = {"usable_password": "true", "password1": "canary-Xyz-9", "password2": "canary-Xyz-9"}
    assert client.post(f"/admin/auth/user/{ann.pk}/password/", form).status_code == 302
    assert since(before) == [("user.password_changed", "user:root", "user:ann", {})]
    before = now()
    page = {"username": "ann", "is_active": "on", "role": "approver"}
    assert client.post(f"/admin/auth/user/{ann.pk}/change/", page).status_code == 302
    assert since(before) == [
        ("user.changed", "user:root", "user:ann", {"is_staff": [False, True]}),
        ("user.roles_given", "user:root", "user:ann", {"roles": ["approver"]}),
    ]


def test_new_password_revokes_the_persons_tokens(client: Client):
    ann = User.objects.create_user("ann", password="canary-one")
    bob = User.objects.create_user("bob")
    (_, raw), (_, other) = (
        tokens.issue_token(name="script", actor="test", user=user) for user in (ann, bob)
    )
    ann.last_name = "Other"
    ann.save()
    assert tokens.find_token(raw)
    before = now()
    ann.set_password("canary-two")
    ann.save()
    assert tokens.find_token(raw) is None
    assert tokens.find_token(other)
    assert [kind for kind, *_ in since(before)] == ["user.password_changed", "token.revoked"]
    answer = client.get("/api/v1/servers", headers={"authorization": f"Bearer {raw}"})
    assert answer.status_code == 401


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("page", ["/admin/password_change/", "/admin/auth/user/{pk}/password/"])
def test_password_stays_if_the_tokens_cannot_be_revoked(
    live_db: None, monkeypatch: pytest.MonkeyPatch, page: str
):
    """Otherwise the old tokens would go on working, and a second attempt would not revoke them."""
    ann = User.objects.create_superuser("ann", password="canary-one")
    _, raw = tokens.issue_token(name="script", actor="test", user=ann)
    client = Client()
    client.force_login(ann)
    form = {
        "old_password": "canary-one",
        "new_password1": "canary-two!",
        "new_password2": "canary-two!",
    }
    form |= {"password1": "canary-two!", "password2": "canary-two!", "usable_password": "true"}

    def refuse(**_: object) -> None:
        raise OperationalError("disk I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(tokens, "revoke_token", refuse)
        with pytest.raises(OperationalError):
            client.post(page.format(pk=ann.pk), form)
    assert User.objects.get(pk=ann.pk).check_password("canary-one")
    assert client.post(page.format(pk=ann.pk), form).status_code == 302
    assert tokens.find_token(raw) is None


@pytest.mark.exhaustive
def test_password_hashed_anew_revokes_no_token(settings: Settings):
    settings.PASSWORD_HASHERS = [
        "django.contrib.auth.hashers.PBKDF2PasswordHasher",
        *settings.PASSWORD_HASHERS,
    ]
    ann = User.objects.create(username="ann", password=make_password("canary", hasher="md5"))
    _, raw = tokens.issue_token(name="script", actor="test", user=ann)
    assert ann.check_password("canary")
    assert User.objects.get(pk=ann.pk).password.startswith("pbkdf2")
    assert tokens.find_token(raw)


@pytest.mark.exhaustive
def test_only_the_same_password_hashed_anew_is_told_as_such(settings: Settings):
    settings.PASSWORD_HASHERS = [
        f"django.contrib.auth.hashers.{name}PasswordHasher" for name in ("MD5", "PBKDF2SHA1")
    ]
    ann = User.objects.create(
        username="ann", password=make_password("canary-Xyz-9", hasher="pbkdf2_sha1")
    )
    ann = User.objects.get(pk=ann.pk)
    before = now()
    assert ann.check_password("canary-Xyz-9")
    assert since(before) == [
        ("user.password_changed", "system", "user:ann", {"only": "the same password, hashed again"})
    ]
    before = now()
    for new in ("another-Xyz-9", None):  # the last: one that opens nothing
        ann.set_password(new)
        ann.save(update_fields=["password"])
    assert since(before) == [("user.password_changed", "system", "user:ann", {})] * 2


def test_roles_that_are_as_they_were_are_no_change_and_a_bent_one_is():
    before = now()
    install_roles()
    assert since(before) == []
    Group.objects.get(name="viewer").permissions.add(Permission.objects.get(codename="delete_user"))
    install_roles()
    assert [kind for kind, *_ in since(before)] == [
        "group.permissions_given",
        "group.permissions_taken",
    ]
