"""What registries list, as the sub-agent finds and proposes it: the site's own copies, never the
web."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from django.db.models import Q

from mcpregistry.domain.errors import NotFound
from mcpregistry.domain.text.canonical import clean_text
from mcpregistry.models import RegistryEntry
from subagents.domain.maintenance import Known, search

_WORD = re.compile(r"\w{3,40}")
_NOTHING = "and are can for from have into its mcp need needs over server servers that the this tool tools use using want with"
_SAYING_NOTHING = frozenset(_NOTHING.split())
# more than the public registry lists: what is left out is left out by its name
MOST_RANKED = 20_000


def search_entries(query: str, limit: int) -> list[dict[str, Any]]:
    """What people could add, the best match first: every word of the query stands in it."""
    return _rank_entries(query, _query_offered().matching(query), limit)


def _rank_entries(query: str, rows: Any, limit: int) -> list[dict[str, Any]]:
    newest = {row.name: row for row in rows.defer("document").order_by("name", "pk")[:MOST_RANKED]}
    known = [Known(row.name, row.title, row.description, ()) for row in newest.values()]
    return _describe_rows(newest[match.slug] for match in search(query, known, limit))


def fitting(name: str, purpose: str, limit: int) -> list[dict[str, Any]]:
    """What could be meant by somebody who asks for a server: first what has its name, then what
    speaks of its purpose."""
    by_name = search_entries(name, limit)
    words = list(
        dict.fromkeys(
            word for word in _WORD.findall(purpose.casefold()) if word not in _SAYING_NOTHING
        )
    )[:12]
    if len(by_name) >= limit or not words:
        return by_name
    speaks = Q()
    for word in words:
        speaks |= (
            Q(name__icontains=word) | Q(title__icontains=word) | Q(description__icontains=word)
        )
    seen = {each["name"] for each in by_name}
    more = _rank_entries(
        " ".join(words), _query_offered().filter(speaks).exclude(name__in=seen), limit
    )
    return [*by_name, *more][:limit]


def find_by_name(name: str) -> list[dict[str, Any]]:
    """The newest version of this server, in each registry that lists it. Raises NotFound."""
    rows = _describe_rows(_query_offered().filter(name=name).defer("document").order_by("pk"))
    if not rows:
        raise NotFound(
            f'No registry of this site lists "{clean_text(name, 200)}".',
            remedy="Search for the entry first, or ask an administrator to add its registry.",
        )
    return rows


def find_proposed_entries(result: dict[str, Any] | None) -> list[RegistryEntry]:
    """Those of a request's result that can still be added, in its order, each in the version that
    is the newest now."""
    keys = [(each["registry"], each["name"]) for each in (result or {}).get("registry_entries", ())]
    rows = _query_offered().filter(name__in=[name for _, name in keys])
    found = {(row.source.slug, row.name): row for row in rows}
    return [found[key] for key in keys if key in found]


def describe_proposed_entries(keys: Iterable[Iterable[str]]) -> list[dict[str, Any]]:
    """Those of these (registry, name) that can be added, in their order, each in the version that
    is the newest now."""
    return _describe_rows(
        find_proposed_entries(
            {"registry_entries": [{"registry": slug, "name": name} for slug, name in keys]}
        )
    )


def _query_offered() -> Any:
    return RegistryEntry.objects.filter_offered().select_related("source")


def _describe_rows(rows: Iterable[RegistryEntry]) -> list[dict[str, Any]]:
    return [
        {
            "name": row.name,
            "version": row.version,
            "registry": row.source.slug,
            "description": row.description[:300],
            "kinds": row.kinds.split(),
            "status": row.status,
            "id": row.pk,
        }
        for row in rows
    ]
