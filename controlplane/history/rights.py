"""Who may put back, and take back, what."""

from __future__ import annotations

from collections.abc import Iterable

from django.contrib.auth.models import AnonymousUser, User
from django.db.models import Model

from controlplane.configuration.reading import Item
from mcpregistry.domain.errors import Denied
from mcpregistry.models import Credential
from mcpregistry.services.access.scopes import MAY_SCOPE

Person = User | AnonymousUser


def may(user: Person, item: Item) -> bool:
    """Whether the person may delete, make or change this record, whichever would happen to it; a credential's versions
    also say where it may go."""
    model = item.kind.model
    verb = "delete" if item.entry is None else "add" if item.row is None else "change"
    if model is Credential and not user.has_perm(MAY_SCOPE):
        return False
    return user.has_perm(_permission(verb, model))


def may_change(user: Person, model: type[Model]) -> bool:
    """Whether the person may put versions of such a record back."""
    return (model is not Credential or user.has_perm(MAY_SCOPE)) and user.has_perm(_permission("change", model))


def may_see(user: Person, model: type[Model]) -> bool:
    """Whether the person may read versions of such a record, as they may its page."""
    return user.has_perm(_permission("view", model)) or user.has_perm(_permission("change", model))


def _permission(verb: str, model: type[Model]) -> str:
    return f"{model._meta.app_label}.{verb}_{model._meta.model_name}"


def check(user: Person, items: Iterable[Item]) -> None:
    """Raises Denied where the person may not do one of these."""
    for item in items:
        if not may(user, item):
            what = item.kind.model._meta.verbose_name_plural
            raise Denied(f"You may not do that to {what}.", remedy="Ask somebody with the right to change them.")
