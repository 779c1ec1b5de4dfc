"""What a passphrase does for a backup: it seals the site's keys in it, and signs the whole.

Whoever has the file alone can read the rows as they stand in the database, but opens no secret in
them, and changes no row without being noticed.
"""

from __future__ import annotations

import base64
import getpass
import hashlib
import hmac
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from controlplane import env
from mcpregistry.domain.errors import ConfigInvalid

VARIABLE = "SLIPSNISSE_BACKUP_PASSPHRASE"
SHORTEST = 12  # characters
_NONCE = 12
WORK = 2**17  # scrypt's n: half a second and 128 MB, which a guesser pays for each guess
NO_WORK = 2  # the same, for what was made at random and is forgotten at once: nobody guesses that
_MOST_WORK = 2**20  # a file may not make us work or hold more


@dataclass(frozen=True, slots=True)
class Cost:
    """scrypt's parameters."""

    salt: str
    n: int
    r: int = 8
    p: int = 1


@dataclass(slots=True, repr=False)
class PassphraseKeys:
    """Two keys that were derived from one passphrase."""

    sealing: bytes
    signature: hmac.HMAC = field(init=False)
    signing: bytes

    def __post_init__(self) -> None:
        self.signature = hmac.new(self.signing, digestmod=hashlib.sha256)

    def seal(self, value: object, context: bytes) -> str:
        """A JSON value, encrypted; opens only together with the same ``context``."""
        nonce = os.urandom(_NONCE)
        return base64.b64encode(
            nonce + AESGCM(self.sealing).encrypt(nonce, json.dumps(value).encode(), context)
        ).decode()

    def open(self, text: str, context: bytes) -> Any:
        """What was sealed. Raises ConfigInvalid: a wrong passphrase and a changed file look the
        same."""
        try:
            raw = base64.b64decode(text, validate=True)
            return json.loads(AESGCM(self.sealing).decrypt(raw[:_NONCE], raw[_NONCE:], context))
        except (InvalidTag, ValueError) as error:
            raise ConfigInvalid(
                "The passphrase does not open this file.",
                remedy="Enter the passphrase with which the file was created. If it is correct, the file was changed.",
            ) from error


def fresh_cost(work: int) -> Cost:
    """For a new backup."""
    return Cost(base64.b64encode(os.urandom(16)).decode(), work)


def derive_keys(passphrase: str, cost: Mapping[str, Any] | Cost) -> PassphraseKeys:
    """The keys that the passphrase stands for. Raises ConfigInvalid where a file asks for too much
    work."""
    try:
        given = cost if isinstance(cost, Cost) else Cost(**cost)
        if not (given.n <= _MOST_WORK and given.r * given.p <= 8):
            raise ValueError
        key = Scrypt(base64.b64decode(given.salt), 64, given.n, given.r, given.p).derive(
            passphrase.encode()
        )
    except (TypeError, ValueError) as error:
        raise ConfigInvalid(
            "The file is damaged: the parameters of its key are missing or not valid.",
            remedy="Use another copy of the file.",
        ) from error
    return PassphraseKeys(sealing=key[:32], signing=key[32:])


def ask(of: str, *, new: bool) -> str:
    """The passphrase, from the variable or the file that it names, else typed; ``new``: twice, and
    not too short.

    Never an argument: those are seen by everybody on the machine. Raises ConfigInvalid where there
    is none.
    """
    given = env.text(VARIABLE) or _prompt_passphrase(of, new=new)
    if new and len(given) < SHORTEST:
        raise ConfigInvalid(
            f"The passphrase must have at least {SHORTEST} characters.",
            remedy="Choose a longer one. It protects the keys of this site in every copy of the file.",
        )
    return given


def _prompt_passphrase(of: str, *, new: bool) -> str:
    if not sys.stdin.isatty():
        raise ConfigInvalid(
            "A passphrase is required.",
            remedy=f"Set {VARIABLE}, or set {VARIABLE}_FILE to the path of a file that contains the passphrase.",
        )
    given = getpass.getpass(f"Passphrase of the {of}: ")
    if new and getpass.getpass("Repeat the passphrase: ") != given:
        raise ConfigInvalid("The passphrases do not match.", remedy="Run the command again.")
    return given
