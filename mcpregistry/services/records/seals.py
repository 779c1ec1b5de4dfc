"""Seals: how far every chain had come, signed together by the clock at least every minute.

A chain alone cannot show that its tail was cut off, nor the log that a whole chain is gone: the
seals can. They are chained to one another, so the same holds of them up to the newest one, and that
goes out of reach (``sinks.py``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import structlog
from django.db import IntegrityError, transaction
from django.db.models import Max
from django.utils import timezone

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.text.canonical import encode_canonical_json
from mcpregistry.models.audit import GENESIS, AuditArchive, AuditEntry, AuditSeal
from mcpregistry.models.signing import has_key, newest_key, signature, verify_signature
from mcpregistry.services.records import audit, signed_books
from mcpregistry.services.records.audit import CHAIN

log = structlog.get_logger(__name__)

QUIET = timedelta(hours=1)  # a seal that says nothing new is made only so often
_LATEST_COMMIT = timedelta(minutes=1)  # for which an entry may have its number and not be seen yet
_PAGE = 500

# kind and subject of an entry
_LOST = "audit.checkpoints_lost"
_LOG = "audit"

Heads = dict[str, tuple[int, str]]  # of each writer: how many entries, and the hash of the last


def list_missing_keys() -> list[str]:
    """The ids of keys that signed checkpoints or archives, and that the site does not have. Every
    minute with entries has a checkpoint, so the keys of entries are among them."""
    used = {
        *AuditSeal.objects.values_list("key_id", flat=True).distinct(),
        *AuditArchive.objects.values_list("key_id", flat=True).distinct(),
    }
    return sorted(key for key in used if not has_key(key))


def seal_new_entries(
    now: datetime, *, entries: Any = AuditEntry, seals: Any = AuditSeal
) -> AuditSeal | None:
    """Seal what has come since the last seal; the clock calls it. None when nothing has, or another
    clock was faster.

    ``entries`` and ``seals`` are the models as a migration knows them.
    """
    last = seals.objects.order_by("-number").first()
    moved, standing, upto = _find_moved_heads(last, now, entries, seals)
    books = _find_moved_book_heads(now) if entries is AuditEntry else {}
    if last is not None and not moved and not books and now - last.at < QUIET:
        return None
    number, prev, key_id = (
        (last.number + 1, last.hash, newest_key()) if last else (1, GENESIS, newest_key())
    )
    said = {
        "number": number,
        "at": now.isoformat(),
        "upto": upto,
        "prev": prev,
        "heads": standing | moved,
    }
    body = encode_canonical_json(said | ({"books": books} if books else {}))
    row = {"number": number, "at": now, "upto": upto, "prev": prev, "body": body, "key_id": key_id}
    try:
        with transaction.atomic():  # the number is the key, so of two clocks one has it
            made: AuditSeal = seals.objects.create(**row, hash=signature(key_id, "seal", body))
            return made
    except IntegrityError:
        return None


def replace_lost(actor: str) -> bool:
    """If there is no seal, make one, and record that all were deleted: migrations make the first
    one."""
    if AuditSeal.objects.exists():
        return False
    log.warning(_LOST)
    with transaction.atomic():
        audit.record_entry(kind=_LOST, actor=actor, subject=_LOG)
        seal_new_entries(timezone.now())
    return True


def list_losses() -> list[datetime]:
    """Times at which the log recorded that all seals were deleted."""
    return [
        *AuditEntry.objects.filter(subject=_LOG, kind=_LOST)
        .order_by("id")
        .values_list("at", flat=True)
    ]


def _find_moved_heads(
    last: Any, now: datetime, entries: Any, seals: Any
) -> tuple[Heads, Heads, int]:
    """The heads that no seal has told of yet; that of the configuration, told or not; the newest
    entry looked at."""
    settled = seals.objects.filter(at__lt=now - _LATEST_COMMIT).order_by("-number").first()
    since, known = (settled.upto, settled.number) if settled else (0, 0)
    told: dict[str, Any] = {}
    for body in (
        seals.objects.filter(number__gte=known).order_by("number").values_list("body", flat=True)
    ):
        told |= _read_seal_part(body, "heads")
    near = entries.objects.filter(id__gt=since).order_by()
    ids = sorted(near.values("writer").annotate(last=Max("id")).values_list("last", flat=True))
    # Those of the configuration are written in transactions of any length, so its chain is looked
    # at by itself.
    standing = _read_heads(entries.objects.filter(writer=CHAIN).order_by("-seq")[:1])
    found = [
        _read_heads(entries.objects.filter(id__in=ids[start : start + _PAGE]))
        for start in range(0, len(ids), _PAGE)
    ]
    heads = {writer: head for some in [*found, standing] for writer, head in some.items()}
    moved = {writer: head for writer, head in heads.items() if told.get(writer) != list(head)}
    return moved, standing, max([last.upto if last else 0, *ids])


def _find_moved_book_heads(now: datetime) -> Heads:
    """The heads of the books of energy and budgets with new entries that no recent seal
    includes."""
    settled = AuditSeal.objects.filter(at__lt=now - _LATEST_COMMIT).order_by("-number").first()
    since = settled.at - _LATEST_COMMIT if settled else None
    recent = AuditSeal.objects.filter(at__gt=since) if since else AuditSeal.objects.all()
    told: Heads = {}
    for body in recent.order_by("number").values_list("body", flat=True):
        told |= {name: (seq, head) for name, (seq, head) in _read_seal_part(body, "books").items()}
    return signed_books.find_moved_heads(since, told)


def _read_seal_part(body: Any, name: str) -> dict[str, Any]:
    """What a seal says of chains or books; nothing if it was changed so that it cannot be read,
    which verifying finds."""
    try:
        said = json.loads(body).get(name, {})
    except (TypeError, ValueError, AttributeError, RecursionError):
        return {}
    is_whole = isinstance(said, dict) and all(
        isinstance(head, list) and len(head) == 2 for head in said.values()
    )
    return said if is_whole else {}


def _read_heads(rows: Any) -> Heads:
    found = rows.values_list("writer", "seq", "hash")
    # SQLite takes a value of any type; verifying finds such an entry.
    sound = [each for each in found if tuple(map(type, each)) == (str, int, str)]
    return {writer: (seq, head) for writer, seq, head in sound}


# Looking


class CheckedSeal(NamedTuple):
    """A seal with what is wrong with it."""

    seal: AuditSeal
    heads: Heads
    problem: str


def check_seals(
    seals: Iterable[AuditSeal], number: int = 0, head: str = GENESIS
) -> Iterator[CheckedSeal]:
    """Seals in order, from the one after ``number``, whose hash was ``head``."""
    for each in seals:
        problem = explain_seal_problem(each)
        if each.number != number + 1:
            problem = f"the checkpoints before it are missing, from number {number + 1} on"
        elif not problem and each.prev != head:
            problem = "it does not follow the checkpoint before it"
        yield CheckedSeal(each, {} if problem else read_chain_heads(each), problem)
        number = each.number
        head = each.hash


def read_chain_heads(each: AuditSeal) -> Heads:
    """What a seal that holds says of the chains."""
    return {writer: (seq, head) for writer, (seq, head) in json.loads(each.body)["heads"].items()}


def read_book_heads(each: AuditSeal) -> Heads:
    """What a seal that holds says of the books of energy and budgets."""
    return {
        name: (seq, head) for name, (seq, head) in json.loads(each.body).get("books", {}).items()
    }


def explain_seal_problem(each: AuditSeal) -> str:
    """Why this seal, looked at alone, cannot be what was written; empty when it can."""
    try:
        if not verify_signature(each.key_id, "seal", each.body, each.hash):
            return "its text does not match its signature"
    except ConfigInvalid as error:
        return f"it cannot be verified. {error.message} {error.remedy}"
    body = json.loads(each.body)  # it is signed, so it is as we wrote it
    said = (body["number"], datetime.fromisoformat(body["at"]), body["upto"], body["prev"])
    return (
        ""
        if said == (each.number, each.at, each.upto, each.prev)
        else "a column does not match its text"
    )


def format_seal_line(each: AuditSeal) -> str:
    """A seal as it is kept outside: one line of JSON."""
    return json.dumps({"seal": each.body, "key_id": each.key_id, "hash": each.hash})
