"""Filters by a name of which there may be thousands: a few are listed as links, of many one is
typed and found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.functional import Promise

from mcpregistry.models import Agent, Endpoint, Server
from mcpregistry.models.visibility import VisibleQuerySet
from mcpregistry.queries.setup_state import agents_of_hosts

# templates/web/choose_name.html has the first number, too
FEW = 20
_FOUND = 20
_NOBODY = "-"  # no slug is that
_MODELS: dict[str, type[Any]] = {"server": Server, "agent": Agent, "endpoint": Endpoint}


class ByName(admin.SimpleListFilter):
    """Rows of one record by its slug; ``by_name`` makes one for a column."""

    kind = ""
    column = ""
    nobody = ""
    template = "admin/mcpregistry/filter_by_name.html"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        slugs = list(_names(self.kind, request)[: FEW + 1])
        self.many = len(slugs) > FEW
        said = self.value()
        listed = slugs
        if self.many:
            listed = [said] if said and said != _NOBODY else []
        return [(slug, slug) for slug in listed] + ([(_NOBODY, self.nobody)] if self.nobody else [])

    def has_output(self) -> bool:
        return self.many or bool(self.lookup_choices)

    def choices(self, changelist: Any) -> Iterator[Any]:
        others = changelist.get_query_string(remove=[self.parameter_name, "p"])
        self.kept = parse_qsl(others.lstrip("?"), keep_blank_values=True)
        return super().choices(changelist)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        said = self.value()
        if said == _NOBODY and self.nobody:
            return queryset.filter(**{f"{self.column.removesuffix('__slug')}__isnull": True})
        return queryset.filter(**{self.column: said}) if said else queryset


def by_name(kind: str, column: str = "", *, nobody: str | Promise = "") -> type[ByName]:
    """A filter by the slug of a server, agent or endpoint, for ``list_filter``.

    ``column`` holds the slug (``KIND__slug`` unless given); ``nobody`` is what rows are called that
    have none.
    """
    said = {"kind": kind, "column": column or f"{kind}__slug", "nobody": nobody}
    return type(
        "ByName", (ByName,), said | {"title": kind, "parameter_name": kind, "__module__": __name__}
    )


@dataclass(frozen=True, slots=True)
class NameChoice:
    """One enabled agent or endpoint, chosen on the page of another record (``choose_name.html``).

    ``value`` is the name that was asked for or the first one; ``row`` is None if no record has that
    name.
    """

    kind: str
    value: str
    names: list[str]
    row: Any

    @property
    def many(self) -> bool:
        """Whether one of them is typed instead of selected."""
        return len(self.names) > FEW


def choice(kind: str, request: HttpRequest) -> NameChoice:
    """What the address of the page chooses by ``?KIND=SLUG``."""
    rows = _MODELS[kind]._default_manager.filter(enabled=True).order_by("slug")
    names = list(rows.values_list("slug", flat=True)[: FEW + 1])
    asked = request.GET.get(kind, "").replace("\x00", "")
    value = asked or next(iter(names), "")
    return NameChoice(kind, value, names, rows.filter(slug=value).first())


def names(request: HttpRequest, kind: str) -> HttpResponse:
    """The first slugs that contain what is being typed, as options of a field. ``field`` is its
    name, if it is not ``kind``; ``usable``: only what can be used now."""
    if kind not in _MODELS:
        raise Http404
    if not request.user.has_perm(f"mcpregistry.view_{kind}"):
        raise PermissionDenied
    typed = request.GET.get(request.GET.get("field", kind), "").strip().replace("\x00", "")[:100]
    found = _names(kind, request).filter(slug__icontains=typed)
    if "usable" in request.GET:
        found = found.filter(slug__in=_usable(kind).values("slug"))
    return TemplateResponse(
        request, "admin/mcpregistry/filter_names.html", {"names": found[:_FOUND]}
    )


def _usable(kind: str) -> QuerySet[Any]:
    """Those that a host or a person can use now."""
    return (
        agents_of_hosts()
        if kind == "agent"
        else _MODELS[kind]._default_manager.filter(enabled=True)
    )


def _names(kind: str, request: HttpRequest) -> QuerySet[Any, str]:
    rows = _MODELS[kind]._default_manager.order_by("slug")
    seen = rows.visible_to(request.user) if isinstance(rows, VisibleQuerySet) else rows
    return seen.values_list("slug", flat=True)
