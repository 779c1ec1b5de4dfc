"""Handles for hosts that speak the Tasks extension (``io.modelcontextprotocol/tasks``,
2026-07-28)."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from mcpregistry.models.invocation import Invocation
from mcpregistry.models.server import Server


class HostTask(models.Model):
    """What a host polls. What has become of the call is written in the call; this is only the
    handle.

    ``downstream_id`` is set when the server itself made a task of the call: then we follow that
    one.
    """

    id = models.CharField(primary_key=True, max_length=64)
    call = models.OneToOneField(Invocation, on_delete=models.CASCADE, related_name="host_task")
    agent_slug = models.CharField(max_length=63)
    endpoint_slug = models.CharField(max_length=63)
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()
    ttl_ms = models.BigIntegerField(null=True, blank=True)
    poll_ms = models.PositiveIntegerField(default=2000)
    status_message = models.TextField(blank=True)
    server = models.ForeignKey(
        Server, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    downstream_id = models.TextField(blank=True)
    input_requests = models.TextField(
        blank=True, help_text=_("Open questions of the server by key, as JSON.")
    )
    input_responses = models.TextField(
        blank=True, help_text=_("Answers that have not been passed on yet, by key, as JSON.")
    )
    result = models.TextField(
        blank=True, help_text=_("The complete result, or {'error': …}, as JSON.")
    )
    cancel_requested = models.BooleanField(default=False)
    version = models.PositiveIntegerField(
        default=1, help_text=_("Increases with every change that a host can see.")
    )
    seen_at = models.DateTimeField(
        null=True, blank=True, help_text=_("When the host last asked for the task.")
    )

    class Meta:
        # its name before the model had this one; processes of both may run at once
        db_table = "mcpregistry_task"
        ordering = ["-created_at"]
        indexes = [
            models.Index(
                fields=["updated_at"], name="task_followed", condition=~Q(downstream_id="")
            )
        ]

    def __str__(self) -> str:
        return f"task {self.id[:8]}"
