"""Wrong passwords, counted for all web processes: what slows guessing."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class LoginAttempts(models.Model):
    """Attempts at one account from one place, or all wrong ones from one place;
    ``services.access.logins`` says when to stop.

    The key is a hash: what strangers type into the field for the name may be a password.
    """

    key = models.CharField(primary_key=True, max_length=64)
    count = models.PositiveIntegerField(default=0)
    began_at = models.DateTimeField(
        help_text=_("Start of the period in which attempts are counted, in database time.")
    )
    locked_until = models.DateTimeField(null=True, blank=True)
    next_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text=_("When the next attempt is accepted, if attempts at the account are delayed."),
    )
    known_until = models.DateTimeField(
        null=True,
        blank=True,
        help_text=_(
            "Until this time, the network is treated as one from which the user usually logs in."
        ),
    )

    class Meta:
        indexes = [models.Index(fields=["began_at"], name="attempts_by_time")]

    def __str__(self) -> str:
        return f"{self.key[:8]} {self.count}"
