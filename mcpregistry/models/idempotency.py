"""Answers kept for callers that repeat a request because they never saw the first answer."""

from __future__ import annotations

from django.db import models


class KeptAnswer(models.Model):
    """One use of an Idempotency-Key by one caller. ``status`` is null while the first request runs."""

    caller = models.CharField(max_length=200, help_text="As the audit log names it.")
    key = models.CharField(max_length=200)
    fingerprint = models.CharField(max_length=64, help_text="Keyed hash of what was asked.")
    call_id = models.CharField(
        max_length=32, blank=True, default="", db_default="", help_text="Of the call that it makes."
    )
    status = models.PositiveSmallIntegerField(null=True)
    body = models.TextField(blank=True)
    created_at = models.DateTimeField(db_index=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["caller", "key"], name="one_use_per_key")]

    def __str__(self) -> str:
        return f"{self.caller} {self.key}"
