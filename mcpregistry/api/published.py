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

from mcpregistry.api.auth import Principal, allowed, bearer
from mcpregistry.api.errors import BadRequest, MethodNotAllowed, refusal, status_of, unauthorized
from mcpregistry.api.permissions import Rule
from mcpregistry.calls.catalog import DownstreamTools
from mcpregistry.calls.engine import current_engine
from mcpregistry.database_errors import refused_by
from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import ArgumentsInvalid, NotFound, SlipsnisseError
from mcpregistry.domain.registry.publishing import Held, Published, entry_of, name_of
from mcpregistry.domain.text.display import printable
from mcpregistry.models import Endpoint

RULE = Rule("view_endpoint", agent=True)
_LIMIT = 30
_MOST = 100
_SERVERS = DownstreamTools().kind
_OPEN = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Headers": "Authorization",
    "Vary": "Authorization",
}
View = Callable[..., dict[str, Any]]


def _served(view: View) -> Callable[..., HttpResponse]:
    """Answers as registries do: JSON, problems as RFC 9457 has them, readable from every page since
    no cookie counts."""

    @wraps(view)
    def answered(request: HttpRequest, **given: str) -> HttpResponse:
        if request.method == "OPTIONS":
            return HttpResponse(status=204, headers=_OPEN)
        try:
            if request.method not in ("GET", "HEAD"):
                raise MethodNotAllowed(
                    "The registry is read-only.", remedy="Use GET.", allow="GET, HEAD, OPTIONS"
                )
            return JsonResponse(view(request, _who(request), **given), headers=_OPEN)
        except Error as error:
            return _problem(refused_by(error))
        except SlipsnisseError as error:
            return _problem(error)

    return answered


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
        return allowed(bearer(request), RULE)
    if settings.REGISTRY_PUBLIC:
        return None
    raise unauthorized()


@_served
def servers(request: HttpRequest, who: Principal | None) -> dict[str, Any]:
    """The list, by name, page by page."""
    limit = _limit(request.GET.get("limit", ""))
    since = _moment(request.GET.get("updated_since", ""))
    search = request.GET.get("search", "").casefold()
    version = request.GET.get("version", "latest")
    found = [
        each
        for each in _visible(who)
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
        name_of(each.slug, settings.SITE_URL),
        each.title,
        *(word for held in each.servers for word in (held.slug, held.title)),
    )
    return any(search in word.casefold() for word in words)


@_served
def versions(request: HttpRequest, who: Principal | None, name: str) -> dict[str, Any]:
    """The versions of one: the one that is served."""
    return _list([_one(who, name)]) | {"metadata": {"count": 1}}


@_served
def version(request: HttpRequest, who: Principal | None, name: str, wanted: str) -> dict[str, Any]:
    """One version of one."""
    found = _one(who, name)
    if wanted not in ("latest", found.version):
        raise NotFound(
            error_texts.not_found("version", printable(wanted, 100)),
            remedy=f"Use {found.version} or latest.",
        )
    return entry_of(found, settings.SITE_URL)


def _one(who: Principal | None, name: str) -> Published:
    found = next(
        (each for each in _visible(who) if name_of(each.slug, settings.SITE_URL) == name), None
    )
    if found is None:
        raise NotFound(
            error_texts.not_found("server", printable(name, 200)),
            remedy="List the servers to see which ones exist.",
        )
    return found


def _list(found: Iterable[Published]) -> dict[str, Any]:
    return {"servers": [entry_of(each, settings.SITE_URL) for each in found]}


def _visible(who: Principal | None) -> list[Published]:
    """Endpoints that are switched on; to an agent those that show it anything."""
    last = Endpoint.history.filter(id=OuterRef("pk")).order_by("-history_id")
    rows = Endpoint.objects.filter(enabled=True).annotate(
        revision=Subquery(last.values("history_id")[:1]),
        changed=Subquery(last.values("history_date")[:1]),
    )
    agent = who.agent.slug if who and who.agent else ""
    published = []
    for row in sorted(rows, key=lambda row: row.slug):
        held = _held(row.slug, agent) if agent else ()
        if held is not None:
            revision = row.revision or row.pk
            changed = row.changed or row.created_at
            published.append(
                Published(row.slug, row.name, revision, row.created_at, changed, held or ())
            )
    return published


def _held(endpoint: str, agent: str) -> tuple[Held, ...] | None:
    """The servers of which the agent gets tools there, by their names; None where it gets nothing
    at all."""
    try:
        entries = current_engine().catalogue(endpoint, agent).entries
    except NotFound:  # made a moment ago: this process has not heard of it yet
        return None
    found = Counter(
        (each.offer.server.slug, each.offer.server.title)
        for each in entries.values()
        if each.offer.kind == _SERVERS
    )
    return (
        tuple(Held(slug, title, tools) for (slug, title), tools in sorted(found.items()))
        if entries
        else None
    )


def _limit(text: str) -> int:
    if not text:
        return _LIMIT
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= _MOST:
        raise ArgumentsInvalid(
            f"limit must be a number between 1 and {_MOST}.",
            remedy=f"Leave it out to use the default of {_LIMIT}.",
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
            "updated_since is not a time with a time zone in the format of RFC 3339.",
            remedy=error_texts.use("such a time", "2026-11-24T12:00:00Z"),
        )
    return found
