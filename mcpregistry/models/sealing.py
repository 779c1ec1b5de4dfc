"""Secrets at rest: AES-256-GCM with the row as associated data.

A sealed text is ``v1.<key id>.<base64 of nonce and ciphertext>``. The associated data names model,
row and column, so that a ciphertext copied into another row or column does not open there.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from typing import Any, cast

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA1
from cryptography.hazmat.primitives.twofactor.totp import TOTP
from django.conf import settings
from django.db import models

from mcpregistry.domain.errors import ConfigInvalid

_NONCE = 12


def seal(value: object, *, place: str) -> str:
    """Encrypt any JSON value for ``place`` (``model:row:column``) with the newest key."""
    key_id, key = next(iter(cast(Mapping[str, bytes], settings.SLIPSNISSE_KEYS).items()))
    nonce = os.urandom(_NONCE)
    plain = json.dumps(value, separators=(",", ":")).encode()
    sealed = AESGCM(key).encrypt(nonce, plain, f"{key_id}:{place}".encode())
    return f"v1.{key_id}.{base64.b64encode(nonce + sealed).decode()}"


def unseal(text: str, *, place: str) -> Any:
    """The JSON value sealed for ``place``. Raises ConfigInvalid when key or place do not fit."""
    version, _, rest = text.partition(".")
    key_id, _, encoded = rest.rpartition(".")
    key = settings.SLIPSNISSE_KEYS.get(key_id)
    if version != "v1" or key is None:
        raise ConfigInvalid(
            f'The secret at {place} was encrypted with the key "{key_id}", which this site does not have.',
            remedy="Add that key to the setting SLIPSNISSE_KEYS again, or enter the secret again.",
        )
    try:
        raw = base64.b64decode(encoded)
        return json.loads(
            AESGCM(key).decrypt(raw[:_NONCE], raw[_NONCE:], f"{key_id}:{place}".encode())
        )
    except (InvalidTag, ValueError) as error:
        raise ConfigInvalid(
            f"The secret at {place} cannot be decrypted: it was changed or belongs to another record.",
            remedy="Enter the secret again.",
        ) from error


def key_of(text: str) -> str:
    """The id of the key that has sealed a text."""
    return text.partition(".")[2].rpartition(".")[0]


def one_time_codes(secret: str) -> TOTP:
    """The codes of six digits and 30 seconds that follow from a secret (base32), as every
    authenticator makes them."""
    return TOTP(base64.b32decode(secret), 6, SHA1(), 30)  # noqa: S303 - the standard says it, as a keyed hash


class Sealed(property):
    """A property that reads and writes a sealed text column as a JSON value: ``env =
    Sealed("sealed_env", dict)``.

    ``default`` makes the value of an empty column. The model needs a ``uid`` that never changes,
    because it is part of the associated data. A ``property`` so that Django takes it as a
    constructor argument.
    """

    def __init__(self, column: str, default: type) -> None:
        def place(row: models.Model) -> str:
            return f"{row._meta.label_lower}:{row.uid}:{column}"  # type: ignore[attr-defined]

        def read(row: models.Model) -> Any:
            text = getattr(row, column)
            return unseal(text, place=place(row)) if text else default()

        def write(row: models.Model, value: object) -> None:
            setattr(row, column, seal(value, place=place(row)) if value else "")

        super().__init__(read, write)
        self.column = column


def find_sealed_columns(model: type[models.Model]) -> dict[str, str]:
    """The model's sealed columns, each with the name of the secret that it holds: ``{"sealed_env":
    "env"}``."""
    return {held.column: name for name, held in vars(model).items() if isinstance(held, Sealed)}
