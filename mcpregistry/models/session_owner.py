"""Which process has the connection of an agent or a host session to a server."""

from __future__ import annotations

from django.db import models

from mcpregistry.models.server import Server


class SessionOwner(models.Model):
    """The process that makes all calls of one agent or session to one server, because the server keeps state for it."""

    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="session_owners")
    machine = models.CharField(max_length=100, help_text="Whose processes share the connection; see calls.placing.")
    session = models.CharField(max_length=300, help_text="Agent, and name of its session.")
    process = models.CharField(max_length=100, db_index=True, help_text="Kind, host and process id, e.g. web@box:4711.")
    address = models.CharField(max_length=300, help_text="Where the process takes calls of the others.")
    lease_until = models.DateTimeField()
    since = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["server", "machine", "session"], name="one_owner_per_session")]

    def __str__(self) -> str:
        return f"{self.session} at {self.server_id}: {self.process}"
