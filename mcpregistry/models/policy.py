"""Policy rules: which calls may run at once, which a person is asked about, which are refused."""

from __future__ import annotations

from django.contrib.auth.models import Group
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.utils.translation import gettext_lazy as _
from simple_history.models import HistoricalRecords

from mcpregistry.domain.policy.decision import RuleOutcome
from mcpregistry.domain.text.display import show_invisible_characters
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

    OUTCOMES = [
        (RuleOutcome.ALLOW.value, _("allow")),
        (RuleOutcome.ASK.value, _("ask an approver")),
        (RuleOutcome.DENY.value, _("deny")),
    ]

    name = models.CharField(max_length=200, unique=True)
    enabled = models.BooleanField(default=True)
    draft = models.BooleanField(
        default=False,
        db_default=False,
        help_text=_("A draft has no effect until you enable it."),
    )
    priority = models.IntegerField(
        default=100,
        help_text=_("If several rules match a call, the one with the highest priority decides."),
    )
    agent = models.ForeignKey(
        Agent, null=True, blank=True, on_delete=models.CASCADE, related_name="rules"
    )
    endpoint = models.ForeignKey(
        Endpoint, null=True, blank=True, on_delete=models.CASCADE, related_name="rules"
    )
    expert = models.CharField(
        _("expert tool"),
        max_length=100,
        blank=True,
        help_text=_("If set, the rule matches only calls in runs of this expert tool."),
    )
    server = models.ForeignKey(
        Server, null=True, blank=True, on_delete=models.CASCADE, related_name="rules"
    )
    tool = models.ForeignKey(
        Tool, null=True, blank=True, on_delete=models.CASCADE, related_name="rules"
    )
    condition = models.TextField(
        blank=True,
        help_text=_(
            "CEL expression with args, tool, server, agent and call, for example args.amount > 100 || "
            'tool.risk == "high". If empty, the rule matches every call.'
        ),
    )
    outcome = models.CharField(
        _("decision"), max_length=5, choices=OUTCOMES, default=RuleOutcome.ASK.value
    )
    approvers = models.ForeignKey(
        Group,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        help_text=_("The group whose members may decide. If empty, all approvers may decide."),
    )
    quorum = models.PositiveSmallIntegerField(
        default=1,
        validators=[MinValueValidator(1), MaxValueValidator(10)],
        help_text=_("Number of approvers who must approve the call, from 1 to 10. Default: 1."),
    )
    decide_seconds = models.PositiveIntegerField(
        _("time to decide"),
        default=900,
        validators=[MinValueValidator(5), MaxValueValidator(30 * DAY)],
        help_text=_("Seconds until a held call expires if there is no decision. Default: 900."),
    )
    execute_seconds = models.PositiveIntegerField(
        _("time to start"),
        default=600,
        validators=[MinValueValidator(5), MaxValueValidator(30 * DAY)],
        help_text=_("Seconds within which an approved call must start. Default: 600."),
    )
    refusal_seconds = models.PositiveIntegerField(
        _("duration of a rejection"),
        default=300,
        db_default=300,
        validators=[MaxValueValidator(30 * DAY)],
        help_text=_(
            "For this many seconds after a rejection, the same call is refused without asking again. "
            "Default: 300. Set to 0 to ask each time."
        ),
    )
    requester_may_confirm = models.BooleanField(
        default=False,
        help_text=_(
            "If enabled, the user of the host or the owner of the agent can approve the call."
        ),
    )
    run_if_caller_left = models.BooleanField(
        default=False,
        help_text=_(
            "If enabled, an approved call runs even if the caller has disconnected. The result is kept for the caller."
        ),
    )
    note = models.TextField(blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    objects = PolicyRuleQuerySet.as_manager()
    history = HistoricalRecords()

    class Meta:
        verbose_name = _("rule")
        verbose_name_plural = _("rules")
        ordering = ["-priority", "name"]

    def __str__(self) -> str:
        return show_invisible_characters(self.name)

    @property
    def live(self) -> bool:
        """Whether it decides anything."""
        return self.enabled and not self.draft
