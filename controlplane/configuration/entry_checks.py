"""What an entry of the document has to be before anything is made of it: words that its kind knows,
secrets in their place."""

from __future__ import annotations

from typing import Any

from controlplane.configuration.document_values import CORRECT, Entry, list_references
from controlplane.configuration.record_kinds import RecordKind
from mcpregistry.domain.errors import ConfigInvalid

DECIDED = ("confirmed", "approved")  # counts only when whoever imports says so


def check_entry(kind: RecordKind, entry: Any) -> Entry:
    """An entry as it may stand in a file of its kind. Raises ConfigInvalid."""
    if not isinstance(entry, dict):
        raise ConfigInvalid("the entry is not an object.", remedy=CORRECT)
    if unknown := sorted(entry.keys() - kind.list_keys()):
        raise ConfigInvalid(
            f'"{unknown[0]!s:.100}" is not a valid key.',
            remedy=f"Valid keys: {', '.join(sorted(kind.list_keys()))}.",
        )
    for word in ("enabled", *DECIDED):
        if word in entry and not isinstance(entry[word], bool):
            raise ConfigInvalid(f"{word} must be true or false.", remedy=CORRECT)
    return entry


def own(kind: RecordKind, name: str, entry: Entry) -> Entry:
    """A secret stands only where it belongs: else an edited file would send it elsewhere."""
    for word in entry.keys() & kind.hiding():
        for place, secret in list_references(entry[word], f"{kind.section}/{name}/{word}"):
            if place != secret:
                raise ConfigInvalid(
                    f'the secret "{secret}" is not allowed here.',
                    remedy=f'The only secret that is allowed here is "{place}".',
                )
    return entry
