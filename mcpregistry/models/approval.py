"""Calls that wait for people: the request, the votes on it, and the narrow permits that grow from
them."""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.contrib.auth.models import Group
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _
from simple_history.models import HistoricalRecords

from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models.access import Agent
from mcpregistry.models.invocation import Invocation
from mcpregistry.models.policy import PolicyRule
from mcpregistry.models.tool import Tool
from mcpregistry.models.visibility import VisibleQuerySet


class ApprovalQuerySet(VisibleQuerySet["ApprovalRequest"]):
    """Requests by whether they still wait; the state is the call's. Who may decide on one may see
    it."""

    own_by = "call__agent_slug"
    seen_with = ("view_approvalrequest", "decide_approval")

    def waiting(self) -> ApprovalQuerySet:
        """Nobody has decided yet. No such request has the time of a decision, and these few are in
        a partial index."""
        return self.filter(call__state=InvocationState.PENDING, decided_at=None)

    def filter_left_to_workers(self, before: datetime) -> ApprovalQuerySet:
        """Approved before this time and not begun, and only a worker runs the call."""
        by_itself = Q(waiting_as=ApprovalRequest.Waiting.TASK) | Q(run_if_caller_left=True)
        return self.filter(
            by_itself,
            call__finished_at=None,
            call__state=InvocationState.READY,
            decided_at__lt=before,
        )

    def filter_decided(self) -> ApprovalQuerySet:
        """Approved, rejected, expired, cancelled or void."""
        return self.exclude(call__state=InvocationState.PENDING)


class ApprovalRequest(models.Model):
    """A call that a rule holds for people. Its state is the call's own; there is no second one.

    What the rule said when it asked (who, how many, until when) is frozen here. ``edited`` are the
    arguments that will run instead of those asked for.
    """

    class Waiting(models.TextChoices):
        """How the caller waits; the values of ``domain.calls.wait_strategy``."""

        TASK = "task", _("as a task of the host")
        QUESTION = "question", _("with a question to the user of the host")
        PROGRESS = "progress", _("with progress messages")
        HOLD = "hold", _("without messages, for a short time")
        AWAY = "away", _("not at all; the next identical call gets the result")

    id = models.CharField(primary_key=True, max_length=32)
    call = models.OneToOneField(Invocation, on_delete=models.CASCADE, related_name="approval")
    rule = models.ForeignKey(
        PolicyRule, null=True, blank=True, on_delete=models.SET_NULL, related_name="requests"
    )
    rule_name = models.CharField(
        _("rule"), max_length=200, help_text=_("Name of the rule when the call was held.")
    )
    rule_fingerprint = models.CharField(
        max_length=64,
        help_text=_("SHA-256 of the rule. If the rule changes, the held call becomes void."),
    )
    group = models.ForeignKey(
        Group, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    quorum = models.PositiveSmallIntegerField(default=1)
    requester_may_confirm = models.BooleanField(default=False)
    run_if_caller_left = models.BooleanField(default=False)
    execute_seconds = models.PositiveIntegerField(default=600)
    risk = models.CharField(
        max_length=10, default="high", help_text=_("Risk of the call: low, medium or high.")
    )
    risk_rank = models.PositiveSmallIntegerField(default=3, editable=False)
    waiting_as = models.CharField(max_length=10, choices=Waiting.choices, default=Waiting.HOLD)
    expert = models.CharField(
        _("expert tool"),
        max_length=100,
        blank=True,
        help_text=_("Name of the expert tool whose run made the call."),
    )
    host = models.CharField(
        max_length=200, blank=True, help_text=_("Name of the host when the rules were evaluated.")
    )
    said = models.TextField(
        _("message from the agent"),
        blank=True,
        help_text=_("What the agent says about the call. This text is not verified."),
    )
    asked_at = models.DateTimeField()
    decide_by = models.DateTimeField()
    decided_at = models.DateTimeField(null=True, blank=True)
    decided_reason = models.TextField(blank=True)
    execute_by = models.DateTimeField(null=True, blank=True)
    edited = models.TextField(
        blank=True,
        help_text=_(
            "Edited arguments as canonical JSON. If empty, the call runs with its original arguments."
        ),
    )
    join_key = models.CharField(
        max_length=64,
        null=True,
        unique=True,
        editable=False,
        help_text=_(
            "Key by which identical calls join this held call. Empty if no further call can join it."
        ),
    )
    refused_key = models.CharField(
        max_length=64,
        null=True,
        editable=False,
        help_text=_("After a rejection, identical calls are recognized by this key."),
    )
    result = models.TextField(
        blank=True, help_text=_("The complete result as JSON, kept for a caller that reconnects.")
    )
    delivered_at = models.DateTimeField(null=True, blank=True)

    objects = ApprovalQuerySet.as_manager()

    class Meta:
        verbose_name = _("held call")
        ordering = ["-asked_at", "-id"]
        indexes = [
            models.Index(fields=["-asked_at", "-id"], name="approval_by_time"),
            models.Index(
                fields=["-risk_rank", "asked_at"],
                name="approval_open",
                condition=Q(decided_at=None),
            ),
            models.Index(
                fields=["refused_key"],
                name="approval_refused",
                condition=Q(refused_key__isnull=False),
            ),
        ]
        permissions = [("decide_approval", "Can approve and reject held calls")]

    def __str__(self) -> str:
        return f"{self.call} ({self.id[:8]})"


class ApprovalSeat(models.Model):
    """One caller who waits for the request right now, in some process, as long as that says so in
    time.

    The key is the id of the call that the caller made; of one who joined, no record has it.
    """

    caller = models.CharField(primary_key=True, max_length=32)
    request = models.ForeignKey(ApprovalRequest, on_delete=models.CASCADE, related_name="seats")
    process = models.CharField(
        max_length=100, help_text=_("The process in which the caller waits.")
    )
    lease_until = models.DateTimeField(
        db_index=True, help_text=_("When the lease of the process expires, in database time.")
    )
    doubted = models.BooleanField(
        default=False,
        db_default=False,
        help_text=_("Whether the lease of the process has expired once before."),
    )

    class Meta:
        verbose_name = _("waiting caller")

    def __str__(self) -> str:
        return f"{self.caller} for {self.request_id}"


class ApprovalVote(models.Model):
    """One person's word on one request. Words on other arguments than those that will run do not
    count."""

    request = models.ForeignKey(ApprovalRequest, on_delete=models.CASCADE, related_name="votes")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    name = models.CharField(
        max_length=150, help_text=_("Name of the approver, kept if the account is deleted.")
    )
    approve = models.BooleanField()
    reason = models.TextField(blank=True)
    arguments_hash = models.CharField(
        max_length=64, help_text=_("SHA-256 of the arguments that the approver saw.")
    )
    via = models.CharField(
        max_length=10, help_text=_("Where the approver decided: web, rest, slack or host.")
    )
    at = models.DateTimeField()

    class Meta:
        ordering = ["at", "id"]
        constraints = [
            models.UniqueConstraint(fields=["request", "user"], name="one_vote_per_person")
        ]

    def __str__(self) -> str:
        return f"{self.name} {'approves' if self.approve else 'rejects'}"


class Permit(models.Model):
    """An approval given ahead: this agent may make such calls of one tool, as pinned, until then.

    It only ever narrows what a request asked for, and it ends with the definition it was given for.
    """

    agent = models.ForeignKey(Agent, on_delete=models.CASCADE, related_name="permits")
    tool = models.ForeignKey(Tool, on_delete=models.CASCADE, related_name="permits")
    definition_hash = models.CharField(max_length=64)
    server_revision = models.IntegerField()
    argument_pins = models.JSONField(default=dict, blank=True)
    expires_at = models.DateTimeField()
    uses_left = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text=_("Number of calls that are left. If empty, the number is not limited."),
    )
    request = models.ForeignKey(
        ApprovalRequest, null=True, on_delete=models.SET_NULL, related_name="permits"
    )
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    history = HistoricalRecords(excluded_fields=["uses_left"])

    class Meta:
        ordering = ["-created_at", "-id"]

    def __str__(self) -> str:
        return f"{self.agent} may call {self.tool}"
