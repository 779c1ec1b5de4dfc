"""Runs of expert tools: rows, not processes. Whoever has the lease does the next step and commits
it."""

from __future__ import annotations

from django.db import models
from django.db.models import Prefetch, Q
from django.utils.translation import gettext_lazy as _

from mcpregistry.models import Conversation
from mcpregistry.models.visibility import VisibleQuerySet
from subagents.domain.lifecycle import CallState, Exit, RunState
from subagents.models.expert import ExpertVersion
from subagents.models.leased import Leased
from subagents.models.provider import LanguageModel

# the change feed's topic of runs: how far they are, and whether somebody wants them to stop
RUN_TOPIC = "runs"


class RunQuerySet(VisibleQuerySet["Run"]):
    """Runs by what pages and clocks ask for. Who may start or steer runs may see them, and an agent
    those it called."""

    own_by = "caller"
    seen_with = ("view_run", "run_expert", "steer_run")

    def open(self) -> RunQuerySet:
        """Runs without an end."""
        return self.filter(finished_at__isnull=True)

    def with_open_calls(self) -> RunQuerySet:
        """Each with the list ``open_calls``, in one query for all of them."""
        still = ToolCall.objects.filter(finished_at=None)
        # declared there
        return self.prefetch_related(Prefetch("calls", still, to_attr="open_calls"))  # type: ignore[no-redef]


class Run(Leased):
    """One execution of an expert tool."""

    id = models.CharField(primary_key=True, max_length=32)
    version = models.ForeignKey(ExpertVersion, on_delete=models.PROTECT, related_name="runs")
    expert_name = models.CharField(_("expert tool"), max_length=60)
    state = models.CharField(
        max_length=10, choices=[(s.value, s.value) for s in RunState], default=RunState.QUEUED
    )
    exit = models.CharField(max_length=40, blank=True, choices=[(e.value, e.value) for e in Exit])
    error = models.TextField(blank=True)
    arguments = models.TextField(help_text=_("Arguments as canonical JSON."))
    answer = models.TextField(blank=True)
    structured = models.TextField(
        blank=True, help_text=_("The answer as JSON, if the tool has an output schema.")
    )
    answer_format = models.CharField(
        max_length=10,
        blank=True,
        default="",
        db_default="",
        help_text=_(
            "Format of the answer that the caller wants: text, markdown or json. Empty if the caller did not "
            "specify a format."
        ),
    )
    answer_schema = models.TextField(
        blank=True,
        default="",
        db_default="",
        help_text=_(
            "JSON Schema of the answer that the caller wants, instead of the schema of the tool."
        ),
    )
    model_options = models.TextField(
        blank=True,
        default="",
        db_default="",
        help_text=_("Model options for this run only, as JSON, for example the temperature."),
    )
    is_traced = models.BooleanField(
        _("recorded requests"),
        default=False,
        db_default=False,
        help_text=_("If enabled, the requests to models are recorded, without secrets."),
    )
    caller = models.CharField(_("agent"), max_length=63, blank=True)
    requester = models.CharField(
        max_length=150,
        blank=True,
        default="",
        db_default="",
        help_text=_("The user who started the run, if known. They cannot approve its calls."),
    )
    requester_id = models.BigIntegerField(
        null=True, blank=True, help_text=_("ID of the requester's account.")
    )
    conversation = models.ForeignKey(  # as of a call: the record outlives it
        Conversation,
        null=True,
        blank=True,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        related_name="runs",
        help_text=_(
            "The conversation of the call that started the run. The calls of the run belong to it too."
        ),
    )
    endpoint_slug = models.CharField(_("endpoint"), max_length=63, blank=True)
    origin = models.CharField(
        max_length=10, help_text=_("How the run was started: call, rest, command or replay.")
    )
    call_id = models.CharField(
        _("call ID"), max_length=32, blank=True, help_text=_("ID of the call that started the run.")
    )
    parent = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.SET_NULL, related_name="children"
    )
    replay_of = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.SET_NULL, related_name="replays"
    )
    asks = models.ForeignKey(
        LanguageModel,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        help_text=_("The model that a replay uses instead of the models of its version."),
    )
    depth = models.PositiveSmallIntegerField(default=0)
    # with the endpoint by which they came (``mcpregistry.domain.budgets.name_endpoint_payer``)
    payers = models.TextField(
        blank=True,
        default="",
        db_default="",
        help_text=_("Other agents whose budgets also pay for the run."),
    )
    final_reason = models.CharField(
        max_length=40,
        blank=True,
        help_text=_("Why the next turn is the last one. Empty if it is not the last one."),
    )
    cancel_requested = models.BooleanField(default=False)
    sleeps_for = models.CharField(
        max_length=200,
        blank=True,
        default="",
        db_default="",
        help_text=_("What the run waits for, other than an approval."),
    )
    input_tokens = models.PositiveBigIntegerField(default=0)
    output_tokens = models.PositiveBigIntegerField(default=0)
    cached_tokens = models.PositiveBigIntegerField(default=0)
    cache_write_tokens = models.PositiveBigIntegerField(default=0, db_default=0)
    reasoning_tokens = models.PositiveBigIntegerField(
        default=0,
        db_default=0,
        help_text=_("Number of reasoning tokens. They are included in the output tokens."),
    )
    cache_saved = models.DecimalField(
        max_digits=14,
        decimal_places=8,
        null=True,
        blank=True,
        help_text=_(
            "US dollars that the provider's cache saved, minus the cost of writing to the cache."
        ),
    )
    cost = models.DecimalField(
        max_digits=14, decimal_places=8, null=True, blank=True, help_text=_("Cost in US dollars.")
    )
    reserved_cost = models.DecimalField(max_digits=14, decimal_places=8, default=0)
    energy = models.FloatField(default=0)
    waited_seconds = models.FloatField(
        default=0,
        help_text=_(
            "Seconds that the run waited for approvals. They are not part of the duration of the run."
        ),
    )
    waiting_since = models.DateTimeField(null=True, blank=True)
    lost_seconds = models.FloatField(
        default=0,
        db_default=0,
        help_text=_(
            "Seconds without a worker, after a worker stopped unexpectedly. They are not part of the duration"
            " of the run."
        ),
    )
    revision = models.PositiveBigIntegerField(
        default=0, help_text=_("Revision of the configuration when the run started.")
    )
    reusable = models.CharField(
        max_length=64,
        blank=True,
        help_text=_("Digest of the tools of the run, if its answer can be reused."),
    )
    savings = models.JSONField(
        default=dict,
        blank=True,
        help_text=_("Tokens that the run kept out of its caller's context."),
    )
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)

    open_calls: list[ToolCall]  # of those read ``with_open_calls``

    objects = RunQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at", "-id"]
        indexes = [
            models.Index(fields=["-created_at", "-id"], name="run_by_time"),
            models.Index(fields=["wake_at"], name="run_open", condition=Q(finished_at=None)),
            models.Index(fields=["call_id"], name="run_by_call"),
        ]

    def __str__(self) -> str:
        return f"{self.expert_name}, {self.created_at:%Y-%m-%d %H:%M}"


class Turn(models.Model):
    """One answer of a model. Committed together with the calls that it asks for."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="turns")
    number = models.PositiveIntegerField()
    model = models.ForeignKey(LanguageModel, null=True, on_delete=models.SET_NULL, related_name="+")
    model_name = models.CharField(max_length=300)
    final = models.BooleanField(
        default=False, help_text=_("Whether the model was offered no tools.")
    )
    note = models.TextField(blank=True, help_text=_("Message to the model before this turn."))
    text = models.TextField(blank=True)
    finish = models.CharField(max_length=10)
    dropped_calls = models.PositiveIntegerField(
        default=0,
        help_text=_("Number of calls that the model requested beyond the limit of the run."),
    )
    input_tokens = models.PositiveIntegerField(default=0)
    output_tokens = models.PositiveIntegerField(default=0)
    cached_tokens = models.PositiveIntegerField(default=0)
    cache_write_tokens = models.PositiveIntegerField(default=0)
    reasoning_tokens = models.PositiveIntegerField(
        default=0,
        db_default=0,
        help_text=_("Number of reasoning tokens. They are included in the output tokens."),
    )
    cache_saved = models.DecimalField(
        max_digits=14,
        decimal_places=8,
        null=True,
        blank=True,
        help_text=_("Savings in US dollars."),
    )
    provider_state = models.TextField(
        blank=True,
        default="",
        db_default="",
        help_text=_(
            "JSON that must be sent back to the model together with its answer, such as signed reasoning. The"
            " site does not read it."
        ),
    )
    estimated_tokens = models.PositiveIntegerField(
        default=0, help_text=_("Number of tokens that the site had estimated before the request.")
    )
    cost = models.DecimalField(max_digits=14, decimal_places=8, null=True, blank=True)
    started_at = models.DateTimeField()
    duration_ms = models.FloatField()

    class Meta:
        ordering = ["number"]
        constraints = [
            models.UniqueConstraint(fields=["run", "number"], name="one_turn_per_number")
        ]

    def __str__(self) -> str:
        return f"{self.run} turn {self.number}"


class Attempt(models.Model):
    """One request to a model that failed. It never enters the conversation."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="attempts")
    turn_number = models.PositiveIntegerField()
    model = models.ForeignKey(LanguageModel, null=True, on_delete=models.SET_NULL, related_name="+")
    model_name = models.CharField(max_length=300)
    trouble = models.CharField(max_length=20)
    message = models.TextField(blank=True)
    status = models.PositiveSmallIntegerField(null=True, blank=True)
    retry_after = models.FloatField(null=True, blank=True)
    input_tokens = models.PositiveIntegerField(
        default=0, db_default=0, help_text=_("Input tokens of an answer that could not be used.")
    )
    output_tokens = models.PositiveIntegerField(default=0, db_default=0)
    cost = models.DecimalField(max_digits=14, decimal_places=8, null=True, blank=True)
    at = models.DateTimeField()
    duration_ms = models.FloatField()

    class Meta:
        ordering = ["at", "id"]

    def __str__(self) -> str:
        return f"{self.run} {self.model_name}: {self.trouble}"


class TracedRequest(models.Model):
    """One HTTP request to a model provider and its answer, of a run that is traced."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="traced_requests")
    at = models.DateTimeField()
    text = models.TextField(
        help_text=_("The request and its answer as a JSON object, without secrets.")
    )

    class Meta:
        ordering = ["id"]

    def __str__(self) -> str:
        return f"request {self.pk}"


class StoredOutput(models.Model):
    """A tool result that was too large for the conversation; the model reads it page by page."""

    handle = models.CharField(primary_key=True, max_length=16)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="outputs")
    text = models.TextField()
    bytes = models.PositiveIntegerField()
    lines = models.PositiveIntegerField()
    sha256 = models.CharField(max_length=64)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.handle


class ToolCall(models.Model):
    """A call that the model wants. ``invocation`` is set before anything is sent: the call's own
    record."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="calls")
    turn_number = models.PositiveIntegerField()
    index = models.PositiveIntegerField(help_text=_("Position of the call in the turn."))
    provider_id = models.CharField(
        max_length=200, help_text=_("ID that the model gave to the call.")
    )
    name = models.CharField(max_length=500)
    arguments = models.TextField(help_text=_("Arguments as the model wrote them."))
    coerced = models.TextField(
        blank=True,
        default="",
        db_default="",
        help_text=_(
            "Arguments that were converted to the type that the schema requires, one per line. The record of "
            "the call contains the converted values."
        ),
    )
    state = models.CharField(
        max_length=10, choices=[(s.value, s.value) for s in CallState], default=CallState.PLANNED
    )
    attempt = models.PositiveSmallIntegerField(default=0)
    invocation = models.CharField(max_length=32, blank=True)
    result = models.TextField(blank=True, help_text=_("Text that the model reads."))
    is_error = models.BooleanField(default=False)
    stored = models.ForeignKey(
        StoredOutput, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    raw_characters = models.PositiveIntegerField(default=0)
    details = models.JSONField(
        default=dict,
        blank=True,
        help_text=_(
            "Links in the result. If the site refused the call because the context window was too small: also"
            " the estimated number of tokens."
        ),
    )
    settled_by = models.CharField(
        max_length=150, blank=True, help_text=_("Who settled the call if its outcome was unknown.")
    )
    settled_by_id = models.BigIntegerField(
        null=True, blank=True, help_text=_("ID of the account of the user who settled the call.")
    )
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["turn_number", "index"]
        constraints = [
            models.UniqueConstraint(
                fields=["run", "turn_number", "index"], name="one_call_per_place"
            )
        ]
        indexes = [models.Index(fields=["invocation"], name="toolcall_by_invocation")]

    def __str__(self) -> str:
        return f"{self.run} {self.name}"
