"""What one agent sees on one endpoint: exact names, listings, and the bytes of ``tools/list``
(``prompts/list``).

Built from the snapshot without touching a server, once per (snapshot, endpoint, agent), and again
when a grant runs out. The order is by exposed name, so lists are stable and cacheable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, partial
from itertools import chain
from typing import Any, Protocol

from django.db.models import Q

from mcpregistry.domain.apps import find_app_page, is_app
from mcpregistry.domain.definitions.instructions import merge_instructions
from mcpregistry.domain.definitions.naming import (
    OURS,
    OWN_NAMES,
    map_offer_names,
    prefix_description,
    split_exposed_uri,
)
from mcpregistry.domain.errors import Conflict, SlipsnisseError
from mcpregistry.domain.offer_kinds import (
    KINDS,
    OTHERS,
    READ,
    RESOURCE,
    TEMPLATE,
    TOOL,
    is_disguised_uri,
)
from mcpregistry.domain.policy.access import find_next_expiry, may_see
from mcpregistry.domain.schema.validation import list_problems
from mcpregistry.domain.snapshot import Snapshot
from mcpregistry.domain.snapshot_specs import AgentSpec, EndpointSpec, ServerSpec, ToolSpec
from mcpregistry.domain.text.canonical import encode_lossy_json, hash_parts
from mcpregistry.models import Agent, Endpoint, Grant, Tool
from mcpregistry.services.configuration.snapshot import get_current_snapshot

_NAMED = 1_000  # tools of one agent that are read by their keys; of more everything is read
_NARROWED = 100  # sets of servers for which a narrowed list is kept
PAGE = 500  # every host follows a single page; not every host was seen to follow a cursor


Shape = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """One tool or prompt that a source can serve to somebody. ``kind`` names the source that
    dispatches it.

    ``own``: one of ours, offered by its source to whom it is meant. It keeps its name in every
    style, needs no grant, and no rule is asked about it: it only tells a caller about itself, or
    every call that it makes is decided on by itself. ``aside``: listed only beside tools of
    servers. ``spends``: calls of it make models think.
    """

    kind: str
    server: ServerSpec
    tool: ToolSpec
    own: bool = False
    aside: bool = False
    spends: bool = False
    by: ToolSpec | None = None  # of a resource that no list has: what grants it


class ToolSource(Protocol):
    """Where tools come from. Other apps add theirs with ``Extension.tool_sources``."""

    @property
    def kind(self) -> str: ...

    def list_offers(
        self, snapshot: Snapshot, endpoint: EndpointSpec, agent: AgentSpec, now: float
    ) -> Iterable[ToolOffer]:
        """The tools that this source serves to the agent on the endpoint at ``now`` (epoch
        seconds)."""


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One tool in a catalogue: the name under which it is shown, its offer, and its listing."""

    name: str
    offer: ToolOffer
    listing: Mapping[str, Any]


@dataclass(frozen=True)
class Catalogue:
    """What of one kind an agent sees on an endpoint: its tools, and ``get_kind`` the rest.
    ``entries`` is the exact name map, in list order.
    """

    endpoint: EndpointSpec
    agent: AgentSpec
    entries: Mapping[str, CatalogueEntry]
    valid_until: float | None
    kind: str = TOOL
    others: Mapping[str, Catalogue] = field(default_factory=dict, repr=False)
    _pages: dict[tuple[str, int], bytes] = field(default_factory=dict, repr=False)
    _narrowed: dict[frozenset[str], Catalogue] = field(default_factory=dict, repr=False)

    def get_kind(self, kind: str) -> Catalogue:
        """What of this kind the same agent sees there."""
        return self if kind == self.kind else self.others[kind]

    def find_reader(self, uri: str) -> tuple[Catalogue, str, str]:
        """What serves a URI as hosts name it: a fixed resource, else a template that can make it,
        the first by name.

        Returns the catalogue, the name in it, and the server's own URI; a name that is not in it if
        nothing serves it. Raises Conflict where templates of several servers can make it and it
        names none of them.
        """
        slug, own = split_exposed_uri(uri)
        fixed = self.get_kind(RESOURCE)
        templates = self.get_kind(TEMPLATE)
        if entry := fixed.entries.get(uri) or fixed._by_uri.get((slug, own)):
            return fixed, entry.name, entry.offer.tool.name
        if not slug and any(each == own for _, each in fixed._by_uri):
            return fixed, uri, own  # several servers have it: it is nobody's without a name
        makers = [
            e
            for e in templates.entries.values()
            if _is_meant_for(e, slug) and _can_make_uri(e.offer.tool, own)
        ]
        if len(servers := sorted({e.offer.server.slug for e in makers})) > 1:
            raise make_ambiguous_uri_error(servers)
        if makers:
            return templates, makers[0].name, own
        return (self._find_app_page(slug, own, uri) or fixed), uri, own

    def _find_app_page(self, slug: str, own: str, uri: str) -> Catalogue | None:
        """The page of an MCP App that a tool names, for who sees the tool."""
        if not is_app(own) or is_disguised_uri(own):
            return None
        tools = [
            e
            for e in self.entries.values()
            if not e.offer.own and find_app_page(e.offer.tool.data) == own
        ]
        tools = [e for e in tools if slug in ("", e.offer.server.slug)]
        if len(servers := sorted({e.offer.server.slug for e in tools})) > 1:
            raise make_ambiguous_uri_error(servers)
        return self.expose_resource(tools[0], uri) if tools else None

    def expose_resource(self, entry: CatalogueEntry, uri: str) -> Catalogue | None:
        """What serves a URI (as hosts name it) that no list has, by the entry that grants it; None
        if it is switched off."""
        by = entry.offer.tool
        own = split_exposed_uri(uri)[1]
        if own in by.never:
            return None
        # Its id is none of a tool's: no rule about the tool means it.
        made = ToolSpec(
            -by.id,
            by.server_id,
            own,
            by.definition_hash,
            {"uri": own, "name": own},
            idempotent=True,
            kind=RESOURCE,
            ruled=by.ruled,
        )
        offer = replace(entry.offer, tool=made, by=by)
        return Catalogue(
            self.endpoint,
            self.agent,
            {uri: CatalogueEntry(uri, offer, made.data)},
            self.valid_until,
            RESOURCE,
            self.others,
        )

    def find_template(self, uri: str) -> CatalogueEntry | None:
        """The template that hosts know by this URI template, or by that of its server with the
        server's name in front."""
        return self.get_kind(TEMPLATE).entries.get(uri) or self.get_kind(TEMPLATE)._by_uri.get(
            split_exposed_uri(uri)
        )

    @property
    def everything(self) -> bool:
        """Whether the agent sees anything at all there, of whatever kind."""
        return bool(self.entries) or any(each.entries for each in self.others.values())

    def collect_features(self) -> frozenset[str]:
        """What servers whose offers the agent sees have besides lists: see
        ``domain.offer_kinds``."""
        servers = {}
        for kind in KINDS:
            for entry in self.get_kind(kind).entries.values():
                if not entry.offer.own:
                    servers[entry.offer.server.id] = entry.offer.server
        return frozenset(chain.from_iterable(server.features for server in servers.values()))

    def merge_instructions(self) -> str:
        """What hosts are told of this endpoint and of the servers whose tools the agent sees there,
        by their names. Only what was approved with those tools.
        """
        said: dict[str, str] = {}
        for entry in self.get_kind(TOOL).entries.values():
            if not entry.offer.own:
                said.setdefault(entry.offer.server.slug, entry.offer.tool.instructions)
        return merge_instructions(
            self.endpoint.instructions, sorted(said.items()), self.endpoint.instructions_limit
        )

    def narrow_to_servers(self, slugs: frozenset[str]) -> Catalogue:
        """The same of these servers alone, under the same names. Tools of ours stay: they belong to
        no server."""
        found = self._narrowed.get(slugs)
        if found is None:
            if len(self._narrowed) >= _NARROWED:
                self._narrowed.clear()
            kept = {
                name: e
                for name, e in self.entries.items()
                if e.offer.own or e.offer.server.slug in slugs
            }
            others = {kind: each.narrow_to_servers(slugs) for kind, each in self.others.items()}
            found = Catalogue(self.endpoint, self.agent, kept, self.valid_until, self.kind, others)
            self._narrowed[slugs] = found
        return found

    @cached_property
    def version(self) -> str:
        """Changes exactly when the list as hosts see it changes; also the cursor's lead."""
        parts = (
            f"{name} {e.offer.server.slug} {e.offer.tool.definition_hash} {e.offer.tool.own_description}"
            for name, e in self.entries.items()
        )
        return hash_parts(self.endpoint.description_style, *parts)[:16]

    def find(self, name: str) -> CatalogueEntry | None:
        """By exposed name, whatever the style by ``server__tool`` or ``server::tool``, or by the
        tool's own name where only one server here has it (not its own URI: that may look like
        another's). Exact names in maps, never split; a name that an operator has given to another
        tool is nobody's here, for hosts may still know it as that one's.
        """
        return self.entries.get(name) or self._by_key.get(name)

    @cached_property
    def _by_key(self) -> dict[str, CatalogueEntry]:
        entries = [(e.offer.server.slug, e.offer.tool.name, e) for e in self.entries.values()]
        given = {
            (server, own)
            for server, tool, e in entries
            if (own := e.offer.tool.own_name) not in ("", tool)
        }
        often = Counter([tool for _, tool, _ in entries] + [own for _, own in given])
        unique = () if self.kind in READ else entries
        plain = {tool: e for _, tool, e in unique if often[tool] == 1 and tool not in OWN_NAMES}
        double = {
            f"{server}__{tool}": e for server, tool, e in entries if (server, tool) not in given
        }
        return plain | double | {f"{server}::{tool}": e for server, tool, e in entries}

    @cached_property
    def _by_uri(self) -> dict[tuple[str, str], CatalogueEntry]:
        """By server's slug and its own URI."""
        return {(e.offer.server.slug, e.offer.tool.name): e for e in self.entries.values()}

    def list_page(
        self, cursor: str | None, *, legacy: bool
    ) -> tuple[list[Mapping[str, Any]], str | None]:
        """One page of listings and the next cursor. Raises ValueError for a cursor of another
        list."""
        start = self._parse_cursor(cursor)
        chosen = list(self.entries.values())[start : start + PAGE]
        after = start + PAGE if start + PAGE < len(self.entries) else None
        listings = [_adapt_for_legacy(e.listing) if legacy else e.listing for e in chosen]
        return listings, f"{self.version}.{after}" if after else None

    def encode_page(
        self,
        cursor: str | None,
        *,
        legacy: bool,
        extra: Mapping[str, Any],
        wire: tuple[str, Shape] | None = None,
    ) -> bytes:
        """The result object of the list as JSON bytes, made once. ``extra`` joins its top level;
        ``wire`` is a version of the protocol and what shapes a result for it."""
        if wire:
            version = wire[0]
        elif legacy:
            version = "legacy"
        else:
            version = "modern"
        key = (version, self._parse_cursor(cursor))
        if key not in self._pages:
            listings, after = self.list_page(cursor, legacy=legacy)
            result = (
                {KINDS[self.kind].listed: listings}
                | ({"nextCursor": after} if after else {})
                | dict(extra)
            )
            self._pages[key] = encode_lossy_json(wire[1](result) if wire else result).encode()
        return self._pages[key]

    def _parse_cursor(self, cursor: str | None) -> int:
        if not cursor:
            return 0
        version, _, offset = cursor.partition(".")
        if version != self.version or offset not in self._offsets:
            raise ValueError(
                f"The list of {self.kind}s has changed. Request the list again without a cursor."
            )
        return int(offset)

    @cached_property
    def _offsets(self) -> frozenset[str]:
        """Where pages begin: only these are in our cursors, and only so many pages are ever
        kept."""
        return frozenset(str(start) for start in range(PAGE, len(self.entries), PAGE))


class Catalogues:
    """Catalogues of one snapshot, built when first asked for."""

    def __init__(self, sources: Iterable[ToolSource]) -> None:
        self.sources = list(sources)
        self._snapshot: Snapshot | None = None
        self._built: dict[tuple[str, str], Catalogue] = {}

    def get(
        self, snapshot: Snapshot, endpoint: EndpointSpec, agent: AgentSpec, now: float
    ) -> Catalogue:
        """The catalogue of this agent on this endpoint, made when it is asked for the first
        time."""
        if snapshot is not self._snapshot:
            self._snapshot = snapshot
            self._built = {}
        found = self._built.get((endpoint.slug, agent.slug))
        if found is None or (found.valid_until is not None and found.valid_until <= now):
            found = self._build(snapshot, endpoint, agent, now)
            self._built[endpoint.slug, agent.slug] = found
        return found

    def _build(
        self, snapshot: Snapshot, endpoint: EndpointSpec, agent: AgentSpec, now: float
    ) -> Catalogue:
        offers = [
            o for source in self.sources for o in source.list_offers(snapshot, endpoint, agent, now)
        ]
        granted = [o for o in offers if not o.own]
        # Only calls of what servers offer can be held: who may call none needs no tool about its
        # calls.
        own = [
            CatalogueEntry(o.tool.name, o, o.tool.data)
            for o in offers
            if o.own and (granted or not o.aside)
        ]
        until = find_next_expiry((*agent.grants, *endpoint.grants), now)

        def name_kind(kind: str, *more: CatalogueEntry) -> dict[str, CatalogueEntry]:
            entries = [*_name_entries([o for o in granted if o.tool.kind == kind], endpoint), *more]
            return {e.name: e for e in sorted(entries, key=lambda e: e.name)}

        others = {kind: Catalogue(endpoint, agent, name_kind(kind), until, kind) for kind in OTHERS}
        return Catalogue(endpoint, agent, name_kind(TOOL, *own), until, TOOL, others)


@dataclass(frozen=True, slots=True)
class DownstreamTools:
    """The approved tools and prompts of active servers, as far as they are granted."""

    kind: str = "downstream"

    def list_offers(
        self, snapshot: Snapshot, endpoint: EndpointSpec, agent: AgentSpec, now: float
    ) -> Iterable[ToolOffer]:
        """What is granted and serves; pinned arguments play no part before a call."""
        for tool in chain(snapshot.tools.values(), snapshot.others.values()):
            server = snapshot.servers.get(tool.server_id)
            if server is None or (endpoint.hide_unavailable and not server.available):
                continue
            if may_see(agent, endpoint, server, tool, now):
                yield ToolOffer(self.kind, server, tool)


def _is_meant_for(template: CatalogueEntry, slug: str) -> bool:
    """Whether a URI is meant for it that names this server, or none."""
    return template.offer.server.slug == slug if slug else not split_exposed_uri(template.name)[0]


def make_ambiguous_uri_error(servers: list[str]) -> Conflict:
    """More than one of these can serve a URI that names none of them."""
    named = " or ".join(f"{OURS}{slug}/" for slug in servers)
    return Conflict(
        "More than one server offers this URI.", remedy=f"Put {named} in front of the URI."
    )


def _can_make_uri(template: ToolSpec, uri: str) -> bool:
    try:
        return uri not in template.never and not list_problems(
            template.arguments_schema, {"uri": uri}
        )
    except SlipsnisseError:  # a template that no pattern can be made of serves nothing
        return False


def _name_entries(offers: list[ToolOffer], endpoint: EndpointSpec) -> Iterable[CatalogueEntry]:
    """Those of one kind, under the endpoint's names for them."""
    own = ((o.server.slug, o.tool.name, o.tool.own_name) for o in offers)
    names = map_offer_names(offers[0].tool.kind if offers else TOOL, own, endpoint.naming_style)
    return (_make_entry(names[o.server.slug, o.tool.name], o, endpoint) for o in offers)


def _make_entry(name: str, offer: ToolOffer, endpoint: EndpointSpec) -> CatalogueEntry:
    data = dict(offer.tool.data) | {KINDS[offer.tool.kind].identity: name}
    if offer.tool.kind == TOOL:
        data.setdefault("inputSchema", {"type": "object"})
    said = offer.tool.own_description or str(data.get("description") or "")
    text = prefix_description(said, server=offer.server.slug, style=endpoint.description_style)
    if text:
        data["description"] = text
    return CatalogueEntry(name, offer, data)


def _adapt_for_legacy(listing: Mapping[str, Any]) -> Mapping[str, Any]:
    """Hosts before 2026-07-28 reject a whole list over one output schema that is no object, and
    those on the TypeScript client 1.x over one property whose schema is true or false.
    """
    output = listing.get("outputSchema")
    if output is not None and not (isinstance(output, dict) and output.get("type") == "object"):
        listing = {key: value for key, value in listing.items() if key != "outputSchema"}
    for key in ("inputSchema", "outputSchema"):
        schema = listing.get(key)
        if isinstance(schema, dict) and (named := _spell_out_booleans(schema)) is not None:
            listing = {**listing, key: {**schema, "properties": named}}
    return listing


def _spell_out_booleans(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the properties with an object for each schema that is true or false; None if there is
    no such schema."""
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not any(
        isinstance(each, bool) for each in properties.values()
    ):
        return None
    spelled: dict[bool, dict[str, Any]] = {True: {}, False: {"not": {}}}
    return {
        name: spelled[each] if isinstance(each, bool) else each for name, each in properties.items()
    }


def build_current_catalogue(agent: Agent, endpoint: Endpoint, *, now: datetime) -> Catalogue | None:
    """What this agent sees on this endpoint now, built as the gateway builds it; None if either is
    off."""
    return _build_catalogue(lambda: _list_granted_tools(agent), agent, endpoint, now)


def can_see_anything(agent: Agent, endpoint: Endpoint, *, now: datetime) -> bool:
    """Whether that is anything at all, for pages that list nothing of it. Of many grants a part is
    mostly enough."""
    granted = _list_granted_tools(agent)
    for part in [granted[:PAGE], granted] if len(granted) > PAGE else [granted]:
        found = _build_catalogue(partial(list, part), agent, endpoint, now)
        if found is None or found.everything:
            return found is not None
    return False


def build_current_instructions(agent: Agent, endpoint: Endpoint, *, now: datetime) -> str:
    """What hosts are told there, for this agent; servers are only asked about where the endpoint
    has room for them."""
    if not (agent.enabled and endpoint.enabled):
        return ""
    if not endpoint.instructions_limit:
        return endpoint.instructions
    seen = build_current_catalogue(agent, endpoint, now=now)
    return seen.merge_instructions() if seen else ""


def _list_granted_tools(agent: Agent) -> list[int]:
    """What its grants name, or offers of servers that they name: nothing else can be in its
    lists."""
    grants = Grant.objects.filter(agent=agent).order_by()
    named = Q(pk__in=grants.values("tool")) | Q(server__in=grants.values("server"))
    return list(Tool.offers.serving().filter(named).order_by().values_list("pk", flat=True))


def _limit_tools(tools: list[int]) -> list[int] | None:
    return tools if len(tools) <= _NAMED else None


def _build_catalogue(
    tools: Callable[[], list[int]], agent: Agent, endpoint: Endpoint, now: datetime
) -> Catalogue | None:
    snapshot = get_current_snapshot(lambda: _limit_tools(tools()))
    caller = snapshot.agents.get(agent.slug)
    door = snapshot.endpoints.get(endpoint.slug)
    if caller is None or door is None:
        return None
    return Catalogues([DownstreamTools()]).get(snapshot, door, caller, now.timestamp())
