"""Tests of servers: asked for by people or by the sub-agent, run by a worker."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _

from mcpregistry.models.server import Server


class ServerTest(models.Model):
    """One test of a server: connect, list, perhaps one harmless call; verdict and timings."""

    class Verdict(models.TextChoices):
        """How far the test has come, and how it ended."""

        QUEUED = "queued", _("Queued")
        RUNNING = "running", _("Running")
        PASSED = "passed", _("Passed")
        FAILED = "failed", _("Failed")

    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="tests")
    verdict = models.CharField(max_length=10, choices=Verdict.choices, default=Verdict.QUEUED)
    requested_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    requested_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    worker = models.CharField(max_length=100, blank=True, default="", db_default="", editable=False)
    in_sandbox = models.BooleanField(
        default=False,
        db_default=False,
        help_text=_("Whether the test ran in the sandbox, even if the server does not use it."),
    )
    call_tool = models.CharField(
        max_length=500, blank=True, help_text=_("Tool to call as part of the test.")
    )
    call_arguments = models.JSONField(default=dict, blank=True)
    server_revision = models.PositiveIntegerField(default=0)
    protocol_era = models.CharField(_("protocol version"), max_length=20, blank=True)
    timings = models.JSONField(
        default=dict, blank=True, help_text=_("Duration of each step in milliseconds.")
    )
    tool_count = models.PositiveIntegerField(null=True, blank=True)
    left_out = models.TextField(
        blank=True,
        default="",
        db_default="",
        help_text=_("Definitions that were left out, with the reason, one per line."),
    )
    error_code = models.CharField(max_length=40, blank=True)
    error = models.TextField(blank=True)
    stderr_tail = models.TextField(blank=True)

    class Meta:
        ordering = ["-requested_at", "-id"]

    def __str__(self) -> str:
        return f"test of {self.server}: {self.verdict}"

    @property
    def goes_on(self) -> bool:
        """Whether its verdict is still to come."""
        return self.verdict in (self.Verdict.QUEUED, self.Verdict.RUNNING)
