"""Signatures of the audit log: HMAC-SHA-256 with a key ring of its own, newest key first; and
hashes of possible secrets.

Each signature names its key, so that old ones can be verified after the ring has a newer key. What
is signed begins with its purpose, so that a signature of one kind of thing is none of another.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import cast

from django.conf import settings
from django.utils.crypto import salted_hmac

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.text.canonical import hash_parts


def _ring() -> Mapping[str, bytes]:
    return cast(Mapping[str, bytes], settings.SLIPSNISSE_AUDIT_KEYS)


def newest_key() -> str:
    """The id of the key that signs what is new."""
    return next(iter(_ring()))


def has_key(key_id: str) -> bool:
    """Whether what this key has signed can be verified."""
    return key_id in _ring()


def explain_missing_key(key_id: str) -> str:
    """The sentence about a key that the site does not have."""
    return f'The signature was made with the key "{key_id}", which this site does not have.'


def signature(key_id: str, purpose: str, text: str) -> str:
    """The signature in hex. Raises ConfigInvalid when the ring does not have that key."""
    key = _ring().get(key_id)
    if key is None:
        raise ConfigInvalid(
            explain_missing_key(key_id),
            remedy="Add that key to the setting SLIPSNISSE_AUDIT_KEYS again. If the name of the key begins with "
            '"ring.", add the encryption key with the rest of the name to SLIPSNISSE_KEYS instead.',
        )
    return hmac.digest(key, f"{purpose}:{key_id}:{text}".encode(), "sha256").hex()


def verify_signature(key_id: str, purpose: str, text: str, claimed: str) -> bool:
    """Whether this is the signature of that text. Raises ConfigInvalid as ``signature`` does."""
    return hmac.compare_digest(signature(key_id, purpose, text).encode(), claimed.encode())


def compute_keyed_digest(purpose: str, *parts: str) -> str:
    """Like ``digest``, with the site's secret key: for texts that may hold a secret that is short
    enough to be guessed.

    Whoever only reads the database, a backup of it, a log or a page cannot try guesses. With
    another secret key, the same parts have another hash.
    """
    return salted_hmac(f"slipsnisse.{purpose}", hash_parts(*parts), algorithm="sha256").hexdigest()
