"""Wrong passwords, counted for all web processes: what slows guessing."""

from __future__ import annotations

from django.db import models


class LoginAttempts(models.Model):
    """Attempts at one account from one place, or all wrong ones from one place; ``services.access.logins`` says when to stop.

    The key is a hash: what strangers type into the field for the name may be a password.
    """

    key = models.CharField(primary_key=True, max_length=64)
    count = models.PositiveIntegerField(default=0)
    began_at = models.DateTimeField(help_text="Of the period in which they are counted, by the database's clock.")
    locked_until = models.DateTimeField(null=True, blank=True)
    next_at = models.DateTimeField(
        null=True, blank=True, help_text="When the next attempt is looked at, if attempts at the account are paced."
    )
    known_until = models.DateTimeField(
        null=True, blank=True, help_text="Until when the network counts as one from which the person logs in."
    )

    class Meta:
        indexes = [models.Index(fields=["began_at"], name="attempts_by_time")]

    def __str__(self) -> str:
        return f"{self.key[:8]} {self.count}"
