"""Hosted agents, what they are answering in conversations, and what their cycles did."""

from __future__ import annotations

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _
from simple_history.models import HistoricalRecords

from mcpregistry.ids import make_ordered_id
from mcpregistry.models import Conversation
from mcpregistry.models.tracked import TrackedModel
from subagents.models.expert import ExpertTool
from subagents.models.leased import Leased
from subagents.models.run import Run

EFFORT_TOPIC = "effort"  # of the feed


class EffortAgent(Leased, TrackedModel):
    """A hosted agent: a worker of the site runs it. Its expert tool sets its identity, its models
    and its whitelist.

    Its lease is that of its cycles. Its requests to the background sub-agent are paused while the
    lease has expired.
    """

    id = models.CharField(primary_key=True, max_length=32, default=make_ordered_id, editable=False)
    expert = models.OneToOneField(
        ExpertTool,
        on_delete=models.CASCADE,
        related_name="effort_agent",
        help_text=_(
            "The expert tool that answers: its models, prompt, limits and tools are used. "
            "It must take one text argument, which receives the messages."
        ),
    )
    enabled = models.BooleanField(default=True)
    cycle_seconds = models.FloatField(
        _("seconds between checks"),
        default=1.0,
        validators=[MinValueValidator(0.2), MaxValueValidator(60)],
        help_text=_(
            "Seconds between two checks for new messages, from 0.2 to 60. The default is 1."
        ),
    )
    supervises = models.BooleanField(
        _("supervises the sub-agent"),
        default=False,
        db_default=False,
        help_text=_(
            "While this agent is disabled or not running, the background sub-agent pauses all its work."
        ),
    )
    focus = models.CharField(
        max_length=32,
        blank=True,
        default="",
        editable=False,
        help_text=_(
            "The only conversation in which the hosted agent answers. If empty, it answers in all "
            "conversations of its agent."
        ),
    )
    awaits_level = models.FloatField(
        null=True,
        editable=False,
        help_text=_("Level that its energy pool must reach before the agent answers again."),
    )

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
        verbose_name = _("hosted agent")
        ordering = ["id"]

    def __str__(self) -> str:
        return self.expert.name


class Exchange(models.Model):
    """What was written to an agent, and the run that answers it: one at a time in each
    conversation."""

    conversation = models.ForeignKey(
        Conversation, on_delete=models.CASCADE, related_name="exchanges"
    )
    run = models.OneToOneField(
        Run,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="exchange",
        help_text=_(
            "The run that writes the answer. Empty if none could be started, or if it was deleted."
        ),
    )
    read_to = models.BigIntegerField(
        help_text=_("Number of the last message that the run answers.")
    )
    told_at = models.DateTimeField(
        null=True, blank=True, help_text=_("When the answer was written.")
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["conversation"], condition=Q(told_at=None), name="one_open_exchange"
            )
        ]

    def __str__(self) -> str:
        return f"answer to message {self.read_to}"


class CycleLog(models.Model):
    """What a cycle did, if it did anything. Levels are those of the agent's energy pool, empty
    without one.

    ``level`` is that before the cycle.
    """

    agent = models.ForeignKey(EffortAgent, on_delete=models.CASCADE, related_name="cycles")
    at = models.DateTimeField()
    level = models.FloatField(null=True, blank=True)
    level_after = models.FloatField(null=True, blank=True)
    polled = models.FloatField(
        default=0,
        db_default=0,
        help_text=_("Energy that the background sub-agent has used since the previous cycle."),
    )
    took_ms = models.FloatField(null=True, blank=True)
    decision = models.CharField(max_length=500, blank=True)
    lacks_energy = models.BooleanField(
        default=False,
        db_default=False,
        help_text=_("Whether conversations wait because the energy pool has too little energy."),
    )

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["agent", "-id"], name="cycles_of_agent")]

    def __str__(self) -> str:
        return self.decision
