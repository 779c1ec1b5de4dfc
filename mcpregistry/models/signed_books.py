"""Books whose balance follows from signed entries: the energy of a pool, and what was spent of a
budget.

Each entry is signed together with the hash of the one before it, and the book names the last one.
Without a key, an attacker who can write to the database can neither add an entry nor change one.
Seals show if the last ones are removed.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.text.canonical import encode_canonical_json
from mcpregistry.models.audit import GENESIS
from mcpregistry.models.signing import newest_key, signature, verify_signature
from mcpregistry.models.tracked import TrackedModel

HEAD_COLUMNS = ("book_seq", "book_hash", "book_at")
_PURPOSE = "book"


class SignedBook(TrackedModel):
    """What has a book. Its row is locked while an entry is added."""

    BOOK: ClassVar[str]  # the kind of book, which its name begins with

    book_seq = models.BigIntegerField(default=0, db_default=0, editable=False)
    book_hash = models.CharField(max_length=64, default=GENESIS, db_default=GENESIS, editable=False)
    book_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        abstract = True

    @property
    def book_name(self) -> str:
        """The name of the book in seals and in the audit log, for example ``energy:3``."""
        return f"{self.BOOK}:{self.pk}"

    @property
    def head(self) -> dict[str, Any]:
        """The columns that name the last entry, for an UPDATE."""
        return {name: getattr(self, name) for name in HEAD_COLUMNS}

    def take_head_of(self, other: SignedBook) -> None:
        """Go on from where ``other`` is, the same row as it was locked."""
        for name, value in other.head.items():
            setattr(self, name, value)

    def sign(self, entry: SignedBookEntry) -> None:
        """Make the entry the next one of this book. The caller saves both."""
        entry.seq = self.book_seq + 1
        entry.prev = self.book_hash
        entry.key_id = newest_key()
        entry.hash = signature(entry.key_id, _PURPOSE, entry.text(self.book_name))
        self.book_seq = entry.seq
        self.book_hash = entry.hash
        self.book_at = entry.at


class SignedBookEntry(models.Model):
    """One entry of a book."""

    SIGNED: ClassVar[tuple[str, ...]]  # the other columns that the hash covers
    at: Any

    seq = models.BigIntegerField(default=0, db_default=0, editable=False)
    prev = models.CharField(max_length=64, default="", db_default="", editable=False)
    hash = models.CharField(max_length=64, default="", db_default="", editable=False)
    key_id = models.CharField(_("key"), max_length=100, default="", db_default="", editable=False)

    class Meta:
        abstract = True

    def text(self, book: str) -> str:
        """What is signed, the same before and after it was stored."""
        said = {
            name: _normalize_value(self._meta.get_field(name), getattr(self, name))
            for name in self.SIGNED
        }
        return encode_canonical_json({"book": book, "seq": self.seq, "prev": self.prev} | said)

    def problem(self, book: str) -> str:
        """Why this entry, looked at alone, cannot be what was written; empty if it can."""
        try:
            fits = bool(self.key_id) and verify_signature(
                self.key_id, _PURPOSE, self.text(book), self.hash
            )
        except ConfigInvalid as error:
            return f"it cannot be verified. {error.message}"
        return "" if fits else "its signature does not match"


def _normalize_value(field: Any, value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(field, models.FloatField):
        # databases do not keep the sign of zero
        return None if value is None else float(value) + 0.0
    # a choice is an enumeration before it is stored
    return str(value) if isinstance(value, str) else value
