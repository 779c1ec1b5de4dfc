"""A file in the site's folder that names the newest seal of the audit log, out of reach of an
attacker of the database.

Without it, an attacker who deletes the newest seals and the note of what was verified leaves a log
that looks like an earlier one. Each machine has a file of its own, which sealing and verifying
there update. A file that names a seal that the database has lost is kept: it stays a fault until an
operator accepts it (``accept_restored_log``).
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from mcpregistry.domain.errors import ConfigInvalid, Conflict
from mcpregistry.domain.text.canonical import encode_canonical_json
from mcpregistry.models.audit import AuditSeal, AuditVerification
from mcpregistry.models.signing import newest_key, signature, verify_signature
from mcpregistry.services.records import audit, seals

FILE = "audit-newest-seal.json"
ADVICE = "Entries were removed from the end of the audit log, or the database was restored from a backup. If you restored the database, run `manage.py audit accept-restore`."
_FILE_ADVICE = "Check the file and its permissions. If you restored this file or the database from a backup, run `manage.py audit accept-restore`."
_LOCK = ".audit-newest-seal.lock"
_PURPOSE = "newest seal"
# kind and subject of an entry
_RESTORED = "audit.restored"
_LOG = "audit"


@dataclass(frozen=True, slots=True)
class KeptSeal:
    """What the file says: the newest seal, and whether the database had a note of a verification
    when it was written."""

    number: int
    hash: str
    at: str
    noted: bool = False


class SealFileUnusable(ConfigInvalid):
    """The file is there and cannot be read, or is not what a process of this site has written."""


def _make_unusable_error(why: str) -> SealFileUnusable:
    return SealFileUnusable(f"The file {FILE} of this machine {why}", remedy=_FILE_ADVICE)


def get_seal_path() -> Path:
    """Where the file of this machine is."""
    return Path(settings.VAR_DIR) / FILE


def read_newest_seal() -> KeptSeal | None:
    """What the file says. Returns None if there is no file. Raises SealFileUnusable."""
    try:
        said = json.loads(get_seal_path().read_bytes())
        is_ours = verify_signature(said["key_id"], _PURPOSE, said["newest_seal"], said["hash"])
        kept = KeptSeal(**json.loads(said["newest_seal"]))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _make_unusable_error(f"cannot be read: {error.strerror}.") from error
    except ConfigInvalid as error:
        raise _make_unusable_error(f"cannot be verified. {error.message}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _make_unusable_error("is damaged.") from error
    if not is_ours:
        raise _make_unusable_error("does not match its signature.")
    return kept


def describe_loss(kept: KeptSeal) -> str:
    """Return in a sentence that the database has lost the seal of the file; empty if it has not."""
    if AuditSeal.objects.filter(number=kept.number, hash=kept.hash).exists():
        return ""
    moment = kept.at[:16].replace("T", " ")
    return f"Checkpoint {kept.number} of {moment} UTC is in the file {FILE} of this machine, but not in the database."


def keep_newest_seal(*, make: bool, noted: bool = False) -> str:
    """Write the newest seal of the database to the file. Returns why the file was left as it is;
    empty if it is right.

    ``make``: also if there is no file yet. Raises OSError if it cannot be written,
    SealFileUnusable.
    """
    with _hold_file_lock():
        kept = read_newest_seal()
        if kept is None and not make:
            return ""
        if kept is not None and (loss := describe_loss(kept)):
            return loss
        newest = _find_newest_seal(noted or (kept is not None and kept.noted))
        if newest is not None and newest != kept:
            _write(newest)
    return ""


def accept_restored_log(*, actor: str, reason: str) -> KeptSeal:
    """Record that the log goes on from an earlier state, and begin the file and the verification
    again from there.

    Returns what the file says now. Raises Conflict if the database has lost nothing, ConfigInvalid
    if the file cannot be written.
    """
    try:
        with _hold_file_lock():
            lost = _find_loss()
            if lost is None:
                raise Conflict(
                    f"The database already contains the checkpoint from the file {FILE} of this machine.",
                    remedy="There is nothing to accept.",
                )
            _record_restored(actor, reason, lost)
            newest = _find_newest_seal(noted=False)
            assert newest is not None
            _write(newest)
    except OSError as error:
        raise ConfigInvalid(
            f"The file {get_seal_path()} cannot be written: {error.strerror}.",
            remedy="Check the permissions of the file, then run the command again.",
        ) from error
    return newest


def describe_acceptable_loss() -> str:
    """Return in a sentence what ``accept_restored_log`` would accept; empty if nothing."""
    try:
        kept = read_newest_seal()
    except SealFileUnusable as error:
        return error.message
    return describe_loss(kept) if kept else ""


def _find_loss() -> dict[str, object] | None:
    try:
        kept = read_newest_seal()
    except SealFileUnusable as error:
        return {"file": error.message}
    if kept is None or not describe_loss(kept):
        return None
    return {"lost_seal": kept.number, "lost_hash": kept.hash, "lost_at": kept.at}


@transaction.atomic
def _record_restored(actor: str, reason: str, lost: dict[str, object]) -> None:
    last = AuditSeal.objects.order_by("-number").first()
    audit.record_entry(
        kind=_RESTORED,
        actor=actor,
        subject=_LOG,
        reason=reason,
        newest_seal=last.number if last else 0,
        **lost,
    )
    # it may tell of what is gone; the next verification reads everything
    AuditVerification.objects.all().delete()
    seals.seal_new_entries(timezone.now())


def _find_newest_seal(noted: bool) -> KeptSeal | None:
    last = AuditSeal.objects.order_by("-number").first()
    return KeptSeal(last.number, last.hash, last.at.isoformat(), noted) if last else None


# The file


@contextmanager
def _hold_file_lock() -> Iterator[None]:
    """One process of this machine at a time. Raises OSError."""
    with os.fdopen(
        _open_private(get_seal_path().with_name(_LOCK), os.O_RDWR | os.O_CREAT), "rb+", buffering=0
    ) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write(kept: KeptSeal) -> None:
    """Replace the file in one step, and have it on disk. Raises OSError."""
    body = encode_canonical_json(asdict(kept))
    key_id = newest_key()
    said = {"newest_seal": body, "key_id": key_id, "hash": signature(key_id, _PURPOSE, body)}
    draft = get_seal_path().with_name(f".{FILE}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with os.fdopen(_open_private(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w") as file:
            json.dump(said, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(get_seal_path())
    except BaseException:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def _open_private(name: Path, flags: int) -> int:
    """Open a file for the folder's owner alone, also if root runs a command for them."""
    descriptor = os.open(name, flags, 0o600)
    if os.geteuid() == 0:
        folder = name.parent.stat()
        os.fchown(descriptor, folder.st_uid, folder.st_gid)
    return descriptor
