"""Four roles, each holding what the one before it may do; secrets and people stay with the
admin."""

from __future__ import annotations

import itertools

import pytest
from django.contrib.auth.models import Group

from mcpregistry.services.access.roles import (
    ADMIN,
    APPROVER,
    OPERATOR,
    ROLES,
    VIEWER,
    install_roles,
)

pytestmark = pytest.mark.django_db


def held(role: str) -> set[str]:
    permissions = Group.objects.get(name=role).permissions.select_related("content_type")
    return {f"{p.content_type.app_label}.{p.codename}" for p in permissions}


def test_each_role_holds_what_the_one_before_it_may_do():
    sets = [held(role) for role in ROLES]
    assert all(smaller < larger for smaller, larger in itertools.pairwise(sets))


def test_a_viewer_only_looks():
    assert {name.split(".")[1].split("_")[0] for name in held(VIEWER)} == {"view"}


@pytest.mark.parametrize(
    ("permission", "first"),
    [
        ("view_server", VIEWER),
        ("view_invocation", VIEWER),
        ("change_server", OPERATOR),
        ("test_server", OPERATOR),
        ("call_tool", OPERATOR),
        ("change_tool", OPERATOR),
        ("approve_definition", APPROVER),
        ("confirm_server", ADMIN),
        ("view_approvalrequest", VIEWER),
        ("decide_approval", APPROVER),
        ("add_grant", ADMIN),
        ("add_agent", ADMIN),
        ("add_token", ADMIN),
        ("delete_credential", ADMIN),
    ],
)
def test_who_may_do_what(permission: str, first: str):
    able = [role for role in ROLES if f"mcpregistry.{permission}" in held(role)]
    assert able == list(ROLES[ROLES.index(first) :])


def test_only_the_admin_manages_people():
    assert "auth.change_user" in held(ADMIN)
    assert not any(name.startswith("auth.") for role in ROLES[:-1] for name in held(role))


def test_installing_again_repairs_and_adds_nothing():
    before = {role: held(role) for role in ROLES}
    Group.objects.get(name=VIEWER).permissions.set(Group.objects.get(name=ADMIN).permissions.all())
    install_roles()
    assert {role: held(role) for role in ROLES} == before
    assert Group.objects.count() == len(ROLES)
