"""Search over everything: records, runs and calls by name or id, pages and documents, as far as the
person may see them.

Each kind is one bounded query; calls are asked by their words alone, for there is no end of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from controlplane.navigation import navigation
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import (
    ApprovalRequest,
    Conversation,
    Endpoint,
    Invocation,
    PolicyRule,
    Server,
    Tool,
)
from mcpregistry.queries.call_search import search_calls
from mcpregistry.queries.setup_state import query_agents_of_people
from mcpregistry.web.docs.search import search as search_docs
from mcpregistry.web.pages import page, show
from subagents.models import ExpertTool, Run

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

# hits of a kind, characters of a question
EACH = 6
LONGEST = 200
_ID = re.compile(r"[0-9a-f]{12,32}")


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One thing found; ``about`` says which of several alike ones it is."""

    title: str
    url: str
    about: str = ""


@dataclass(frozen=True, slots=True)
class HitGroup:
    """Hits of one kind; ``all_at`` is the list with the same words, where there are more."""

    kind: StrOrPromise
    icon: str
    hits: list[SearchHit]
    all_at: str = ""


@dataclass(frozen=True, slots=True)
class _Kind:
    """How rows of one model are found by ``columns``: every word in one of them."""

    kind: StrOrPromise
    icon: str
    rows: Callable[[], QuerySet[Any]]
    columns: tuple[str, ...]
    title: Callable[[Any], str]
    about: Callable[[Any], str] = lambda _: ""


_KINDS = (
    _Kind(
        _("Servers"),
        "dns",
        Server.objects.all,
        ("slug", "name", "description"),
        lambda s: s.slug,
        lambda s: s.name,
    ),
    _Kind(
        _("Tools, prompts, resources"),
        "build",
        lambda: Tool.offers.select_related("server"),
        ("name", "server__slug"),
        lambda t: t.name,
        lambda t: t.server.slug,
    ),
    _Kind(
        _("Agents"),
        "smart_toy",
        query_agents_of_people,
        ("slug", "name", "description"),
        lambda a: a.slug,
        lambda a: a.name or a.description,
    ),
    _Kind(
        _("Rules"),
        "policy",
        PolicyRule.objects.all,
        ("name", "condition", "note"),
        lambda r: r.name,
        lambda r: r.outcome,
    ),
    _Kind(
        _("Endpoints"),
        "hub",
        Endpoint.objects.all,
        ("slug", "name"),
        lambda e: e.slug,
        lambda e: e.name,
    ),
    _Kind(
        _("Expert tools"),
        "psychology",
        ExpertTool.objects.all,
        ("name", "description"),
        lambda x: x.name,
        lambda x: x.description,
    ),
)


def search_site(request: HttpRequest, question: str) -> list[HitGroup]:
    """What holds all of these words, by kind, the kinds that people look for most first; empty
    without words."""
    words = question.split()[:8]
    if not words:
        return []
    by_id = [group for group in _search_ids(request, question) if group.hits]
    groups = [
        _search_pages(request, words),
        *by_id,
        *(_of(kind, request, words) for kind in _KINDS),
    ]
    calls = [] if by_id else [_search_calls(request, question)]
    return [group for group in [*groups, *calls, _search_docs(question)] if group.hits]


def _with(address: str, question: str) -> str:
    return f"{address}?{urlencode({'q': ' '.join(question.split())})}"


def _may(request: HttpRequest, model: type[Model]) -> bool:
    return bool(request.user.has_perm(f"{model._meta.app_label}.view_{model._meta.model_name}"))


def _change(row: Model) -> str:
    return reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_change", args=[row.pk])


def _search_pages(request: HttpRequest, words: list[str]) -> HitGroup:
    items = [(area["title"], item) for area in navigation(request) for item in area["items"]]
    hits = [
        SearchHit(item["title"], item["link"], area if area != item["title"] else "")
        for area, item in items
        if all(word.lower() in f"{area} {item['title']}".lower() for word in words)
    ]
    return HitGroup(gettext("Pages"), "web", hits[:EACH])


def _of(kind: _Kind, request: HttpRequest, words: list[str]) -> HitGroup:
    rows = kind.rows()
    if not _may(request, rows.model):
        return HitGroup(kind.kind, kind.icon, [])
    holds = [
        reduce(or_, (Q(**{f"{column}__icontains": word}) for column in kind.columns))
        for word in words
    ]
    some = list(rows.filter(reduce(and_, holds)).order_by(kind.columns[0])[: EACH + 1])
    listed = reverse(f"admin:{rows.model._meta.app_label}_{rows.model._meta.model_name}_changelist")
    hits = [
        SearchHit(
            show_invisible_characters(kind.title(row), 100),
            _change(row),
            show_invisible_characters(kind.about(row), 80),
        )
        for row in some[:EACH]
    ]
    return HitGroup(
        kind.kind, kind.icon, hits, _with(listed, " ".join(words)) if len(some) > EACH else ""
    )


def _search_ids(request: HttpRequest, question: str) -> Iterator[HitGroup]:
    """Runs, approvals and conversations by their id, or the first twelve characters of it or
    more."""
    begun = question.strip().lower()
    if not _ID.fullmatch(begun):
        return
    kinds: Iterable[tuple[type[Model], str, str]] = (
        (Run, gettext("Runs"), "play_circle"),
        (Conversation, gettext("Conversations"), "forum"),
        (Invocation, gettext("Calls"), "history"),
    )
    for model, words, icon in kinds:
        if _may(request, model):
            rows = model._default_manager.filter(pk__gte=begun, pk__lt=f"{begun}g").order_by("pk")[
                :EACH
            ]
            yield HitGroup(
                words,
                icon,
                [
                    SearchHit(str(row.pk), _change(row), show_invisible_characters(str(row), 80))
                    for row in rows
                ],
            )
    held = ApprovalRequest.objects.visible_to(request.user).filter(
        pk__gte=begun, pk__lt=f"{begun}g"
    )
    hits = [
        SearchHit(row.pk, reverse("approvals:detail", args=[row.pk]), row.rule_name)
        for row in held.order_by("pk")[:EACH]
    ]
    yield HitGroup(gettext("Approvals"), "approval_delegation", hits)


def _search_calls(request: HttpRequest, question: str) -> HitGroup:
    """The newest that hold the words."""
    if not _may(request, Invocation):
        return HitGroup(gettext("Calls"), "history", [])
    ids = search_calls(question)
    rows = (
        Invocation.objects.filter(pk__in=ids)
        .defer("arguments", "result")
        .order_by("-received_at", "-id")[:EACH]
    )
    hits = [
        SearchHit(
            show_invisible_characters(row.exposed_name, 80),
            _change(row),
            f"{show_invisible_characters(row.agent_slug, 40)}, {row.get_state_display()}, {row.received_at:%d %b %H:%M}",
        )
        for row in rows
    ]
    listed = reverse("admin:mcpregistry_invocation_changelist")
    return HitGroup(
        gettext("Calls"), "history", hits, _with(listed, question) if len(ids) > EACH else ""
    )


def _search_docs(question: str) -> HitGroup:
    hits = [
        SearchHit(
            hit.title,
            reverse("docs:document", args=[hit.slug]) + (f"#{hit.anchor}" if hit.anchor else ""),
            hit.page,
        )
        for hit in search_docs(question)[:EACH]
    ]
    return HitGroup(
        gettext("Docs"),
        "menu_book",
        hits,
        _with(reverse("docs:index"), question) if len(hits) == EACH else "",
    )


def _question(request: HttpRequest) -> str:
    return request.GET.get("q", "").replace("\x00", "").strip()[:LONGEST]


@page(None)
def whole(request: HttpRequest) -> HttpResponse:
    """The page of its own, which works without scripts."""
    question = _question(request)
    return show(
        request,
        "find/page.html",
        {
            "title": gettext("Search"),
            "question": question,
            "groups": search_site(request, question),
        },
    )


@page(None)
def part(request: HttpRequest) -> HttpResponse:
    """The hits alone, for the box that opens over any page."""
    question = _question(request)
    return show(
        request, "find/hits.html", {"question": question, "groups": search_site(request, question)}
    )
