"""The audit log: append-only, hash-chained per writer; the database itself refuses update and delete."""

from __future__ import annotations

import hashlib
from typing import Any

from django.db import models

from mcpregistry.domain.text.display import printable

GENESIS = "0" * 64


def entry_hash(prev: str, body: str) -> str:
    """SHA-256 over the previous hash and this entry's canonical body, in hex."""
    return hashlib.sha256(prev.encode() + body.encode()).hexdigest()


class AuditEntry(models.Model):
    """One fact. ``body`` is canonical JSON and holds every other column, so the hash covers all."""

    writer = models.CharField(max_length=64)
    seq = models.BigIntegerField()
    at = models.DateTimeField()
    kind = models.CharField(max_length=40)
    actor = models.CharField(max_length=150)
    subject = models.CharField(max_length=200)
    body = models.TextField()
    prev = models.CharField(max_length=64)
    hash = models.CharField(max_length=64)

    class Meta:
        verbose_name_plural = "audit log"
        ordering = ["-id"]
        constraints = [models.UniqueConstraint(fields=["writer", "seq"], name="one_entry_per_seq")]
        indexes = [models.Index(fields=["subject"], name="audit_by_subject")]

    def __str__(self) -> str:
        return printable(f"{self.kind} {self.subject}")

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Insert only; raises TypeError for a change."""
        if not self._state.adding:
            raise TypeError("The audit log is append-only.")
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        """Always raises TypeError."""
        raise TypeError("The audit log is append-only.")
