"""Which process has the connection of an agent or a host session to a server."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from mcpregistry.models.server import Server


class SessionOwner(models.Model):
    """The process that makes all calls of one agent or session to one server, because the server
    keeps state for it."""

    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="session_owners")
    machine = models.CharField(
        max_length=100, help_text=_("Identifies the group of processes that share the connection.")
    )
    session = models.CharField(max_length=300, help_text=_("Agent and name of its session."))
    process = models.CharField(
        max_length=100,
        db_index=True,
        help_text=_("Kind, host and process ID of the process, for example web@box:4711."),
    )
    address = models.CharField(
        max_length=300,
        help_text=_("Address at which the process accepts calls from other processes."),
    )
    lease_until = models.DateTimeField()
    since = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["server", "machine", "session"], name="one_owner_per_session"
            )
        ]

    def __str__(self) -> str:
        return f"{self.session} at {self.server_id}: {self.process}"
