"""Agents of the site that hold conversations, what they are answering, and what their cycles did."""

from __future__ import annotations

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q
from simple_history.models import HistoricalRecords

from mcpregistry.ids import ordered_id
from mcpregistry.models import Conversation
from subagents.models.expert import ExpertTool
from subagents.models.leased import Leased
from subagents.models.run import Run

EFFORT_TOPIC = "effort"  # of the feed


class EffortAgent(Leased):
    """An agent that lives in the worker. Who it is, which models it asks and what it may use are those of its expert tool.

    Its lease is that of its cycles. What it has asked of the background sub-agent stands still while the lease is out.
    """

    id = models.CharField(primary_key=True, max_length=32, default=ordered_id, editable=False)
    expert = models.OneToOneField(
        ExpertTool, on_delete=models.CASCADE, related_name="effort_agent",
        help_text="Its models, prompt, limits and whitelist. It takes one text: what was said.",
    )  # fmt: skip
    enabled = models.BooleanField(default=True)
    cycle_seconds = models.FloatField(
        default=1.0, validators=[MinValueValidator(0.2), MaxValueValidator(60)], help_text="From one look to the next."
    )
    supervises = models.BooleanField(
        "supervises the sub-agent", default=False, db_default=False,
        help_text="The background sub-agent works for nobody while the cycles of this agent stand still.",
    )  # fmt: skip
    focus = models.CharField(
        max_length=32, blank=True, default="", editable=False, help_text="The one conversation that it answers."
    )
    awaits_level = models.FloatField(null=True, editable=False, help_text="Of its energy pool, before it answers more.")

    history = HistoricalRecords(
        excluded_fields=[
            "worker",
            "fence",
            "lease_until",
            "wake_at",
            "idle_since",
            "finished_at",
            "focus",
            "awaits_level",
        ]
    )

    class Meta:
        verbose_name = "speaking agent"
        ordering = ["id"]

    def __str__(self) -> str:
        return self.expert.name


class Exchange(models.Model):
    """What was written to an agent, and the run that answers it: one at a time in each conversation."""

    conversation = models.ForeignKey(Conversation, on_delete=models.CASCADE, related_name="exchanges")
    run = models.OneToOneField(
        Run, null=True, blank=True, on_delete=models.SET_NULL, related_name="exchange",
        help_text="Empty: none could be started, which was said; or it is forgotten.",
    )  # fmt: skip
    read_to = models.BigIntegerField(help_text="The number of the last message that it answers.")
    told_at = models.DateTimeField(null=True, blank=True, help_text="When its answer was written.")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["conversation"], condition=Q(told_at=None), name="one_open_exchange")
        ]

    def __str__(self) -> str:
        return f"answer to message {self.read_to}"


class CycleLog(models.Model):
    """What a cycle did, if it did anything. Levels are those of the agent's energy pool, empty without one.

    ``level`` is that before the cycle.
    """

    agent = models.ForeignKey(EffortAgent, on_delete=models.CASCADE, related_name="cycles")
    at = models.DateTimeField()
    level = models.FloatField(null=True, blank=True)
    level_after = models.FloatField(null=True, blank=True)
    polled = models.FloatField(
        default=0, db_default=0, help_text="Energy that the background sub-agent has used since the cycle before."
    )
    took_ms = models.FloatField(null=True, blank=True)
    decision = models.CharField(max_length=500, blank=True)

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["agent", "-id"], name="cycles_of_agent")]

    def __str__(self) -> str:
        return self.decision
