"""What a server lists is compared with what was approved: what is new or changed waits for a decision (``decisions``).

Called after every look at a server, by whichever process took it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from django.db import transaction
from django.dispatch import Signal
from django.utils import timezone

from mcpregistry.domain.definitions.definition import hash_of, visible
from mcpregistry.domain.definitions.findings import VERSION
from mcpregistry.domain.kinds import KINDS, TOOL, read, spelled
from mcpregistry.domain.text.canonical import plain, stored
from mcpregistry.models import Definition, Server, ServerEvent, Tool
from mcpregistry.services.notifications import outbox
from mcpregistry.services.records import audit

_OTHER_NAMES = 20_000  # to compare new names with
# A ``server`` offers ``names`` (with their kinds) for the first time or again. Sent in the transaction that notes it.
offered = Signal()


@dataclass(frozen=True, slots=True)
class Changes:
    """Names of tools and, with their kind, of prompts, as compared with the last look at the server."""

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    returned: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed or self.returned)


@transaction.atomic
def observe(
    *, server: Server, listed: Iterable[dict[str, Any]], others: Mapping[str, Iterable[dict[str, Any]]] | None = None,
    instructions: str = "", process: str = "",
) -> Changes:  # fmt: skip
    """Store what the server offers now, and compare it with what was approved; called after every reading of its lists.

    What is new or changed waits for approval. ``others``: what it lists besides tools, by kind; a kind that is not there
    was not asked for. ``instructions``: what the server tells every model that uses it, part of each of its tools'
    definitions.
    """
    Server.objects.select_for_update(no_key=True).get(pk=server.pk)  # processes look at the same time
    offered_now = {TOOL: listed, **(others or {})}
    bodies = _bodies(offered_now, instructions)
    look = _Look(server, timezone.now(), frozenset(read(key)[1] for key in bodies))
    rows = Tool.offers.filter(server=server, kind__in=offered_now)
    known = {tool.key: tool for tool in rows.select_related("latest", "pinned")}
    _add(look, {name: body for name, body in bodies.items() if name not in known})
    for name, body in bodies.items():
        if name in known:
            _observe_one(look, known[name], name, body)
    for name, tool in known.items():
        if name not in bodies and tool.present:
            tool.present = False
            tool.save(update_fields=["present"])
            look.changes.removed.append(name)
    rows.filter(present=True).update(last_seen_at=look.now)
    Server.objects.filter(pk=server.pk).update(refreshed_at=look.now)
    if look.changes:
        _announce(look, process)
    if arrived := [*look.changes.added, *look.changes.returned]:
        offered.send(sender=Tool, server=server, names=arrived)
    return look.changes


def _bodies(offered_now: Mapping[str, Iterable[dict[str, Any]]], instructions: str) -> dict[str, dict[str, Any]]:
    """What a model sees of each, by its name with its kind; of two with one name the first."""
    bodies: dict[str, dict[str, Any]] = {}
    for kind, items in offered_now.items():
        for data in items:
            key = spelled(kind, plain(str(data[KINDS[kind].identity]), 500))
            bodies.setdefault(key, visible(data, instructions, kind))
    return bodies


@transaction.atomic
def described(*, server: Server, key: str, body: dict[str, Any]) -> Tool:
    """A tool (or prompt, by its name with its kind) of which a file of the whole site says how the server describes it, on a site that may not have asked it yet.

    It decides nothing: the next look at the server tells whether it is so.
    """
    look = _Look(server, timezone.now(), frozenset([read(key)[1]]))
    rows = Tool.offers.of_record(server.slug, key).select_related("latest", "pinned", "server")
    if (known := rows.first()) is None:
        _add(look, {key: body})
    else:
        _observe_one(look, known, key, body)
    return rows.get()


@dataclass(frozen=True)
class _Look:
    """One look at a server: when, which names it lists, what has changed."""

    server: Server
    now: datetime
    names: frozenset[str]
    changes: Changes = field(default_factory=Changes)
    undecided: set[str] = field(default_factory=set)

    @cached_property
    def others(self) -> frozenset[str]:
        """Names of the tools of all other servers, as far as there is room."""
        tools = Tool.objects.filter(present=True).exclude(server=self.server).order_by("id")
        return frozenset(tools.values_list("name", flat=True)[:_OTHER_NAMES])

    def scanned(self, body: dict[str, Any]) -> dict[str, Any]:
        """The columns that the scanner fills."""
        from mcpregistry.domain.definitions import scanner  # 6 MB, and hosts' processes seldom see what is new

        found = scanner.scan(body, own=self.names, others=self.others)
        rows = [asdict(finding) for finding in found]
        return {"scanner": VERSION, "severity": scanner.worst(found), "findings_json": stored(rows)}


def _add(look: _Look, bodies: dict[str, dict[str, Any]]) -> None:
    """What the server has never offered before, all at once."""
    seen = {"first_seen_at": look.now, "last_seen_at": look.now}
    named = {key: read(key) for key in bodies}
    tools = Tool.offers.bulk_create(
        Tool(server=look.server, kind=kind, name=name, **seen) for kind, name in named.values()
    )
    definitions = Definition.objects.bulk_create(_said(look, tool, bodies[tool.key]) for tool in tools)
    for tool, definition in zip(tools, definitions, strict=True):
        tool.latest = definition
    Tool.offers.bulk_update(tools, ["latest"])
    Tool.history.bulk_history_create(tools)
    look.changes.added.extend(bodies)
    look.undecided.update(bodies)


def _said(look: _Look, tool: Tool, body: dict[str, Any]) -> Definition:
    text = stored(body)
    return Definition(tool=tool, hash=hash_of(text, tool.kind), body=text, seen_at=look.now, **look.scanned(body))


def _observe_one(look: _Look, tool: Tool, name: str, body: dict[str, Any]) -> None:
    changes = look.changes
    if not tool.present:
        changes.returned.append(name)
    definition = _definition(look, tool, body)
    if tool.latest is not None and tool.latest != definition:
        changes.changed.append(name)
    if definition.decided_at is None:
        look.undecided.add(name)
    facts: dict[str, Any] = {"latest": definition, "present": True}
    if definition.approved:
        facts["pinned"] = definition  # back to an approved text: it heals by itself
    if any(getattr(tool, name) != value for name, value in facts.items()):
        for column, value in facts.items():
            setattr(tool, column, value)
        tool.save(update_fields=[*facts])  # and one row of history; a decision made meanwhile stands


def _definition(look: _Look, tool: Tool, body: dict[str, Any]) -> Definition:
    text = stored(body)
    found = hash_of(text, tool.kind)
    definition = tool.latest
    if definition is None or definition.hash != found:
        definition = Definition.objects.filter(tool=tool, hash=found).first()
        if definition is None:
            definition = _said(look, tool, body)
            definition.save()
    if definition.scanner != VERSION:
        Definition.objects.filter(pk=definition.pk).update(**look.scanned(body))
    return definition


def _announce(look: _Look, process: str) -> None:
    server, changes = look.server, look.changes
    words = [f"{len(names)} {word}" for word, names in _named(changes) if names]
    facts = {word: names[:100] for word, names in _named(changes) if names}
    ServerEvent.objects.create(
        server=server, at=look.now, kind="tools", message=f"{_heading(changes)}: {', '.join(words)}.", process=process
    )
    audit.record(kind="tools.changed", actor="server", subject=f"server:{server.slug}", **facts)
    added, changed = ([n for n in names if n in look.undecided] for names in (changes.added, changes.changed))
    outbox.enqueue_definitions(server=server, added=added, changed=changed, now=look.now)


def _heading(changes: Changes) -> str:
    kinds = {read(key)[0] for _, keys in _named(changes) for key in keys}
    return " and ".join(f"{kind}s" for kind in KINDS if kind in kinds).capitalize()


def _named(changes: Changes) -> list[tuple[str, list[str]]]:
    return [(word, getattr(changes, word)) for word in ("added", "changed", "removed", "returned")]
