"""``/registry/v0.1``: this site as an MCP registry, from which hosts add its endpoints. Read-only.

A token sees the endpoints at which it gets anything; without one everybody sees all of them, where
a setting says so. Source: MCP Registry API v0.1 (``GET /v0.1/servers``, ``…/{name}/versions``,
``…/{name}/versions/{version}``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import wraps
from typing import Any

from django.conf import settings
from django.db import Error
from django.db.models import OuterRef, Subquery
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.dateparse import parse_datetime

from mcpregistry.api.auth import Principal, bearer, check_allowed
from mcpregistry.api.errors import (
    BadRequest,
    MethodNotAllowed,
    make_unauthorized,
    refusal,
    status_of,
)
from mcpregistry.api.permissions import OperationRule
from mcpregistry.calls.catalog import DownstreamTools
from mcpregistry.calls.engine import get_current_engine
from mcpregistry.database_errors import make_unavailable_error
from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import ArgumentsInvalid, NotFound, SlipsnisseError
from mcpregistry.domain.registry.publishing import (
    Published,
    PublishedServer,
    build_entry_name,
    build_registry_entry,
)
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Endpoint

RULE = OperationRule("view_endpoint", agent=True)
_LIMIT = 30
_MOST = 100
_SERVERS = DownstreamTools().kind
_OPEN = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Headers": "Authorization",
    "Vary": "Authorization",
}
View = Callable[..., dict[str, Any]]


def _serve_json(view: View) -> Callable[..., HttpResponse]:
    """Answers as registries do: JSON, problems as RFC 9457 has them, readable from every page since
    no cookie counts."""

    @wraps(view)
    def answer_request(request: HttpRequest, **given: str) -> HttpResponse:
        if request.method == "OPTIONS":
            return HttpResponse(status=204, headers=_OPEN)
        try:
            if request.method not in ("GET", "HEAD"):
                raise MethodNotAllowed(
                    "The registry is read-only.", remedy="Use GET.", allow="GET, HEAD, OPTIONS"
                )
            return JsonResponse(view(request, _who(request), **given), headers=_OPEN)
        except Error as error:
            return _problem(make_unavailable_error(error))
        except SlipsnisseError as error:
            return _problem(error)

    return answer_request


def _problem(error: SlipsnisseError) -> HttpResponse:
    said = refusal(error)
    body = {
        "title": error.code,
        "status": status_of(error),
        "detail": f"{error.message} {error.remedy}".strip(),
    }
    kept = {
        name: said.headers[name]
        for name in ("WWW-Authenticate", "Allow", "Retry-After")
        if name in said.headers
    }
    return JsonResponse(
        body, status=status_of(error), content_type="application/problem+json", headers=_OPEN | kept
    )


def _who(request: HttpRequest) -> Principal | None:
    """Who asks; None for nobody, where that is enough."""
    if "Authorization" in request.headers:
        return check_allowed(bearer(request), RULE)
    if settings.REGISTRY_PUBLIC:
        return None
    raise make_unauthorized()


@_serve_json
def list_servers(request: HttpRequest, who: Principal | None) -> dict[str, Any]:
    """The list, by name, page by page."""
    limit = _limit(request.GET.get("limit", ""))
    since = _moment(request.GET.get("updated_since", ""))
    search = request.GET.get("search", "").casefold()
    version = request.GET.get("version", "latest")
    found = [
        each
        for each in _list_visible(who)
        if each.slug > request.GET.get("cursor", "")
        and _matches(search, each)
        and version in ("latest", each.version)
        and (since is None or each.changed_at >= since)
    ]
    shown = found[:limit]
    more = {"nextCursor": shown[-1].slug} if len(found) > limit else {}
    return _list(shown) | {"metadata": {"count": len(shown), **more}}


def _matches(search: str, each: Published) -> bool:
    words = (
        build_entry_name(each.slug, settings.SITE_URL),
        each.title,
        *(word for held in each.servers for word in (held.slug, held.title)),
    )
    return any(search in word.casefold() for word in words)


@_serve_json
def versions(request: HttpRequest, who: Principal | None, name: str) -> dict[str, Any]:
    """The versions of one: the one that is served."""
    return _list([_one(who, name)]) | {"metadata": {"count": 1}}


@_serve_json
def version(request: HttpRequest, who: Principal | None, name: str, wanted: str) -> dict[str, Any]:
    """One version of one."""
    found = _one(who, name)
    if wanted not in ("latest", found.version):
        raise NotFound(
            error_texts.say_not_found("version", show_invisible_characters(wanted, 100)),
            remedy=f"Use {found.version} or latest.",
        )
    return build_registry_entry(found, settings.SITE_URL)


def _one(who: Principal | None, name: str) -> Published:
    found = next(
        (
            each
            for each in _list_visible(who)
            if build_entry_name(each.slug, settings.SITE_URL) == name
        ),
        None,
    )
    if found is None:
        raise NotFound(
            error_texts.say_not_found("server", show_invisible_characters(name, 200)),
            remedy="GET /registry/v0.1/servers lists the servers.",
        )
    return found


def _list(found: Iterable[Published]) -> dict[str, Any]:
    return {"servers": [build_registry_entry(each, settings.SITE_URL) for each in found]}


def _list_visible(who: Principal | None) -> list[Published]:
    """Endpoints that are switched on; to an agent those that show it anything."""
    last = Endpoint.history.filter(id=OuterRef("pk")).order_by("-history_id")
    rows = Endpoint.objects.filter(enabled=True).annotate(
        revision=Subquery(last.values("history_id")[:1]),
        changed=Subquery(last.values("history_date")[:1]),
    )
    agent = who.agent.slug if who and who.agent else ""
    published = []
    for row in sorted(rows, key=lambda row: row.slug):
        held = _find_servers(row.slug, agent) if agent else ()
        if held is not None:
            revision = row.revision or row.pk
            changed = row.changed or row.created_at
            published.append(
                Published(row.slug, row.name, revision, row.created_at, changed, held or ())
            )
    return published


def _find_servers(endpoint: str, agent: str) -> tuple[PublishedServer, ...] | None:
    """The servers of which the agent gets tools there, by their names; None where it gets nothing
    at all."""
    try:
        entries = get_current_engine().get_catalogue(endpoint, agent).entries
    except NotFound:  # made a moment ago: this process has not heard of it yet
        return None
    found = Counter(
        (each.offer.server.slug, each.offer.server.title)
        for each in entries.values()
        if each.offer.kind == _SERVERS
    )
    return (
        tuple(PublishedServer(slug, title, tools) for (slug, title), tools in sorted(found.items()))
        if entries
        else None
    )


def _limit(text: str) -> int:
    if not text:
        return _LIMIT
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= _MOST:
        raise ArgumentsInvalid(
            f"'limit' must be a number between 1 and {_MOST}.",
            remedy=f"Use a number in this range, or leave out 'limit' to use the default of {_LIMIT}.",
        )
    return int(text)


def _moment(text: str) -> datetime | None:
    if not text:
        return None
    try:
        found = parse_datetime(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise BadRequest(
            f"'updated_since' is not a valid time (got {show_invisible_characters(text, 60)}).",
            remedy=error_texts.advise_form(
                "a time with a time zone in RFC 3339 format", "2026-11-24T12:00:00Z"
            ),
        )
    return found
