"""Reading what no list has: a resource that a result linked to, and the page of an MCP App, which
its tool names.

Both are served by what grants them (``Offer.by``): they can be read while that is granted, serves
and says what was approved. A read is a call like any other. People cannot be asked about one, since
there is nothing that waits on a list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import structlog
from django.db import Error

from mcpregistry.calls.call import Call
from mcpregistry.calls.catalog import Catalogue, make_ambiguous_uri_error
from mcpregistry.db import db_call
from mcpregistry.domain.definitions.naming import split_exposed_uri
from mcpregistry.domain.offer_kinds import is_disguised_uri, parse_offer_key
from mcpregistry.downstream.limits import MAX_URI
from mcpregistry.services.records import links

log = structlog.get_logger(__name__)

_MOST = 100  # links of one result


async def note_links(call: Call, result: Mapping[str, Any]) -> None:
    """Let the caller read what the result links to. Never raises: the result has come."""
    uris = list(dict.fromkeys(_iterate_links(result)))[:_MOST]
    if not uris:
        return
    catalogue = call.request.catalogue
    offer = call.entry.offer
    try:
        await db_call(
            links.expose_links,
            agent=catalogue.agent.slug,
            endpoint=catalogue.endpoint.slug,
            server=offer.server.slug,
            tool=(offer.by or offer.tool).key,
            uris=uris,
        )
    except Error:
        log.exception("links.not_recorded", call=call.id)


async def find_linked_resource(catalogue: Catalogue, uri: str) -> Catalogue | None:
    """What serves a URI (as hosts name it) that the agent was linked to here; None if it was not,
    or may not now.

    Raises Conflict where results of several servers have linked to it and it names none of them.
    """
    slug, own = split_exposed_uri(uri)
    who = {"agent": catalogue.agent.slug, "endpoint": catalogue.endpoint.slug}
    found = [
        each
        for each in await db_call(links.find_linking_tools, uri=own, **who)
        if slug in ("", each[0])
    ]
    entries = []
    for server, key in found:
        kind, name = parse_offer_key(key)
        if entry := catalogue.get_kind(kind).find(f"{server}::{name}"):
            entries.append(entry)
    if len(entries) > 1:
        raise make_ambiguous_uri_error([entry.offer.server.slug for entry in entries])
    return catalogue.expose_resource(entries[0], uri) if entries else None


def _iterate_links(result: Mapping[str, Any]) -> Iterator[str]:
    """The URIs of links in a tool's content, or a prompt's messages, as far as they can be read."""
    parts = result.get("content")
    messages = result.get("messages")
    said = [message.get("content") for message in _select_dicts(messages)]
    for part in _select_dicts([*(parts if isinstance(parts, list) else []), *said]):
        uri = part.get("uri")
        if (
            part.get("type") == "resource_link"
            and isinstance(uri, str)
            and 0 < len(uri) <= MAX_URI
            and not is_disguised_uri(uri)
        ):
            yield uri


def _select_dicts(items: object) -> Iterator[dict[str, Any]]:
    return (item for item in (items if isinstance(items, list) else ()) if isinstance(item, dict))
