"""The site's keys: made once under var/ (mode 0600), or given by the environment."""

from __future__ import annotations

import base64
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from controlplane import env


@dataclass(frozen=True, slots=True, repr=False)
class Ring:
    """``sealing`` maps key ids to 32-byte keys, the one that seals first."""

    secret_key: str
    sealing: dict[str, bytes]


def load(var: Path) -> Ring:
    """The keys for this site; creates ``var/keys.json`` when neither it nor the variables exist."""
    secret_key, ring = env.text("SLIPSNISSE_SECRET_KEY"), env.text("SLIPSNISSE_KEYS")
    if not (secret_key and ring):
        stored = _stored(var / "keys.json")
        secret_key, ring = secret_key or stored["secret_key"], ring or stored["sealing"]
    return Ring(secret_key, _parse(ring))


def _stored(path: Path) -> dict[str, str]:
    if not path.exists():
        _create(path)
    return json.loads(path.read_text())


def _create(path: Path) -> None:
    """Two processes may start at once: whoever links its file first wins, both read the same keys."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = {"secret_key": secrets.token_urlsafe(50), "sealing": "k1:" + base64.b64encode(os.urandom(32)).decode()}
    draft = path.with_name(f".keys-{os.getpid()}-{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as handle:
        json.dump(fresh, handle)
        handle.flush()
        os.fsync(handle.fileno())
    try:
        os.link(draft, path)
    except FileExistsError:
        return
    finally:
        draft.unlink()


def _parse(ring: str) -> dict[str, bytes]:
    keys = {}
    for item in ring.split(","):
        key_id, _, encoded = item.strip().partition(":")
        key = base64.b64decode(encoded, validate=True)
        if len(key) != 32 or not key_id:
            raise ValueError("SLIPSNISSE_KEYS: each item must be ID:BASE64 of 32 bytes.")
        keys[key_id] = key
    return keys
