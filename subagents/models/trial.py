"""Reports of trials: what a server did when it was tried, beside what it did the time before."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _

from mcpregistry.models import Server
from subagents.models.maintenance import MaintenanceRequest


class TrialReport(models.Model):
    """One trial of a server. Nothing follows from it by itself; a ``Proposal`` of its request waits
    for a person."""

    class Verdict(models.TextChoices):
        """The word at the top."""

        OK = "ok", "OK"
        ATTENTION = "attention", _("Needs attention")
        REFUSE = "refuse", _("Do not enable")

    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="trials")
    request = models.OneToOneField(
        MaintenanceRequest, null=True, blank=True, on_delete=models.SET_NULL, related_name="trial"
    )
    server_revision = models.PositiveIntegerField(default=0)
    version = models.CharField(
        max_length=200, blank=True, help_text=_("Version that the server reports.")
    )
    verdict = models.CharField(max_length=10, choices=Verdict.choices)
    findings = models.JSONField(default=list, blank=True)
    figures = models.JSONField(default=dict, blank=True)
    starts = models.JSONField(default=list, blank=True)
    tools = models.JSONField(default=list, blank=True)
    unobserved = models.JSONField(
        default=list, blank=True, help_text=_("What could not be observed, as text.")
    )
    proposed = models.JSONField(
        default=dict, blank=True, help_text=_("Proposed tools and fields of the server.")
    )
    differences = models.JSONField(
        default=list, blank=True, help_text=_("Differences from the previous trial, as text.")
    )
    behaves_otherwise = models.BooleanField(
        _("changed behaviour"),
        default=False,
        help_text=_("Whether the server behaves differently than in the previous trial."),
    )
    created_at = models.DateTimeField()

    class Meta:
        verbose_name = _("trial")
        verbose_name_plural = _("trials")
        ordering = ["-created_at", "-id"]
        indexes = [models.Index(fields=["server", "-created_at"], name="trials_of_server")]

    def __str__(self) -> str:
        return f"{self.server} {self.created_at:%Y-%m-%d %H:%M}"

    def report(self) -> Any:
        """As ``mcpregistry.domain.trials`` compares it (``Report``)."""
        return {"verdict": self.verdict, "tools": self.tools, "figures": self.figures}
