"""Policy rules: which calls may run at once, which a person is asked about, which are refused."""

from __future__ import annotations

from django.contrib.auth.models import Group
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from simple_history.models import HistoricalRecords

from mcpregistry.domain.policy.decision import Outcome
from mcpregistry.domain.text.display import printable
from mcpregistry.models.access import Agent, Endpoint
from mcpregistry.models.server import Server
from mcpregistry.models.tool import Tool
from mcpregistry.models.tracked import TrackedModel

DAY = 24 * 60 * 60


class PolicyRuleQuerySet(models.QuerySet["PolicyRule"]):
    """Rules by whether they decide anything."""

    def live(self) -> PolicyRuleQuerySet:
        """Those that count: switched on, and no drafts."""
        return self.filter(enabled=True, draft=False)


class PolicyRule(TrackedModel):
    """A condition over a call and what follows from it.

    Of the rules that fit a call, those with the highest priority decide, and of these the most
    restrictive outcome counts. Fields left empty fit every call. A draft decides nothing anywhere.
    """

    OUTCOMES = [(Outcome.ALLOW.value, "allow"), (Outcome.ASK.value, "ask a person"), (Outcome.DENY.value, "deny")]

    name = models.CharField(max_length=200, unique=True)
    enabled = models.BooleanField(default=True)
    draft = models.BooleanField(
        default=False, db_default=False,
        help_text="Written, not yet decided on: it decides nothing until somebody makes it live.",
    )  # fmt: skip
    priority = models.IntegerField(
        default=100, help_text="If several rules match a call, the one with the highest priority decides."
    )
    agent = models.ForeignKey(Agent, null=True, blank=True, on_delete=models.CASCADE, related_name="rules")
    endpoint = models.ForeignKey(Endpoint, null=True, blank=True, on_delete=models.CASCADE, related_name="rules")
    expert = models.CharField(
        "expert tool",
        max_length=100,
        blank=True,
        help_text="If set, the rule matches only calls in runs of this expert tool.",
    )
    server = models.ForeignKey(Server, null=True, blank=True, on_delete=models.CASCADE, related_name="rules")
    tool = models.ForeignKey(Tool, null=True, blank=True, on_delete=models.CASCADE, related_name="rules")
    condition = models.TextField(
        blank=True,
        help_text="CEL expression with args, tool, server, agent and call, for example args.amount > 100 || "
        'tool.risk == "high". If empty, the rule matches every call.',
    )
    outcome = models.CharField(max_length=5, choices=OUTCOMES, default=Outcome.ASK.value)
    approvers = models.ForeignKey(
        Group,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        help_text="The group whose members may decide. If empty, all approvers may decide.",
    )
    quorum = models.PositiveSmallIntegerField(
        default=1,
        validators=[MinValueValidator(1), MaxValueValidator(10)],
        help_text="Number of people who must approve.",
    )
    decide_seconds = models.PositiveIntegerField(
        "time to decide", default=900, validators=[MinValueValidator(5), MaxValueValidator(30 * DAY)],
        help_text="Seconds until the call is refused if there is no decision.",
    )  # fmt: skip
    execute_seconds = models.PositiveIntegerField(
        "time to run", default=600, validators=[MinValueValidator(5), MaxValueValidator(30 * DAY)],
        help_text="An approved call must start within this many seconds.",
    )  # fmt: skip
    refusal_seconds = models.PositiveIntegerField(
        "a refusal holds", default=300, db_default=300, validators=[MaxValueValidator(30 * DAY)],
        help_text="For this many seconds after a rejection, the same call is refused without asking again. Set to 0 "
        "to ask each time.",
    )  # fmt: skip
    requester_may_confirm = models.BooleanField(
        default=False, help_text="If enabled, the person at the host or the owner of the agent may approve the call."
    )
    run_if_caller_left = models.BooleanField(
        default=False,
        help_text="If enabled, an approved call runs even if the caller has disconnected. The result "
        "is kept for the caller.",
    )
    note = models.TextField(blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    objects = PolicyRuleQuerySet.as_manager()
    history = HistoricalRecords()

    class Meta:
        verbose_name = "rule"
        verbose_name_plural = "rules"
        ordering = ["-priority", "name"]

    def __str__(self) -> str:
        return printable(self.name)

    @property
    def live(self) -> bool:
        """Whether it decides anything."""
        return self.enabled and not self.draft
