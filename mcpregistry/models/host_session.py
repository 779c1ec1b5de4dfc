"""Sessions of hosts of the older era (2025-11-25 and before), so that any web process can serve any
of their requests."""

from __future__ import annotations

import json
from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _

from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models.server import Server
from mcpregistry.models.visibility import VisibleQuerySet


class HostSessions(VisibleQuerySet["HostSession"]):
    """Sessions as pages look for them: an agent sees its own."""

    own_by = "agent_slug"


class HostSession(models.Model):
    """What a host said in its handshake. The id is in the host's hands; it is good for its agent
    and endpoint alone."""

    id = models.CharField(primary_key=True, max_length=64)
    agent_slug = models.CharField(max_length=63)
    endpoint_slug = models.CharField(max_length=63)
    protocol_version = models.CharField(
        max_length=20, help_text=_("Protocol version that the host and the site agreed on.")
    )
    client = models.TextField(help_text=_("Parameters of the host's initialize request, as JSON."))
    created_at = models.DateTimeField(help_text=_("When the session began, in database time."))
    seen_at = models.DateTimeField(
        help_text=_("When the session was last used, accurate to about a minute.")
    )
    ended_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text=_(
            "When the session ended. A session ends if the host ends it, if it is inactive, or if the "
            "agent has too many sessions."
        ),
    )

    log_level = models.CharField(
        max_length=20,
        blank=True,
        default="",
        db_default="",
        help_text=_(
            "Minimum log level that the host has requested. If empty, the default applies."
        ),
    )

    host_name = models.CharField(
        max_length=100,
        blank=True,
        default="",
        db_default="",
        help_text=_("Name that the host reports."),
    )
    host_version = models.CharField(max_length=100, blank=True, default="", db_default="")

    objects = HostSessions.as_manager()

    class Meta:
        verbose_name = _("host session")
        indexes = [
            models.Index(fields=["agent_slug", "seen_at"], name="host_sessions_of_agent"),
            models.Index(fields=["seen_at"], name="host_sessions_by_use"),
            models.Index(fields=["ended_at"], name="host_sessions_by_end"),
        ]

    def __str__(self) -> str:
        return f"{show_invisible_characters(self.host_name) or 'host'} of {self.agent_slug} on {self.endpoint_slug}"

    @property
    def door(self) -> str:
        """The way by which it came. A stream of HTTP+SSE has one version of the protocol, a
        WebSocket any."""
        if self.client:
            return "streamable HTTP"
        return "HTTP+SSE" if self.protocol_version else "WebSocket"

    @property
    def declared(self) -> dict[str, Any]:
        """The capabilities that its host has declared."""
        found = json.loads(self.client).get("capabilities") if self.client else None
        return found if isinstance(found, dict) else {}


class HostConnection(models.Model):
    """A connection of the session's own to a server that is shared by *session*, as the process
    that has it last said."""

    session = models.ForeignKey(HostSession, on_delete=models.CASCADE, related_name="connections")
    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="+")
    process = models.CharField(max_length=100, db_index=True)
    seen_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["session", "server", "process"], name="host_connections_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.session_id} {self.server_id}"


class HostMessage(models.Model):
    """What a host sent that concerns a request which another web process serves: an answer to its
    question, say."""

    session = models.ForeignKey(HostSession, on_delete=models.CASCADE, related_name="messages")
    sealed_body = models.TextField(
        default="",
        db_default="",
        help_text=_("The JSON-RPC message. It can contain answers of a user."),
    )
    size = models.IntegerField(
        default=0,
        db_default=0,
        help_text=_(
            "Number of characters that count toward the limit of the session. 0 for messages from this site, "
            "which do not count."
        ),
    )
    created_at = models.DateTimeField(db_index=True)

    class Meta:
        indexes = [
            # Its sum is asked for with each message, and is not worth reading the messages for.
            models.Index(fields=["session", "size"], name="host_messages_of_session"),
        ]

    def __str__(self) -> str:
        return f"{self.session_id} {self.pk}"


class HostSubscription(models.Model):
    """A resource of whose changes a session's host wants to hear, by whichever process holds its
    stream."""

    session = models.ForeignKey(HostSession, on_delete=models.CASCADE, related_name="subscriptions")
    uri = models.TextField(help_text=_("URI of the resource, as the host writes it."))
    key = models.CharField(
        max_length=64, help_text=_("SHA-256 of the URI, because URIs are too long for an index.")
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["session", "key"], name="host_subscriptions_once")
        ]

    def __str__(self) -> str:
        return f"{self.session_id} {self.uri}"


class HostStream(models.Model):
    """The answer to one request that takes a while, for a host that may lose its connection and
    read on elsewhere."""

    id = models.CharField(
        primary_key=True, max_length=32, help_text=_("Prefix of the event IDs of the stream.")
    )
    session = models.ForeignKey(HostSession, on_delete=models.CASCADE, related_name="streams")
    request = models.TextField(
        help_text=_("ID and method of the request and the URI that it reads, as JSON.")
    )
    call_id = models.CharField(
        max_length=32, blank=True, help_text=_("ID of the call that the request makes, if any.")
    )
    asked_at = models.DateTimeField(db_index=True)
    answered_at = models.DateTimeField(null=True, blank=True)
    sealed_answer = models.TextField(
        blank=True,
        default="",
        db_default="",
        help_text=_("The JSON-RPC message. Empty if it was too large."),
    )

    def __str__(self) -> str:
        return f"{self.session_id} {self.id}"
