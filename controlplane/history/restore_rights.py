"""Rights to put back a version and to undo a change: those that the same change needs on the
record's page or over REST."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.contrib import admin
from django.contrib.auth.models import AnonymousUser, Permission, User
from django.db.models import Model
from django.http import HttpRequest

from controlplane.configuration.document_import import DocumentItem
from controlplane.configuration.document_values import Secrets
from mcpregistry.domain.errors import ConfigInvalid, Denied
from mcpregistry.models import Budget, Channel, Configuration, Credential, Server, Tool
from mcpregistry.models.sealing import find_sealed_columns
from mcpregistry.services.access.scopes import MAY_SCOPE
from mcpregistry.services.definitions.behaviour import HINTS
from subagents.models import ExpertTool, Provider

Person = User | AnonymousUser

# Words of the site's document that the record's own page does not change. Each has the right that
# changing it needs in addition to the right to change the record, or "" if that right is enough.
BEYOND_PAGE: Mapping[type[Model], Mapping[str, str]] = {
    Budget: {"agent": "", "endpoint": "", "unit": ""},  # the service refuses a change of these
    Channel: {"access": ""},  # the page has its parts
    Configuration: {"default_outcome": "mcpregistry.add_policyrule"},
    # the page has the models one by one
    ExpertTool: {"agent": "mcpregistry.add_grant", "models": ""},
    Provider: {"confirmed": ""},  # no version confirms anything
    Server: {"confirmed": "", "enabled": "", "extra": "", "only_on": "mcpregistry.add_grant"},
    Tool: dict.fromkeys((*HINTS, "definition", "approved"), "mcpregistry.approve_definition"),
}
# Rights that every version of a kind needs: each version of a credential includes where the
# credential may go.
_ALWAYS: Mapping[type[Model], tuple[str, ...]] = {Credential: (MAY_SCOPE,)}

# A record, and the rights that its change needs in addition to those that its page asks for.
Requirement = tuple[DocumentItem, frozenset[str]]


def requirements(items: Iterable[DocumentItem]) -> list[Requirement]:
    """What the changes need. Call it before they are made: making them changes the rows of the
    items."""
    return [(item, _rights_beyond_page(item)) for item in items]


def check(user: Person, required: Iterable[Requirement]) -> None:
    """Raises Denied where the person may not make one of these changes."""
    for item, rights in required:
        lacking = sorted(right for right in rights if not user.has_perm(right))
        if lacking or not _page_lets(user, item):
            what = item.kind.model._meta.verbose_name
            missing = f': it requires the permission "{_name_of(lacking[0])}"' if lacking else ""
            raise Denied(
                f"You do not have permission to change this {what}{missing}.",
                remedy="Ask an administrator to make the change.",
            )


def _name_of(right: str) -> str:
    """Return the name of a permission as the page of a group shows it."""
    app, _, codename = right.partition(".")
    found = Permission.objects.filter(content_type__app_label=app, codename=codename).first()
    return found.name if found else codename


def may_change(user: Person, model: type[Model]) -> bool:
    """Whether the person may put versions of such a record back, unless a version differs in
    something that needs more."""
    return all(map(user.has_perm, _ALWAYS.get(model, ()))) and bool(
        _page(model).has_change_permission(_request_of(user))
    )


def may_see(user: Person, model: type[Model]) -> bool:
    """Whether the person may read versions of such a record, as they may its page."""
    name = f"{model._meta.app_label}.{{}}_{model._meta.model_name}"
    return user.has_perm(name.format("view")) or user.has_perm(name.format("change"))


def _page_lets(user: Person, item: DocumentItem) -> bool:
    """Whether the record's page lets the person delete, make or change it, whichever would happen
    to it."""
    page = _page(item.kind.model)
    request = _request_of(user)
    if item.entry is None:
        return bool(page.has_delete_permission(request, item.row))
    if item.row is None:
        return bool(page.has_add_permission(request))
    return bool(page.has_change_permission(request, item.row))


def _page(model: type[Model]) -> Any:
    return admin.site._registry[model]


def _request_of(user: Person) -> HttpRequest:
    """What pages ask for rights."""
    request = HttpRequest()
    request.user = user
    return request


def _rights_beyond_page(item: DocumentItem) -> frozenset[str]:
    model = item.kind.model
    table = BEYOND_PAGE.get(model, {})
    found = {
        *_ALWAYS.get(model, ()),
        *(table[word] for word in _list_changed_keys(item) if word in table),
    }
    return frozenset(found - {""})


def _list_changed_keys(item: DocumentItem) -> set[str]:
    """The words of the document whose values would change. Secrets always count as changed."""
    if item.entry is None:
        return set()
    if item.row is None:
        return {*item.entry}
    try:
        now = item.kind.entry(item.name, item.row, Secrets())
    except ConfigInvalid:  # a secret whose key is lost
        return item.kind.list_keys()
    hidden = {*find_sealed_columns(item.kind.model).values()}
    return {
        word
        for word in {*now, *item.entry}
        if word in hidden or now.get(word) != item.entry.get(word)
    }
