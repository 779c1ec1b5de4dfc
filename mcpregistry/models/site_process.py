"""The processes of the site that make calls or work for it, on all machines."""

from __future__ import annotations

from django.db import models


class SiteProcess(models.Model):
    """A process, and until when it counts as alive. It renews its row every few seconds and deletes it when it stops.

    A row whose lease has expired therefore belongs to a process that died, or that can neither run nor write.
    """

    id = models.CharField(
        primary_key=True, max_length=64, help_text="Unique for each start; the writer of its calls begins with it."
    )
    name = models.CharField(max_length=100, db_index=True, help_text="Kind, host and process id, e.g. web@box:4711.")
    address = models.CharField(
        max_length=300, blank=True, default="", db_default="",
        help_text="Address at which processes on other machines reach it. Empty without SLIPSNISSE_PEER_ADDRESS.",
    )  # fmt: skip
    lease_until = models.DateTimeField(help_text="By the database's clock.")

    def __str__(self) -> str:
        return self.name
