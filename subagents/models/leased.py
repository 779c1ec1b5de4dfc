"""The columns of rows that workers work on under a lease, see ``subagents.leases``."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class Leased(models.Model):
    """Work as a row. ``fence`` rises with every taking-over; whoever lost it writes nothing."""

    worker = models.CharField(max_length=100, blank=True)
    fence = models.PositiveIntegerField(default=0)
    lease_until = models.DateTimeField(null=True, blank=True)
    wake_at = models.DateTimeField(null=True, blank=True, help_text=_("When the work continues."))
    idle_since = models.DateTimeField(
        null=True,
        blank=True,
        help_text=_("When the worker released the work, or stopped responding."),
    )
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        abstract = True
