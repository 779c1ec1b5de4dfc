"""The document of this site, and the file of secrets beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from controlplane.backups.passphrase import WORK, derive_keys, fresh_cost
from controlplane.configuration.document_values import Secrets
from controlplane.configuration.record_kinds import KINDS, RecordKind
from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.models import Configuration

WHOLE = "site"
VERSION = 1
_HIDDEN = "secrets"
_CONTEXT = b"slipsnisse secrets"


def document(secrets: Secrets) -> dict[str, Any]:
    """All that configures this site, in an order that only a change of it changes. ``secrets``
    learns what is hidden."""
    sections = {kind.section: _section(kind, secrets) for kind in KINDS}
    kept = {name: said for name, said in sections.items() if said or name == "configuration"}
    return {"slipsnisse": WHOLE, "version": VERSION} | kept


def _section(kind: RecordKind, secrets: Secrets) -> Any:
    entries = {name: kind.entry(name, row, secrets) for name, row in kind.all()}
    if kind.model is Configuration:
        return next(iter(entries.values()), {})
    return entries if kind.named else sorted(entries.values(), key=_order)


def _order(entry: Any) -> str:
    return json.dumps(entry, sort_keys=True)


def encrypt_secrets(secrets: Secrets, passphrase: str) -> dict[str, Any]:
    """What the document refers to, for a file of its own that opens with the passphrase alone."""
    cost = fresh_cost(WORK)
    sealed = derive_keys(passphrase, cost).seal(secrets.found, _CONTEXT)
    return {"slipsnisse": _HIDDEN, "version": VERSION, "passphrase": asdict(cost), "sealed": sealed}


def decrypt_secrets(data: Mapping[str, Any], passphrase: str) -> dict[str, Any]:
    """The secrets of such a file by their names. Raises ConfigInvalid."""
    if data.get("slipsnisse") != _HIDDEN or not isinstance(data.get("passphrase"), dict):
        raise ConfigInvalid(
            "The file is not a file of secrets.",
            remedy="Name the file that `exportconfig --all --secrets` wrote.",
        )
    found = derive_keys(passphrase, data["passphrase"]).open(str(data.get("sealed", "")), _CONTEXT)
    return dict(found)
