"""The audit log: append-only, a keyed chain per writer; the database itself refuses update and
delete."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from mcpregistry.domain.text.display import shorten_ids, show_invisible_characters
from mcpregistry.models.signing import signature

GENESIS = "0" * 64
USUAL_KINDS = ("call.dispatched", "call.succeeded")
_TEXT = ["varchar_pattern_ops", "int8_ops"]


def entry_hash(prev: str, body: str, key_id: str) -> str:
    """Return the signature over the previous hash and this entry's canonical body, in hex.

    Raises:
        ConfigInvalid: The site does not have the key.
    """
    return signature(key_id, "entry", prev + body)


class AuditEntry(models.Model):
    """One fact. ``body`` is canonical JSON and holds every other column but the key's id, so the
    hash covers all."""

    writer = models.CharField(max_length=64)
    seq = models.BigIntegerField()
    at = models.DateTimeField(_("time"))
    kind = models.CharField(max_length=40)
    actor = models.CharField(max_length=150)
    subject = models.CharField(max_length=200)
    body = models.TextField()
    prev = models.CharField(max_length=64)
    hash = models.CharField(max_length=64)
    key_id = models.CharField(
        _("key"), max_length=100, help_text=_("ID of the key that signed the entry.")
    )

    class Meta:
        verbose_name_plural = _("audit entries")
        ordering = ["-id"]
        constraints = [models.UniqueConstraint(fields=["writer", "seq"], name="one_entry_per_seq")]
        indexes = [
            # The opclass, which is PostgreSQL's alone, lets beginnings be looked for whatever the
            # database's language.
            models.Index(fields=["subject", "-id"], name="audit_of_subject", opclasses=_TEXT),
            models.Index(fields=["actor", "-id"], name="audit_of_actor", opclasses=_TEXT),
            # the two that nearly every call has are found soon, and pay nothing for it
            models.Index(
                fields=["kind", "-id"],
                name="audit_of_kind",
                opclasses=_TEXT,
                condition=~Q(kind__in=USUAL_KINDS),
            ),
        ]

    def __str__(self) -> str:
        return show_invisible_characters(f"{self.kind} {shorten_ids(self.subject)}")

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Insert only; raises TypeError for a change."""
        if not self._state.adding:
            raise TypeError("The audit log is append-only.")
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        """Always raises TypeError."""
        raise TypeError("The audit log is append-only.")


class AuditSeal(models.Model):
    """How far every chain had come at one moment, signed, and chained to the seal before.

    ``body`` is canonical JSON and holds the other columns and ``heads``: of each writer that has
    written since the seal before, how many entries it has and the hash of the last. An older seal's
    word on a writer stands until a newer one's.
    """

    number = models.BigIntegerField(primary_key=True)
    at = models.DateTimeField()
    upto = models.BigIntegerField(
        help_text=_("Number of the newest entry that the checkpoint covers.")
    )
    body = models.TextField()
    prev = models.CharField(max_length=64)
    hash = models.CharField(max_length=64)
    key_id = models.CharField(_("key"), max_length=100)

    class Meta:
        verbose_name = _("checkpoint")
        ordering = ["-number"]

    def __str__(self) -> str:
        return f"checkpoint {self.number}"


class AuditArchive(models.Model):
    """That a run of one chain's entries is in a file, and therefore no longer here: what lets the
    database remove them.

    ``hash`` is the signature over the other columns, ``prev`` that of the record before.
    """

    number = models.BigIntegerField(primary_key=True)
    at = models.DateTimeField()
    writer = models.CharField(max_length=64)
    from_seq = models.BigIntegerField()
    to_seq = models.BigIntegerField()
    head = models.CharField(max_length=64, help_text=_("Hash of the last archived entry."))
    head_key = models.CharField(
        max_length=100, help_text=_("ID of the key that signed the last archived entry.")
    )
    file = models.CharField(max_length=200)
    digest = models.CharField(max_length=64, help_text=_("SHA-256 of the archive file."))
    prev = models.CharField(max_length=64)
    hash = models.CharField(max_length=64)
    key_id = models.CharField(_("key"), max_length=100)

    class Meta:
        ordering = ["-number"]
        verbose_name = _("archived entries")
        verbose_name_plural = _("archived entries")
        constraints = [
            models.UniqueConstraint(fields=["writer", "to_seq"], name="one_archive_per_entry")
        ]

    def __str__(self) -> str:
        return show_invisible_characters(
            f"{self.writer} #{self.from_seq} to #{self.to_seq} in {self.file}"
        )


class AuditVerification(models.Model):
    """What the last verification of the audit log found; one row. ``state`` is from where on the
    next one goes."""

    at = models.DateTimeField()
    full = models.BooleanField(
        help_text=_("Whether all entries were verified, not only the new ones.")
    )
    intact = models.BooleanField()
    entries = models.BigIntegerField(help_text=_("Number of verified entries."))
    chains = models.BigIntegerField()
    problems = models.JSONField(default=list)
    notes = models.JSONField(default=list)
    seconds = models.FloatField()
    state = models.TextField()
    hash = models.CharField(max_length=64)
    key_id = models.CharField(_("key"), max_length=100)

    def __str__(self) -> str:
        return f"verified at {self.at:%Y-%m-%d %H:%M}"
