"""What a server lists is compared with what was approved: new and changed tools wait for a decision (``decisions``).

Called after every look at a server, by whichever process took it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from django.db import transaction
from django.dispatch import Signal
from django.utils import timezone

from mcpregistry.domain.definitions.definition import visible
from mcpregistry.domain.definitions.findings import VERSION
from mcpregistry.domain.text.canonical import digest, plain, stored
from mcpregistry.models import Definition, Server, ServerEvent, Tool
from mcpregistry.services.notifications import outbox
from mcpregistry.services.records import audit

_OTHER_NAMES = 20_000  # to compare new names with
# A ``server`` offers the tools ``names`` for the first time or again. Sent in the transaction that notes it.
offered = Signal()


@dataclass(frozen=True, slots=True)
class Changes:
    """Names of tools, as compared with the last look at the server."""

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    returned: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed or self.returned)


@transaction.atomic
def observe(*, server: Server, listed: Iterable[dict[str, Any]], instructions: str = "", process: str = "") -> Changes:
    """Store what the server offers now, and compare it with what was approved; called after every reading of its list.

    New and changed tools wait for approval. ``instructions``: what the server tells every model that uses it, part of
    each of its tools' definitions.
    """
    Server.objects.select_for_update(no_key=True).get(pk=server.pk)  # processes look at the same time
    bodies: dict[str, dict[str, Any]] = {}
    for data in listed:
        bodies.setdefault(plain(str(data["name"]), 500), visible(data, instructions))
    look = _Look(server, timezone.now(), frozenset(bodies))
    known = {tool.name: tool for tool in server.tools.select_related("latest", "pinned")}
    _add(look, {name: body for name, body in bodies.items() if name not in known})
    for name, body in bodies.items():
        if name in known:
            _observe_one(look, known[name], name, body)
    for name, tool in known.items():
        if name not in bodies and tool.present:
            tool.present = False
            tool.save(update_fields=["present"])
            look.changes.removed.append(name)
    server.tools.filter(present=True).update(last_seen_at=look.now)
    Server.objects.filter(pk=server.pk).update(refreshed_at=look.now)
    if look.changes:
        _announce(look, process)
    if arrived := [*look.changes.added, *look.changes.returned]:
        offered.send(sender=Tool, server=server, names=arrived)
    return look.changes


@transaction.atomic
def described(*, server: Server, name: str, body: dict[str, Any]) -> Tool:
    """A tool of which a file of the whole site says how the server describes it, on a site that may not have asked it yet.

    It decides nothing: the next look at the server tells whether it is so.
    """
    look = _Look(server, timezone.now(), frozenset([name]))
    if not Tool.objects.filter(server=server, name=name).exists():
        _add(look, {name: body})
    else:
        _observe_one(look, Tool.objects.select_related("latest", "pinned").get(server=server, name=name), name, body)
    return Tool.objects.select_related("latest", "pinned", "server").get(server=server, name=name)


@dataclass(frozen=True)
class _Look:
    """One look at a server: when, which tools it lists, what has changed."""

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
    """Tools that the server has never offered before, all at once."""
    seen = {"first_seen_at": look.now, "last_seen_at": look.now}
    tools = Tool.objects.bulk_create(Tool(server=look.server, name=name, **seen) for name in bodies)
    definitions = Definition.objects.bulk_create(_said(look, tool, bodies[tool.name]) for tool in tools)
    for tool, definition in zip(tools, definitions, strict=True):
        tool.latest = definition
    Tool.objects.bulk_update(tools, ["latest"])
    Tool.history.bulk_history_create(tools)
    look.changes.added.extend(bodies)
    look.undecided.update(bodies)


def _said(look: _Look, tool: Tool, body: dict[str, Any]) -> Definition:
    text = stored(body)
    return Definition(tool=tool, hash=digest(text), body=text, seen_at=look.now, **look.scanned(body))


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
    found = digest(text)
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
        server=server, at=look.now, kind="tools", message=f"Tools: {', '.join(words)}.", process=process
    )
    audit.record(kind="tools.changed", actor="server", subject=f"server:{server.slug}", **facts)
    added, changed = ([n for n in names if n in look.undecided] for names in (changes.added, changes.changed))
    outbox.enqueue_definitions(server=server, added=added, changed=changed, now=look.now)


def _named(changes: Changes) -> list[tuple[str, list[str]]]:
    return [(word, getattr(changes, word)) for word in ("added", "changed", "removed", "returned")]
