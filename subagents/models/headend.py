"""Headends: other interfaces in front of expert tools, and who has a place in their queues."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models import Q
from simple_history.models import HistoricalRecords

from mcpregistry.models import Endpoint
from mcpregistry.models.server import slug_validator

HEADEND_TOPIC = "headends"  # of the change feed: a place was given back

path_validator = RegexValidator(
    r"^[a-z0-9][a-z0-9_-]*(/[a-z0-9][a-z0-9_-]*){0,3}\Z",
    "Use small letters, digits, dashes and underscores, with / between up to four parts: team-a/v1.",
)


class HeadendKind(models.TextChoices):
    """Which interface a headend has."""

    REST = "rest", "REST"
    OPENAI = "openai", "OpenAI: chat completions and responses"
    ANTHROPIC = "anthropic", "Anthropic: messages"
    MCP = "mcp", "MCP: each call says in which format it wants the answer"


class Headend(models.Model):
    """The expert tools of an endpoint as models, or as a service. Who may call which is said by the endpoint and the tools."""

    slug = models.CharField("name", max_length=63, unique=True, validators=[slug_validator])
    kind = models.CharField("interface", max_length=10, choices=HeadendKind.choices)
    endpoint = models.ForeignKey(
        Endpoint, on_delete=models.CASCADE, related_name="headends",
        help_text="Its expert tools are offered, to agents that may call them.",
    )  # fmt: skip
    path = models.CharField(
        max_length=100, default="v1", blank=True, validators=[path_validator],
        help_text="Below the address of this site. Clients are given it as their base URL, OpenAI's with it and Anthropic's "
        "without the last /v1. An MCP headend has the address of its endpoint.",
    )  # fmt: skip
    enabled = models.BooleanField(default=True)
    concurrency = models.PositiveIntegerField(
        "runs at the same time", default=10, validators=[MinValueValidator(1), MaxValueValidator(1_000)],
        help_text="Of all processes together. Further requests wait in the order in which they came.",
    )  # fmt: skip
    longest_queue = models.PositiveIntegerField(
        default=100, validators=[MaxValueValidator(10_000)],
        help_text="Requests that may wait. Any more are told to come again later (429).",
    )  # fmt: skip
    patience_seconds = models.PositiveIntegerField(
        "waits for people", default=300, validators=[MaxValueValidator(3_600)],
        help_text="How many seconds a client is kept waiting while a person is asked about a call of its run. Then it is told "
        "so; the same question asked again gets the run's answer.",
    )  # fmt: skip
    aliases = models.JSONField(
        default=dict, blank=True, help_text='Further model ids, e.g. {"gpt-4o": "research"}. Each means an expert tool.'
    )
    background_prompts = models.BooleanField(
        default=False,
        help_text="Chat clients ask the same model for titles, tags and follow-up questions. Each would be a run. Off: such "
        "requests are refused.",
    )  # fmt: skip
    created_at = models.DateTimeField(auto_now_add=True)

    history = HistoricalRecords()

    class Meta:
        ordering = ["slug"]
        constraints = [
            models.UniqueConstraint(
                fields=["kind", "path"], condition=~Q(kind="mcp"), name="one_headend_of_a_kind_for_each_path",
                violation_error_message="Another headend with this interface has the path.",
            ),
            models.UniqueConstraint(
                fields=["endpoint"], condition=Q(kind="mcp"), name="one_mcp_headend_for_each_endpoint",
                violation_error_message="The endpoint has an MCP headend already.",
            ),
        ]  # fmt: skip

    def __str__(self) -> str:
        return self.slug

    def clean(self) -> None:
        """Check what the fields mean together. Raises ValidationError."""
        if self.kind == HeadendKind.MCP:
            self.path = ""
        elif not self.path:
            raise ValidationError({"path": "Enter a path, such as v1."})
        _check_aliases(self.aliases)


def _check_aliases(aliases: Any) -> None:
    if not isinstance(aliases, dict) or not all(isinstance(name, str) and name for name in aliases.values()):
        raise ValidationError({"aliases": 'Enter an object with texts: {"gpt-4o": "research"}.'})
    if wrong := [alias for alias in aliases if not alias or len(alias) > 200 or not alias.isprintable()]:
        raise ValidationError({"aliases": f"A model id has 1 to 200 printable characters: {wrong[0][:50]!r} has not."})


class HeadendRequest(models.Model):
    """A request's place at a headend. The first ``concurrency`` that are kept may run, in the order of their numbers.

    A place is kept until it is released, or its process has not renewed its lease for long. Afterwards the row only says
    which call the same request, if it comes again, is answered from.
    """

    headend = models.ForeignKey(Headend, on_delete=models.CASCADE, related_name="requests")
    agent_slug = models.CharField(max_length=63)
    fingerprint = models.CharField(max_length=64, help_text="SHA-256 of what is asked.")
    idempotency_key = models.CharField(max_length=200, blank=True)
    call_id = models.CharField(max_length=32, help_text="Of the call that it makes, or made.")
    process = models.CharField(max_length=100)
    lease_until = models.DateTimeField()
    released_at = models.DateTimeField(null=True, blank=True)
    joinable = models.BooleanField(
        default=False, help_text="Its client was told to ask again, or was lost with its process."
    )
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["id"]
        indexes = [
            models.Index(fields=["headend", "id"], name="headend_queue", condition=Q(released_at=None)),
            models.Index(fields=["headend", "agent_slug", "fingerprint"], name="headend_same_request"),
            models.Index(fields=["released_at"], name="headend_released"),
        ]

    def __str__(self) -> str:
        return f"request {self.pk}"
