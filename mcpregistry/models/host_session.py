"""Sessions of hosts of the older era (2025-11-25 and before), so that any web process can serve any of their requests."""

from __future__ import annotations

from django.db import models


class HostSession(models.Model):
    """What a host said in its handshake. The id is in the host's hands; it is good for its agent and endpoint alone."""

    id = models.CharField(primary_key=True, max_length=64)
    agent_slug = models.CharField(max_length=63)
    endpoint_slug = models.CharField(max_length=63)
    protocol_version = models.CharField(max_length=20, help_text="As negotiated.")
    client = models.TextField(help_text="JSON: the parameters of its initialize request.")
    created_at = models.DateTimeField(help_text="By the database's clock, as the other times.")
    seen_at = models.DateTimeField(help_text="To the minute or so.")
    ended_at = models.DateTimeField(
        null=True, blank=True, help_text="By the host, for idling, or for one session too many."
    )

    class Meta:
        indexes = [
            models.Index(fields=["agent_slug", "seen_at"], name="host_sessions_of_agent"),
            models.Index(fields=["seen_at"], name="host_sessions_by_use"),
            models.Index(fields=["ended_at"], name="host_sessions_by_end"),
        ]

    def __str__(self) -> str:
        return f"{self.agent_slug}@{self.endpoint_slug} {self.id[:8]}"


class HostMessage(models.Model):
    """What a host sent that concerns a request which another web process serves: an answer to its question, say."""

    session = models.ForeignKey(HostSession, on_delete=models.CASCADE, related_name="messages")
    body = models.TextField(help_text="The JSON-RPC message.")
    created_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return f"{self.session_id} {self.pk}"


class HostStream(models.Model):
    """The answer to one request that takes a while, for a host that may lose its connection and read on elsewhere."""

    id = models.CharField(primary_key=True, max_length=32, help_text="What its event ids begin with.")
    session = models.ForeignKey(HostSession, on_delete=models.CASCADE, related_name="streams")
    request = models.TextField(help_text="JSON: id and method of the request, and the URI that it reads.")
    call_id = models.CharField(max_length=32, blank=True, help_text="Of the call that it makes, if it makes one.")
    asked_at = models.DateTimeField(db_index=True)
    answered_at = models.DateTimeField(null=True, blank=True)
    answer = models.TextField(blank=True, help_text="The JSON-RPC message; empty where it was too large.")

    def __str__(self) -> str:
        return f"{self.session_id} {self.id}"
