"""Where seals are kept out of the database's reach: a file to which lines are only ever added,
syslog, and over HTTP.

The clock hands over what a place lacks, in order, after each seal. The file says itself how far it
has come; what the others have is noted (``remote_sinks``: webhook and bucket). A place that cannot
be reached gets its seals later.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Iterable, Iterator
from ipaddress import ip_network
from itertools import islice
from logging.handlers import SysLogHandler
from typing import BinaryIO, NoReturn
from urllib.parse import urlsplit

import structlog
from django.conf import settings

from mcpregistry.domain.errors import ConfigInvalid, SlipsnisseError
from mcpregistry.models.audit import AuditSeal
from mcpregistry.models.figure import Figure
from mcpregistry.models.signing import verify_signature
from mcpregistry.services.records import archives, chains, remote_sinks
from mcpregistry.services.records.seals import format_seal_line

log = structlog.get_logger(__name__)

AT_ONCE = 1_000
_SENT = "audit.syslog"  # the figure that says which seal syslog has got last
_PAGE = 500


def deliver_seals() -> None:
    """Hand over the seals that each configured place lacks. One that fails is told of in the log,
    and tried next time."""
    for name, place, hand_over in (
        ("file", settings.AUDIT_FILE, deliver_to_file),
        ("syslog", settings.AUDIT_SYSLOG, deliver_to_syslog),
        ("webhook", settings.AUDIT_WEBHOOK, remote_sinks.deliver_to_webhook),
        ("bucket", settings.AUDIT_BUCKET, remote_sinks.deliver_to_bucket),
    ):
        try:
            if place:
                hand_over(place)
        except (OSError, ValueError, SlipsnisseError, remote_sinks.NotKept) as error:
            # a time-out is an OSError
            log.error(
                "audit.not_kept_outside", place=name, error=f"{type(error).__name__}: {error}"
            )


def find_sink_problems() -> Iterator[str]:
    """What is wrong with the settings of the places, without a word of a secret; a system check
    asks at each start."""
    for name, url in remote_sinks.list_configured_sinks():
        if problem := remote_sinks.check_sink_settings(name, url):
            yield problem
    try:
        if settings.AUDIT_SYSLOG:
            parse_syslog_address(settings.AUDIT_SYSLOG)
    except ValueError as error:
        yield str(error)
    for network in settings.AUDIT_NETWORKS:
        try:
            ip_network(network)
        except ValueError as error:
            yield f"SLIPSNISSE_AUDIT_NETWORKS must contain networks such as 10.0.0.0/8, separated by commas: {error}."


def deliver_to_file(path: str) -> int:
    """Append to the file, and to the disk, what it lacks; returns how many. Raises OSError,
    ValueError for another file."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "rb+", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # of two workers each seal is written by one
        last, whole = _read_last_line(file)
        number = _read_seal_number(last) if last else 0
        lines = [
            format_seal_line(each)
            for each in AuditSeal.objects.filter(number__gt=number).order_by("number")[:AT_ONCE]
        ]
        if lines:
            start = "" if whole else "\n"  # a line that was broken off by a crash stays as it is
            file.write((start + "".join(f"{line}\n" for line in lines)).encode())
            os.fsync(file.fileno())
    return len(lines)


def _read_seal_number(line: bytes) -> int:
    try:
        return int(json.loads(json.loads(line)["seal"])["number"])
    except (KeyError, TypeError) as error:
        raise ValueError(
            "its last line is not a checkpoint; choose another file, or one that does not exist yet"
        ) from error


def _read_last_line(file: BinaryIO) -> tuple[bytes, bool]:
    """The last whole line, and whether nothing comes after it."""
    size = file.seek(0, os.SEEK_END)
    step = 64 * 1024
    found = b""
    while size and found.count(b"\n") < 2 and len(found) < size:
        found = os.pread(file.fileno(), min(step, size), max(0, size - step))
        step *= 4
    lines = found.split(b"\n")
    return (lines[-2] if len(lines) > 1 else b""), found.endswith(b"\n") or not found


def deliver_to_syslog(address: str) -> int:
    """Send what was not sent yet, without the heads, for a datagram is short: the signature stands
    for them."""
    sent, _ = Figure.objects.get_or_create(name=_SENT, labels="{}")
    seals = [*AuditSeal.objects.filter(number__gt=sent.value).order_by("number")[:AT_ONCE]]
    if not seals:
        return 0
    handler = _Syslog(parse_syslog_address(address), SysLogHandler.LOG_AUTH)
    try:
        for each in seals:
            said = f"slipsnisse: audit seal {each.number} at {each.at.isoformat()} key {each.key_id} signature {each.hash}"
            handler.emit(logging.LogRecord(__name__, logging.INFO, "", 0, said, None, None))
            Figure.objects.filter(pk=sent.pk).update(value=each.number)
    finally:
        handler.close()
    return len(seals)


class _Syslog(SysLogHandler):
    def handleError(self, record: logging.LogRecord) -> NoReturn:
        raise  # noqa: PLE0704  it is called where the error was caught


def parse_syslog_address(text: str) -> str | tuple[str, int]:
    """``/dev/log`` or ``udp://HOST:PORT``. Raises ValueError for anything else."""
    if text.startswith("/"):
        return text
    try:
        parts = urlsplit(text)
        if parts.scheme == "udp" and parts.hostname:
            return parts.hostname, parts.port or 514
        why = ""
    except ValueError as error:  # an address or port that is none
        why = f" ({error})"
    raise ValueError(
        f"SLIPSNISSE_AUDIT_SYSLOG must be a path such as /dev/log or udp://HOST:PORT, not {text!r}{why}."
    )


# Comparing


def is_seal(line: str) -> bool:
    """Whether this is a line of such a file, not of an export of entries."""
    return '"seal"' in line


def find_missing_seals(
    lines: Iterable[str], known: archives.Archives | None = None
) -> Iterator[str]:
    """One sentence for each kept seal that the database no longer has as it was, and for each chain
    that is shorter.

    Raises ValueError, KeyError or TypeError for a line that no such file holds.
    """
    ends: dict[str, tuple[int, str]] = {}
    kept = (json.loads(line) for line in lines)
    while page := list(islice(kept, _PAGE)):
        rows = {}
        for each in page:
            body = json.loads(each["seal"])
            rows[body["number"]] = each["hash"]
            if _is_own_line(each):
                ends |= {writer: (seq, head) for writer, (seq, head) in body["heads"].items()}
            else:
                yield f"Checkpoint {body['number']} of the file does not match its signature."
        found = dict(AuditSeal.objects.filter(number__in=[*rows]).values_list("number", "hash"))
        for number, signature in rows.items():
            if found.get(number) != signature:
                yield f"Checkpoint {number} is in the file, but {'was changed in' if number in found else 'is missing from'} the database."
    yield from chains.find_missing_ends(ends.items(), known or archives.load_archives())


def _is_own_line(line: dict[str, str]) -> bool:
    try:
        return verify_signature(line["key_id"], "seal", line["seal"], line["hash"])
    except ConfigInvalid:
        return False
