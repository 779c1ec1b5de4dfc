"""The site's keys: made once under var/ (mode 0600), or given by the environment.

Whoever loses ``sealing`` loses every stored credential; back up ``var/keys.json`` apart from the
database. The audit log is signed with keys of its own: those of SLIPSNISSE_AUDIT_KEYS, else one
derived from each of the ring.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

from controlplane import env

DERIVED = "ring."  # before the id of the key that an audit key was derived from
_PURPOSE = b"slipsnisse audit log"
NO_SITE = (
    "There is no site in {}. Nothing was created. Set SLIPSNISSE_VAR to the folder of the site, or start a new site there once "
    "with `manage.py up`. To correct the entries in the files of hosts, run `manage.py connect --repair`."
)
_LONGEST_ID = 80  # characters: the columns that name a key have room for it


@dataclass(frozen=True, slots=True, repr=False)
class Ring:
    """``sealing`` maps key ids to 32-byte keys, the one that seals first."""

    secret_key: str
    sealing: dict[str, bytes]

    @property
    def audit(self) -> dict[str, bytes]:
        """The audit log's own keys. The derived ones stay, so that what they have signed can be
        verified for good."""
        given = env.text("SLIPSNISSE_AUDIT_KEYS")
        own = _parse(given, "SLIPSNISSE_AUDIT_KEYS") if given else {}
        derived = {
            f"{DERIVED}{name}": hmac.digest(key, _PURPOSE, "sha256")
            for name, key in self.sealing.items()
        }
        if clash := own.keys() & derived.keys():
            raise ImproperlyConfigured(
                f"SLIPSNISSE_AUDIT_KEYS: a derived key already has the id {min(clash)}. Choose another id for your key."
            )
        return own | derived


def path(var: Path) -> Path:
    """Where the key file of the site in ``var`` is."""
    return var / "keys.json"


def load(var: Path, *, make: bool = True) -> Ring:
    """The keys for this site; creates ``var/keys.json`` when neither it nor the variables exist.

    ``make`` False: a place without keys is no site, and nothing is made there. Raises
    ImproperlyConfigured, which never quotes a key.
    """
    secret_key = env.text("SLIPSNISSE_SECRET_KEY")
    ring = env.text("SLIPSNISSE_KEYS")
    if secret_key and ring:
        return Ring(secret_key, _parse(ring, "SLIPSNISSE_KEYS"))
    file = path(var)
    if not make and not file.exists():
        raise ImproperlyConfigured(NO_SITE.format(var))
    stored = _load_stored(file)
    sealing = _parse(ring, "SLIPSNISSE_KEYS") if ring else _parse(stored["sealing"], str(file))
    return Ring(secret_key or stored["secret_key"], sealing)


def dump_ring(ring: Ring) -> dict[str, str]:
    """The ring as the key file has it; ``read`` takes it back."""
    sealing = ",".join(
        f"{key_id}:{base64.b64encode(key).decode()}" for key_id, key in ring.sealing.items()
    )
    return {"secret_key": ring.secret_key, "sealing": sealing}


def read(stored: Mapping[str, str], origin: str) -> Ring:
    """The ring that ``dump_ring`` has made. Raises ImproperlyConfigured, naming ``origin``, when it
    is none."""
    return Ring(stored["secret_key"], _parse(stored["sealing"], origin))


def sealing_is_given() -> bool:
    """Whether a variable says with what is sealed, whatever the file says."""
    return bool(env.text("SLIPSNISSE_KEYS"))


def secret_key_is_given() -> bool:
    """Whether a variable sets the secret key, so that the one in the file is not used."""
    return bool(env.text("SLIPSNISSE_SECRET_KEY"))


def replace(var: Path, ring: Ring) -> Path | None:
    """Make ``ring`` the one in the key file. Returns where the former file was moved to, None if it
    was the same.

    Used where a site comes here with its own keys; nothing here may be sealed with the former ones.
    """
    file = path(var)
    if file.exists() and _load_stored(file) == dump_ring(ring):
        return None
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    kept = file.with_name(f"keys.json.replaced-{secrets.token_hex(4)}")
    draft = _write_draft(file, dump_ring(ring))
    if file.exists():
        os.link(file, kept)
    draft.replace(file)
    return kept


def _load_stored(file: Path) -> dict[str, str]:
    if not file.exists():
        _create(file)
    try:
        stored = json.loads(file.read_text())
        return {"secret_key": str(stored["secret_key"]), "sealing": str(stored["sealing"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ImproperlyConfigured(
            f"{file} is not a valid key file ({type(error).__name__}). Restore the file from a backup. "
            "A new key cannot decrypt the stored secrets."
        ) from None


def _create(file: Path) -> None:
    """Two processes may start at once: whoever links its file first wins, both read the same
    keys."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = {
        "secret_key": secrets.token_urlsafe(50),
        "sealing": "k1:" + base64.b64encode(os.urandom(32)).decode(),
    }
    draft = _write_draft(file, fresh)
    try:
        os.link(draft, file)
    except FileExistsError:
        return
    finally:
        draft.unlink()


def _write_draft(file: Path, content: Mapping[str, str]) -> Path:
    """A file beside it with this content, on disk."""
    draft = file.with_name(f".keys-{os.getpid()}-{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as handle:
        json.dump(content, handle)
        handle.flush()
        os.fsync(handle.fileno())
    return draft


def _parse(ring: str, origin: str) -> dict[str, bytes]:
    keys: dict[str, bytes] = {}
    for item in ring.split(","):
        key_id, _, encoded = item.strip().partition(":")
        try:
            key = base64.b64decode(encoded, validate=True)
        except binascii.Error:
            key = b""
        if len(key) != 32 or not 0 < len(key_id) <= _LONGEST_ID or key_id in keys:
            raise ImproperlyConfigured(
                f"{origin} is not valid: each key must be ID:BASE64, with 32 bytes in base64 and a unique id of at most "
                f"{_LONGEST_ID} characters."
            )
        keys[key_id] = key
    return keys
