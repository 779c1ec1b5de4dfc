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
from django.utils import timezone

from mcpregistry.domain.definitions.findings import VERSION
from mcpregistry.domain.offer_kinds import KINDS, TOOL, parse_offer_key, spell_offer_key
from mcpregistry.extensions import list_extensions
from mcpregistry.models import Definition, Server, ServerEvent, Tool
from mcpregistry.services.definitions.scanning import (
    ListedDefinition,
    Pause,
    ScanResult,
    list_unscanned,
    make_listed_definition,
    read_definitions,
    scan_definitions,
)
from mcpregistry.services.notifications import outbox
from mcpregistry.services.records import audit

_BATCH = 200  # names in one transaction
_UNSCANNED = ScanResult(scanner=0, severity=0, findings_json="[]")


@dataclass(frozen=True, slots=True)
class ObservedChanges:
    """Names of tools and, with their kind, of prompts, as compared with the last look at the
    server."""

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    returned: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed or self.returned)

    def extend(self, other: ObservedChanges) -> None:
        """Take in those of a further part of the lists."""
        for word, names in _list_named_changes(other):
            getattr(self, word).extend(names)


class _NotScannedError(Exception):
    """A definition that was known when the scan began is gone."""


@dataclass(frozen=True, slots=True)
class _Observation:
    """One look at a server: when, and what it lists."""

    server: Server
    now: datetime
    read_at: datetime
    kinds: frozenset[str]
    listed: Mapping[str, ListedDefinition]
    process: str = ""

    @property
    def names(self) -> frozenset[str]:
        return frozenset(parse_offer_key(key)[1] for key in self.listed)


@dataclass
class _Batch:
    """A part of the lists that one transaction writes, and what has changed in it."""

    look: _Observation
    scans: Mapping[str, ScanResult]
    changes: ObservedChanges = field(default_factory=ObservedChanges)
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
) -> ObservedChanges:
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
    look = _Observation(server, now, read_at or now, frozenset(offered_now), definitions, process)
    scans = scan_definitions(
        server, list_unscanned(server, definitions.values()), look.names, pause
    )
    changes = ObservedChanges()
    took = 0.0
    for keys in _iterate_batches(look):
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
def record_described_tool(*, server: Server, key: str, body: dict[str, Any]) -> Tool:
    """A tool (or prompt, by its name with its kind) of which a file of the whole site says how the
    server describes it, on a site that may not have asked it yet.

    It decides nothing: the next look at the server tells whether it is so. The definition is
    scanned after the transaction, which may be that of a whole file.
    """
    now = timezone.now()
    look = _Observation(
        server,
        now,
        now,
        frozenset([parse_offer_key(key)[0]]),
        {key: make_listed_definition(key, body)},
    )
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
    if not list_unscanned(server, [listed]):
        return
    names = frozenset(server.tools.filter(present=True).values_list("name", flat=True))
    kind, name = parse_offer_key(listed.key)
    (result,) = scan_definitions(server, [listed], names, time.sleep).values()
    rows = Definition.objects.filter(
        tool__server=server, tool__kind=kind, tool__name=name, hash=listed.hash
    )
    rows.exclude(scanner=VERSION).update(**asdict(result))


def _iterate_batches(look: _Observation) -> Iterator[list[str]]:
    """The keys of what the server lists, and of what it does not list any more; at least one
    batch."""
    present = Tool.offers.filter(server=look.server, kind__in=look.kinds, present=True).order_by(
        "name"
    )
    known = [spell_offer_key(kind, name) for kind, name in present.values_list("kind", "name")]
    keys = [*look.listed, *(key for key in known if key not in look.listed)]
    for start in range(0, max(len(keys), 1), _BATCH):
        yield keys[start : start + _BATCH]


def _write_scanned(
    look: _Observation, keys: list[str], scans: dict[str, ScanResult], pause: Pause
) -> ObservedChanges | None:
    try:
        return _write(look, keys, scans)
    except _NotScannedError:
        rest = [look.listed[key] for key in keys if key in look.listed and key not in scans]
        scans.update(scan_definitions(look.server, rest, look.names, pause))
        return _write(look, keys, scans)


@transaction.atomic
def _write(
    look: _Observation, keys: list[str], scans: Mapping[str, ScanResult]
) -> ObservedChanges | None:
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
        server=server, kind__in=look.kinds, name__in=[parse_offer_key(key)[1] for key in keys]
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
    named = {key: parse_offer_key(key) for key in new}
    tools = Tool.offers.bulk_create(
        Tool(server=look.server, kind=kind, name=name, **seen) for kind, name in named.values()
    )
    definitions = Definition.objects.bulk_create(
        _build_definition_row(batch, tool, new[tool.key]) for tool in tools
    )
    for tool, definition in zip(tools, definitions, strict=True):
        tool.latest = definition
    only = Definition.objects.filter(tool=OuterRef("pk")).values("pk")[:1]
    Tool.offers.filter(pk__in=[tool.pk for tool in tools]).update(latest=Subquery(only))
    Tool.history.bulk_history_create(tools)
    batch.changes.added.extend(new)
    batch.undecided.update(new)


def _build_definition_row(batch: _Batch, tool: Tool, each: ListedDefinition) -> Definition:
    if each.key not in batch.scans:
        raise _NotScannedError
    result = asdict(batch.scans[each.key])
    return Definition(tool=tool, hash=each.hash, body=each.text, seen_at=batch.look.now, **result)


def _observe_one(batch: _Batch, tool: Tool, each: ListedDefinition) -> None:
    changes = batch.changes
    if not tool.present:
        changes.returned.append(each.key)
    definition = _get_or_create_definition(batch, tool, each)
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


def _get_or_create_definition(batch: _Batch, tool: Tool, each: ListedDefinition) -> Definition:
    definition = tool.latest
    if definition is None or definition.hash != each.hash:
        definition = (
            Definition.objects.filter(tool=tool, hash=each.hash)
            .defer("body", "findings_json")
            .first()
        )
    if definition is None:
        definition = _build_definition_row(batch, tool, each)
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
    words = [f"{len(names)} {word}" for word, names in _list_named_changes(changes) if names]
    facts = {word: names[:100] for word, names in _list_named_changes(changes) if names}
    ServerEvent.objects.create(
        server=server,
        at=look.now,
        kind="tools",
        message=f"{_compose_heading(changes)}: {', '.join(words)}.",
        process=look.process,
    )
    audit.record_entry(
        kind="tools.changed", actor="server", subject=f"server:{server.slug}", **facts
    )
    added, changed = (
        [n for n in names if n in batch.undecided] for names in (changes.added, changes.changed)
    )
    outbox.enqueue_definitions(server=server, added=added, changed=changed, now=look.now)
    if arrived := [*changes.added, *changes.returned]:
        for extension in list_extensions():
            extension.handle_offered_tools(server, arrived)


def _compose_heading(changes: ObservedChanges) -> str:
    kinds = {parse_offer_key(key)[0] for _, keys in _list_named_changes(changes) for key in keys}
    return " and ".join(f"{kind}s" for kind in KINDS if kind in kinds).capitalize()


def _list_named_changes(changes: ObservedChanges) -> list[tuple[str, list[str]]]:
    return [(word, getattr(changes, word)) for word in ("added", "changed", "removed", "returned")]
