"""Definitions: what a server lists is compared with what was approved.

A tool serves only while what its server says now is what was approved (``Tool.objects.serving``): a new or
changed one is quarantined until somebody decides, the others of its server go on. Every approved text
stays approved until it is rejected, so a server that goes back to one of them heals by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from django.db import transaction
from django.utils import timezone

from mcpregistry.domain.canonical import digest, plain, stored
from mcpregistry.domain.definitions import differences, visible
from mcpregistry.domain.errors import Conflict
from mcpregistry.models import Definition, Server, ServerEvent, Tool
from mcpregistry.services import audit


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
def observe(
    *, server: Server, listed: Iterable[dict[str, Any]], instructions: str = "", process: str = ""
) -> Changes:
    """Store what the server offers now. New and changed tools wait for approval; nothing is lost.

    ``instructions``: what the server tells every model that uses it, part of each of its tools' definitions.
    """
    Server.objects.select_for_update(no_key=True).get(pk=server.pk)  # processes look at the same time
    now, changes = timezone.now(), Changes()
    known = {tool.name: tool for tool in server.tools.select_related("latest", "pinned")}
    seen: set[str] = set()
    for data in listed:
        name = plain(str(data["name"]), 500)
        if name not in seen:
            seen.add(name)
            body = visible(data, instructions)
            _observe_one(server, known.get(name), name, body, now=now, changes=changes)
    for name, tool in known.items():
        if name not in seen and tool.present:
            tool.present = False
            tool.save(update_fields=["present"])
            changes.removed.append(name)
    server.tools.filter(present=True).update(last_seen_at=now)
    Server.objects.filter(pk=server.pk).update(refreshed_at=now)
    if changes:
        _announce(server, changes, now, process)
    return changes


def _observe_one(
    server: Server, tool: Tool | None, name: str, body: dict[str, Any], *, now: Any, changes: Changes
) -> None:
    if tool is None:
        tool = Tool.objects.create(server=server, name=name, first_seen_at=now, last_seen_at=now)
        changes.added.append(name)
    elif not tool.present:
        changes.returned.append(name)
    definition = _definition(tool, body, now)
    if tool.latest is not None and tool.latest != definition:
        changes.changed.append(name)
    facts: dict[str, Any] = {"latest": definition, "present": True}
    if definition.approved:
        facts["pinned"] = definition  # back to an approved text: it heals by itself
    if any(getattr(tool, name) != value for name, value in facts.items()):
        for column, value in facts.items():
            setattr(tool, column, value)
        tool.save(update_fields=[*facts])  # and one row of history; a decision made meanwhile stands


def _definition(tool: Tool, body: dict[str, Any], now: Any) -> Definition:
    text = stored(body)
    found = digest(text)
    if tool.latest is not None and tool.latest.hash == found:
        return tool.latest
    defaults = {"body": text, "seen_at": now}
    return Definition.objects.get_or_create(tool=tool, hash=found, defaults=defaults)[0]


def _announce(server: Server, changes: Changes, now: Any, process: str) -> None:
    words = [f"{len(names)} {word}" for word, names in _named(changes) if names]
    facts = {word: names[:100] for word, names in _named(changes) if names}
    ServerEvent.objects.create(
        server=server, at=now, kind="tools", message=f"Tools: {', '.join(words)}.", process=process
    )
    audit.record(kind="tools.changed", actor="server", subject=f"server:{server.slug}", **facts)


def _named(changes: Changes) -> list[tuple[str, list[str]]]:
    return [(word, getattr(changes, word)) for word in ("added", "changed", "removed", "returned")]


@transaction.atomic
def approve(*, definition: Definition, actor: str, user: object = None) -> Tool:
    """Accept this definition: while the server says exactly this, the tool is listed and called."""
    tool = _locked(definition)
    before = tool.pinned.data if tool.pinned else {}
    _decide(definition, user, approved=True)
    said_now_is_approved = tool.definitions.filter(pk=tool.latest_id, approved=True).exists()
    _pin(tool, tool.latest_id if said_now_is_approved else definition.pk)
    audit.record(
        kind="definition.approved", actor=actor, subject=f"tool:{tool}", hash=definition.hash,
        fields=differences(before, definition.data),
    )  # fmt: skip
    return tool


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
    Definition.objects.filter(pk=definition.pk).update(
        approved=approved, decided_at=timezone.now(), decided_by=user
    )


def _pin(tool: Tool, definition_id: int | None) -> None:
    tool.pinned_id = definition_id
    tool.save(update_fields=["pinned"])


@transaction.atomic
def approve_waiting(*, server: Server, actor: str, user: object = None) -> int:
    """Approve the newest definition of every tool of the server that waits. Returns how many."""
    waiting = [tool.latest for tool in server.tools.waiting().select_related("latest") if tool.latest]
    for definition in waiting:
        approve(definition=definition, actor=actor, user=user)
    return len(waiting)


@transaction.atomic
def save_tool(*, tool: Tool, actor: str) -> Tool:
    """Switch a tool on or off, or vouch that it may be called twice (``enabled``, ``idempotent``)."""
    tool.save(update_fields=["enabled", "idempotent"])
    facts = {"enabled": tool.enabled, "idempotent": tool.idempotent}
    audit.record(kind="tool.changed", actor=actor, subject=f"tool:{tool}", **facts)
    return tool
