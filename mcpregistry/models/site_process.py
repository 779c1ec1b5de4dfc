"""The processes of the site that make calls or work for it, on all machines."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class SiteProcess(models.Model):
    """A process, and until when it counts as alive. It renews its row every few seconds and deletes
    it when it stops.

    A row whose lease has expired therefore belongs to a process that died, or that can neither run
    nor write.
    """

    id = models.CharField(
        primary_key=True,
        max_length=64,
        help_text=_(
            "Unique for each start of a process. The calls that the process records have a writer ID that "
            "begins with this value."
        ),
    )
    name = models.CharField(
        max_length=100,
        db_index=True,
        help_text=_("Kind, host and process ID of the process, for example web@box:4711."),
    )
    address = models.CharField(
        max_length=300,
        blank=True,
        default="",
        db_default="",
        help_text=_(
            "Address at which processes on other machines reach this process. Empty if "
            "SLIPSNISSE_PEER_ADDRESS is not set."
        ),
    )
    lease_until = models.DateTimeField(
        help_text=_("When the process counts as dead, in database time.")
    )

    def __str__(self) -> str:
        return self.name
