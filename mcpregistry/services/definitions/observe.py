"""What a server lists is compared with what was approved: what is new or changed waits for a
decision (``decisions``).

Called after every look at a server, by whichever process took it. Nothing is written before
everything was scanned; a process that ends in between has written nothing, and the next look does
it all."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import OuterRef, Subquery
from django.dispatch import Signal
from django.utils import timezone

from mcpregistry.domain.definitions.findings import VERSION
from mcpregistry.domain.kinds import KINDS, TOOL, read, spelled
from mcpregistry.models import Definition, Server, ServerEvent, Tool
from mcpregistry.services.definitions.scanning import (
    ListedDefinition,
    Pause,
    ScanResult,
    definition_of,
    read_definitions,
    scan,
    unscanned,
)
from mcpregistry.services.notifications import outbox
from mcpregistry.services.records import audit

# A ``server`` offers ``names`` (with their kinds) for the first time or again. Sent in the
# transaction that notes it.
offered = Signal()
_BATCH = 200  # names in one transaction
_UNSCANNED = ScanResult(scanner=0, severity=0, findings_json="[]")


@dataclass(frozen=True, slots=True)
class Changes:
    """Names of tools and, with their kind, of prompts, as compared with the last look at the
    server."""

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    returned: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed or self.returned)

    def extend(self, other: Changes) -> None:
        """Take in those of a further part of the lists."""
        for word, names in _named(other):
            getattr(self, word).extend(names)


class _NotScannedError(Exception):
    """A definition that was known when the scan began is gone."""


@dataclass(frozen=True, slots=True)
class _Look:
    """One look at a server: when, and what it lists."""

    server: Server
    now: datetime
    read_at: datetime
    kinds: frozenset[str]
    listed: Mapping[str, ListedDefinition]
    process: str = ""

    @property
    def names(self) -> frozenset[str]:
        return frozenset(read(key)[1] for key in self.listed)


@dataclass
class _Batch:
    """A part of the lists that one transaction writes, and what has changed in it."""

    look: _Look
    scans: Mapping[str, ScanResult]
    changes: Changes = field(default_factory=Changes)
    undecided: set[str] = field(default_factory=set)


def observe(
    *,
    server: Server,
    listed: Iterable[dict[str, Any]],
    others: Mapping[str, Iterable[dict[str, Any]]] | None = None,
    instructions: str = "",
    process: str = "",
    read_at: datetime | None = None,
    pause: Pause = time.sleep,
) -> Changes:
    """Store what the server offers now, and compare it with what was approved; called after every
    reading of its lists.

    What is new or changed waits for approval. ``others``: what it lists besides tools, by kind; a
    kind that is not there was not asked for. ``instructions``: what the server tells every model
    that uses it, part of each of its tools' definitions. ``read_at``: when its lists were read
    (default: now). If a later reading was stored in the meantime, this one changes nothing.
    ``pause`` rests between slices of the work; what it raises ends the look.
    """
    offered_now = {TOOL: listed, **(others or {})}
    now = timezone.now()
    definitions = read_definitions(offered_now, instructions)
    look = _Look(server, now, read_at or now, frozenset(offered_now), definitions, process)
    scans = scan(server, unscanned(server, definitions.values()), look.names, pause)
    changes = Changes()
    took = 0.0
    for keys in _batches(look):
        if took:
            pause(took)  # others write in between
        began = time.monotonic()
        found = _write_scanned(look, keys, scans, pause)
        if found is None:
            break
        changes.extend(found)
        took = time.monotonic() - began
    return changes


@transaction.atomic
def described(*, server: Server, key: str, body: dict[str, Any]) -> Tool:
    """A tool (or prompt, by its name with its kind) of which a file of the whole site says how the
    server describes it, on a site that may not have asked it yet.

    It decides nothing: the next look at the server tells whether it is so. The definition is
    scanned after the transaction, which may be that of a whole file.
    """
    now = timezone.now()
    look = _Look(server, now, now, frozenset([read(key)[0]]), {key: definition_of(key, body)})
    rows = Tool.offers.of_record(server.slug, key).select_related("latest", "pinned", "server")
    batch = _Batch(look, {key: _UNSCANNED})
    if (known := rows.first()) is None:
        _add(batch, look.listed)
    else:
        _observe_one(batch, known, look.listed[key])
    transaction.on_commit(lambda: scan_later(server, look.listed[key]))
    return rows.get()


def scan_later(server: Server, listed: ListedDefinition) -> None:
    """Scan a definition that was stored unscanned."""
    if not unscanned(server, [listed]):
        return
    names = frozenset(server.tools.filter(present=True).values_list("name", flat=True))
    kind, name = read(listed.key)
    (result,) = scan(server, [listed], names, time.sleep).values()
    rows = Definition.objects.filter(
        tool__server=server, tool__kind=kind, tool__name=name, hash=listed.hash
    )
    rows.exclude(scanner=VERSION).update(**asdict(result))


def _batches(look: _Look) -> Iterator[list[str]]:
    """The keys of what the server lists, and of what it does not list any more; at least one
    batch."""
    present = Tool.offers.filter(server=look.server, kind__in=look.kinds, present=True).order_by(
        "name"
    )
    known = [spelled(kind, name) for kind, name in present.values_list("kind", "name")]
    keys = [*look.listed, *(key for key in known if key not in look.listed)]
    for start in range(0, max(len(keys), 1), _BATCH):
        yield keys[start : start + _BATCH]


def _write_scanned(
    look: _Look, keys: list[str], scans: dict[str, ScanResult], pause: Pause
) -> Changes | None:
    try:
        return _write(look, keys, scans)
    except _NotScannedError:
        rest = [look.listed[key] for key in keys if key in look.listed and key not in scans]
        scans.update(scan(look.server, rest, look.names, pause))
        return _write(look, keys, scans)


@transaction.atomic
def _write(look: _Look, keys: list[str], scans: Mapping[str, ScanResult]) -> Changes | None:
    """Compare hashes and write rows; all work on text was done before. None: a later look at the
    server was stored.

    Raises _NotScannedError, with nothing written.
    """
    # processes look at the same time
    server = Server.objects.select_for_update(no_key=True).get(pk=look.server.pk)
    if server.refreshed_at is not None and server.refreshed_at > look.read_at:
        return None
    batch = _Batch(look, scans)
    rows = Tool.offers.filter(
        server=server, kind__in=look.kinds, name__in=[read(key)[1] for key in keys]
    )
    texts = ("latest__body", "latest__findings_json", "pinned__body", "pinned__findings_json")
    known = {tool.key: tool for tool in rows.select_related("latest", "pinned").defer(*texts)}
    listed = {key: look.listed[key] for key in keys if key in look.listed}
    _add(batch, {key: each for key, each in listed.items() if key not in known})
    for key, each in listed.items():
        if key in known:
            _observe_one(batch, known[key], each)
    for key in keys:
        if key not in listed and key in known and known[key].present:
            known[key].present = False
            known[key].save(update_fields=["present"])
            batch.changes.removed.append(key)
    seen = [tool.pk for key, tool in known.items() if key in listed]
    Tool.offers.filter(pk__in=seen).update(last_seen_at=look.now)
    Server.objects.filter(pk=server.pk).update(refreshed_at=look.read_at)
    _announce(batch)
    return batch.changes


def _add(batch: _Batch, new: Mapping[str, ListedDefinition]) -> None:
    """What the server has never offered before, all at once."""
    look = batch.look
    seen = {"first_seen_at": look.now, "last_seen_at": look.now}
    named = {key: read(key) for key in new}
    tools = Tool.offers.bulk_create(
        Tool(server=look.server, kind=kind, name=name, **seen) for kind, name in named.values()
    )
    definitions = Definition.objects.bulk_create(
        _definition_row(batch, tool, new[tool.key]) for tool in tools
    )
    for tool, definition in zip(tools, definitions, strict=True):
        tool.latest = definition
    only = Definition.objects.filter(tool=OuterRef("pk")).values("pk")[:1]
    Tool.offers.filter(pk__in=[tool.pk for tool in tools]).update(latest=Subquery(only))
    Tool.history.bulk_history_create(tools)
    batch.changes.added.extend(new)
    batch.undecided.update(new)


def _definition_row(batch: _Batch, tool: Tool, each: ListedDefinition) -> Definition:
    if each.key not in batch.scans:
        raise _NotScannedError
    result = asdict(batch.scans[each.key])
    return Definition(tool=tool, hash=each.hash, body=each.text, seen_at=batch.look.now, **result)


def _observe_one(batch: _Batch, tool: Tool, each: ListedDefinition) -> None:
    changes = batch.changes
    if not tool.present:
        changes.returned.append(each.key)
    definition = _definition(batch, tool, each)
    if tool.latest is not None and tool.latest != definition:
        changes.changed.append(each.key)
    if definition.decided_at is None:
        batch.undecided.add(each.key)
    facts: dict[str, Any] = {"latest": definition, "present": True}
    if definition.approved:
        facts["pinned"] = definition  # back to an approved text: it heals by itself
    if any(getattr(tool, name) != value for name, value in facts.items()):
        for column, value in facts.items():
            setattr(tool, column, value)
        # and one row of history; a decision made in the meantime stands
        tool.save(update_fields=[*facts])


def _definition(batch: _Batch, tool: Tool, each: ListedDefinition) -> Definition:
    definition = tool.latest
    if definition is None or definition.hash != each.hash:
        definition = (
            Definition.objects.filter(tool=tool, hash=each.hash)
            .defer("body", "findings_json")
            .first()
        )
    if definition is None:
        definition = _definition_row(batch, tool, each)
        definition.save()
    elif definition.scanner != VERSION and batch.scans.get(each.key, _UNSCANNED).scanner == VERSION:
        Definition.objects.filter(pk=definition.pk).update(**asdict(batch.scans[each.key]))
    return definition


def _announce(batch: _Batch) -> None:
    look = batch.look
    changes = batch.changes
    if not changes:
        return
    server = look.server
    words = [f"{len(names)} {word}" for word, names in _named(changes) if names]
    facts = {word: names[:100] for word, names in _named(changes) if names}
    ServerEvent.objects.create(
        server=server,
        at=look.now,
        kind="tools",
        message=f"{_heading(changes)}: {', '.join(words)}.",
        process=look.process,
    )
    audit.record(kind="tools.changed", actor="server", subject=f"server:{server.slug}", **facts)
    added, changed = (
        [n for n in names if n in batch.undecided] for names in (changes.added, changes.changed)
    )
    outbox.enqueue_definitions(server=server, added=added, changed=changed, now=look.now)
    if arrived := [*changes.added, *changes.returned]:
        offered.send(sender=Tool, server=server, names=arrived)


def _heading(changes: Changes) -> str:
    kinds = {read(key)[0] for _, keys in _named(changes) for key in keys}
    return " and ".join(f"{kind}s" for kind in KINDS if kind in kinds).capitalize()


def _named(changes: Changes) -> list[tuple[str, list[str]]]:
    return [(word, getattr(changes, word)) for word in ("added", "changed", "removed", "returned")]
