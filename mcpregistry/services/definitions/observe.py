"""Definitions: what a server lists is compared with what was approved.

A tool serves only while what its server says now is what was approved (``Tool.objects.serving``): a new or
changed one is quarantined until somebody decides, the others of its server go on. Every approved text
stays approved until it is rejected, so a server that goes back to one of them heals by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.dispatch import Signal
from django.utils import timezone

from mcpregistry.domain import scanner
from mcpregistry.domain.canonical import digest, plain, stored
from mcpregistry.domain.definitions import differences, visible
from mcpregistry.domain.errors import ConfigInvalid, Conflict
from mcpregistry.domain.phrases import Severity
from mcpregistry.models import Definition, Server, ServerEvent, Tool
from mcpregistry.services import audit, notifications

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
    """Store what the server offers now. New and changed tools wait for approval; nothing is lost.

    ``instructions``: what the server tells every model that uses it, part of each of its tools' definitions.
    """
    Server.objects.select_for_update(no_key=True).get(pk=server.pk)  # processes look at the same time
    bodies: dict[str, dict[str, Any]] = {}
    for data in listed:
        bodies.setdefault(plain(str(data["name"]), 500), visible(data, instructions))
    look = _Look(server, timezone.now(), frozenset(bodies))
    known = {tool.name: tool for tool in server.tools.select_related("latest", "pinned")}
    for name, body in bodies.items():
        _observe_one(look, known.get(name), name, body)
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
        found = scanner.scan(body, own=self.names, others=self.others)
        rows = [asdict(finding) for finding in found]
        return {"scanner": scanner.VERSION, "severity": scanner.worst(found), "findings_json": stored(rows)}


def _observe_one(look: _Look, tool: Tool | None, name: str, body: dict[str, Any]) -> None:
    changes = look.changes
    if tool is None:
        tool = Tool.objects.create(server=look.server, name=name, first_seen_at=look.now, last_seen_at=look.now)
        changes.added.append(name)
    elif not tool.present:
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
        definition = Definition.objects.filter(tool=tool, hash=found).first() or Definition.objects.create(
            tool=tool, hash=found, body=text, seen_at=look.now, **look.scanned(body)
        )
    if definition.scanner != scanner.VERSION:
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
    notifications.enqueue_definitions(server=server, added=added, changed=changed, now=look.now)


def _named(changes: Changes) -> list[tuple[str, list[str]]]:
    return [(word, getattr(changes, word)) for word in ("added", "changed", "removed", "returned")]


@transaction.atomic
def approve(*, definition: Definition, actor: str, user: object = None) -> Tool:
    """Accept this definition: while the server says exactly this, the tool is listed and called."""
    tool = _locked(definition)
    before = tool.pinned.data if tool.pinned else {}
    _decide(definition, user, approved=True)
    said_now_is_approved = tool.latest is not None and tool.latest.approved  # read after the decision
    _pin(tool, tool.latest_id if said_now_is_approved else definition.pk)
    fields = differences(before, definition.data)
    audit.record(
        kind="definition.approved", actor=actor, subject=f"tool:{tool}", hash=definition.hash, fields=fields,
        severity=definition.severity,
    )  # fmt: skip
    if before and "annotations" in fields:
        _withdraw_confirmation(tool, actor)
    return tool


def _withdraw_confirmation(tool: Tool, actor: str) -> None:
    """What somebody vouched for was another claim: the worst is assumed until somebody looks again."""
    if (tool.read_only, tool.destructive, tool.open_world) == (None, None, None):
        return
    tool.read_only = tool.destructive = tool.open_world = None
    tool.save(update_fields=["read_only", "destructive", "open_world"])
    audit.record(kind="tool.confirmation_withdrawn", actor=actor, subject=f"tool:{tool}")


@transaction.atomic
def reject(*, definition: Definition, actor: str, user: object = None) -> Tool:
    """Never serve this definition; if it is the one being served, the tool is withdrawn."""
    tool = _locked(definition)
    _decide(definition, user, approved=False)
    if tool.pinned_id == definition.pk:
        _pin(tool, None)
    audit.record(kind="definition.rejected", actor=actor, subject=f"tool:{tool}", hash=definition.hash)
    return tool


@transaction.atomic
def revert(*, definition: Definition, actor: str, user: object = None) -> Tool:
    """Hold to the text that was approved before this one: this one is not served (any more).

    We cannot make a server say something else: the tool serves again once the server offers the earlier
    text. Raises Conflict when no other text of the tool was ever approved.
    """
    tool = _locked(definition)
    earlier = tool.definitions.filter(approved=True).exclude(pk=definition.pk).order_by("-decided_at", "-pk").first()
    if earlier is None:
        raise Conflict("No other text of this tool was ever approved.", remedy="Reject this one instead.")
    _decide(definition, user, approved=False)
    _pin(tool, earlier.pk)
    audit.record(
        kind="definition.reverted", actor=actor, subject=f"tool:{tool}", hash=definition.hash, kept=earlier.hash
    )
    return tool


def _locked(definition: Definition) -> Tool:
    return Tool.objects.select_for_update(of=("self",)).get(pk=definition.tool_id)


def _decide(definition: Definition, user: object, *, approved: bool) -> None:
    Definition.objects.filter(pk=definition.pk).update(approved=approved, decided_at=timezone.now(), decided_by=user)


def _pin(tool: Tool, definition_id: int | None) -> None:
    tool.pinned_id = definition_id
    tool.save(update_fields=["pinned"])


@transaction.atomic
def approve_waiting(*, server: Server, actor: str, user: object = None) -> int:
    """Approve the newest definition of every tool of the server that waits. Returns how many."""
    return _approve_each(server.tools.waiting(), actor, user)


def _approve_each(tools: QuerySet[Tool], actor: str, user: object) -> int:
    waiting = [tool.latest for tool in tools.select_related("latest") if tool.latest]
    for definition in waiting:
        approve(definition=definition, actor=actor, user=user)
    return len(waiting)


@transaction.atomic
def approve_clean(*, server: Server, up_to: int, actor: str, user: object = None) -> int:
    """Approve what waits and gave the scanner no alarm. Returns how many.

    ``up_to``: the newest definition (its id) that was there when the person looked.
    """
    clean = server.tools.waiting().filter(
        latest__lte=up_to, latest__severity__lt=Severity.ALARM, latest__scanner=scanner.VERSION
    )
    return _approve_each(clean, actor, user)


@transaction.atomic
def save_tool(*, tool: Tool, actor: str) -> Tool:
    """What an operator says of a tool: on or off, whether it may be called twice, what a call costs.

    Raises ConfigInvalid for an estimate below zero.
    """
    if min(tool.call_energy or 0, tool.call_cost or 0) < 0:
        raise ConfigInvalid("A call cannot give energy or money back.", remedy="Enter zero or more.")
    tool.save(update_fields=["enabled", "idempotent", "call_energy", "call_cost"])
    facts = {
        "enabled": tool.enabled, "idempotent": tool.idempotent, "energy": tool.call_energy,
        "cost": None if tool.call_cost is None else str(tool.call_cost),
    }  # fmt: skip
    audit.record(kind="tool.changed", actor=actor, subject=f"tool:{tool}", **facts)
    return tool
