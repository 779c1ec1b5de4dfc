"""Versions of groups of people, which are Django's own records: what the members of each were
allowed, and when."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.contrib.auth.models import Group, Permission
from simple_history import register
from simple_history.models import HistoricalRecords

_CLEARED = "_slipsnisse_cleared"


class _Versions(HistoricalRecords):
    """Also where the permission is told which groups have it: the library takes whichever side was
    asked for the group."""

    def m2m_changed(
        self,
        instance: Any,
        action: str,
        attr: str,
        pk_set: Collection[int] | None,
        reverse: bool,
        **more: Any,
    ) -> None:
        for group in _groups(instance, action, pk_set) if reverse else [instance]:
            super().m2m_changed(group, action, attr, pk_set, reverse, **more)


def _groups(permission: Permission, action: str, pk_set: Collection[int] | None) -> list[Group]:
    """Those that one change of a permission's groups has changed; which were cleared is known
    before alone."""
    if action == "pre_clear":
        setattr(permission, _CLEARED, list(permission.group_set.all()))
    if action == "post_clear":
        return list(permission.__dict__.pop(_CLEARED, []))
    return list(Group.objects.filter(pk__in=pk_set or ()))


register(Group, app="mcpregistry", records_class=_Versions, m2m_fields=["permissions"])
