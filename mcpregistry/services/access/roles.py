"""Four roles as Django groups; each holds what the one before it may do, and more."""

from __future__ import annotations

from django.contrib.auth.models import Group, Permission
from django.db.models import Q

VIEWER, OPERATOR, APPROVER, ADMIN = "viewer", "operator", "approver", "admin"
ROLES = (VIEWER, OPERATOR, APPROVER, ADMIN)

_OPERATOR = {
    *(f"{verb}_{model}" for verb in ("add", "change", "delete") for model in ("server", "endpoint", "workspace")),
    "change_tool",
    "call_tool",
    "test_server",
    "add_credential",
    "change_credential",
    *(f"{verb}_{model}" for verb in ("add", "change") for model in ("provider", "languagemodel")),
    "run_expert",
    "steer_run",
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
        Group.objects.get_or_create(name=name)[0].permissions.set(permissions)
