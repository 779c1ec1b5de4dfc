"""Four roles as Django groups; each holds what the one before it may do, and more."""

from __future__ import annotations

from django.contrib.auth.models import Group, Permission, User
from django.db.models import Q, QuerySet

VIEWER = "viewer"
OPERATOR = "operator"
APPROVER = "approver"
ADMIN = "admin"
ROLES = (VIEWER, OPERATOR, APPROVER, ADMIN)

DECIDE = "mcpregistry.decide_approval"  # the permission to decide on held calls

_OPERATOR = {
    *(
        f"{verb}_{model}"
        for verb in ("add", "change", "delete")
        for model in ("server", "endpoint")
    ),
    "change_tool",
    "call_tool",
    "test_server",
    "add_install",
    "delete_install",
    "sync_registrysource",
    "add_conversation",
    "change_conversation",
    "add_message",
    "change_hostsession",
    "add_credential",
    "change_credential",
    *(f"{verb}_{model}" for verb in ("add", "change") for model in ("provider", "languagemodel")),
    "run_expert",
    "steer_run",
    "add_maintenancerequest",
    "change_maintenancerequest",
    "decide_proposal",
}
_APPROVER = {"approve_definition", "decide_approval"}


def install_roles() -> None:
    """Make the groups and give them their permissions; idempotent, run after every migrate."""
    ours = Permission.objects.filter(content_type__app_label__in=["mcpregistry", "subagents"])
    views = ours.filter(codename__startswith="view_")
    sets = {
        VIEWER: views,
        OPERATOR: ours.filter(Q(id__in=views) | Q(codename__in=_OPERATOR)),
        APPROVER: ours.filter(Q(id__in=views) | Q(codename__in=_OPERATOR | _APPROVER)),
        ADMIN: Permission.objects.filter(Q(id__in=ours) | Q(content_type__app_label="auth")),
    }
    for name, permissions in sets.items():
        _get_or_create_role(name).permissions.set(permissions)


def _get_or_create_role(name: str) -> Group:
    """One of the four; made, where it is not there. It leaves no version: the release says what
    these may do, and a database on its way to this release has no table of versions yet."""
    found = Group.objects.filter(name=name).first()
    group = found or Group(name=name)
    group.skip_history_when_saving = True  # type: ignore[attr-defined]
    if found is None:
        group.save()
    return group


def find_approvers(group: Group | None) -> QuerySet[User]:
    """Everybody who could decide: active, with the permission, and in the group if one is named."""
    app, codename = DECIDE.split(".")
    own = Q(user_permissions__codename=codename, user_permissions__content_type__app_label=app)
    by_group = Q(
        groups__permissions__codename=codename, groups__permissions__content_type__app_label=app
    )
    people = User.objects.filter(own | by_group | Q(is_superuser=True), is_active=True)
    if group is not None:
        people = people.filter(pk__in=group.user_set.values("pk"))
    return people.distinct()


def find_highest_role(user: User) -> str:
    """The highest of the four roles that a person has; empty: none."""
    names = {group.name for group in user.groups.all()}
    return next((role for role in reversed(ROLES) if role in names), "")


def assign_role(*, user: User, role: str) -> None:
    """The person has this role and no other of the four; empty takes it. Groups of yours stay."""
    others = list(user.groups.exclude(name__in=ROLES))
    user.groups.set([*others, *Group.objects.filter(name=role)])
