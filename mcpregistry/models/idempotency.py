"""Answers kept for callers that repeat a request because they never saw the first answer."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class KeptAnswer(models.Model):
    """One use of an Idempotency-Key by one caller. ``status`` is null while the first request
    runs."""

    caller = models.CharField(max_length=200, help_text=_("Caller, as named in the audit log."))
    key = models.CharField(max_length=200)
    fingerprint = models.CharField(max_length=64, help_text=_("Keyed hash of the request."))
    call_id = models.CharField(
        max_length=32,
        blank=True,
        default="",
        db_default="",
        help_text=_("ID of the call that the request makes."),
    )
    status = models.PositiveSmallIntegerField(null=True)
    body = models.TextField(blank=True)
    created_at = models.DateTimeField(db_index=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["caller", "key"], name="one_use_per_key")]

    def __str__(self) -> str:
        return f"{self.caller} {self.key}"
