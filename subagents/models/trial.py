"""Reports of trials: what a server did when it was tried, beside what it did the time before."""

from __future__ import annotations

from typing import Any

from django.db import models

from mcpregistry.models import Server
from subagents.models.maintenance import MaintenanceRequest


class TrialReport(models.Model):
    """One trial of a server. Nothing follows from it by itself; a ``Proposal`` of its request waits for a person."""

    class Verdict(models.TextChoices):
        """The word at the top."""

        OK = "ok", "OK"
        ATTENTION = "attention", "Needs attention"
        REFUSE = "refuse", "Refuse"

    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="trials")
    request = models.OneToOneField(
        MaintenanceRequest, null=True, blank=True, on_delete=models.SET_NULL, related_name="trial"
    )
    server_revision = models.PositiveIntegerField(default=0)
    version = models.CharField(max_length=200, blank=True, help_text="As the server calls its version.")
    verdict = models.CharField(max_length=10, choices=Verdict.choices)
    findings = models.JSONField(default=list, blank=True)
    figures = models.JSONField(default=dict, blank=True)
    starts = models.JSONField(default=list, blank=True)
    tools = models.JSONField(default=list, blank=True)
    unobserved = models.JSONField(default=list, blank=True, help_text="What could not be seen, in words.")
    proposed = models.JSONField(default=dict, blank=True, help_text="Whitelist and fields of the server.")
    differences = models.JSONField(default=list, blank=True, help_text="From the trial before, in words.")
    behaves_otherwise = models.BooleanField(default=False, help_text="Than in the trial before.")
    created_at = models.DateTimeField()

    class Meta:
        verbose_name = "trial"
        verbose_name_plural = "trials"
        ordering = ["-created_at", "-id"]
        indexes = [models.Index(fields=["server", "-created_at"], name="trials_of_server")]

    def __str__(self) -> str:
        return f"{self.server} {self.created_at:%Y-%m-%d %H:%M}"

    def report(self) -> Any:
        """As ``mcpregistry.domain.trials`` compares it (``Report``)."""
        return {"verdict": self.verdict, "tools": self.tools, "figures": self.figures}
