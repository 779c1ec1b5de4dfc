"""Headends, which offer expert tools over other interfaces, and the requests in their queues."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from simple_history.models import HistoricalRecords

from mcpregistry.models import Endpoint
from mcpregistry.models.server import slug_validator
from mcpregistry.models.tracked import TrackedModel

HEADEND_TOPIC = "headends"  # of the change feed: a place was released

path_validator = RegexValidator(
    r"^[a-z0-9][a-z0-9_-]*(/[a-z0-9][a-z0-9_-]*){0,3}\Z",
    _(
        "Use lower-case letters, digits, dashes and underscores, with / between up to four parts, for example team-a/v1."
    ),
)


class HeadendKind(models.TextChoices):
    """The interface of a headend."""

    REST = "rest", "REST"
    OPENAI = "openai", _("OpenAI: chat completions and responses")
    ANTHROPIC = "anthropic", _("Anthropic: messages")
    MCP = "mcp", _("MCP: each call states the format of its answer")


class Headend(TrackedModel):
    """Offers the expert tools of an endpoint over another interface. The endpoint and the tools
    decide who may call them."""

    slug = models.CharField(_("name"), max_length=63, unique=True, validators=[slug_validator])
    kind = models.CharField(_("interface"), max_length=10, choices=HeadendKind.choices)
    endpoint = models.ForeignKey(
        Endpoint,
        on_delete=models.CASCADE,
        related_name="headends",
        help_text=_(
            "The headend offers the expert tools of this endpoint, to agents that may call them."
        ),
    )
    path = models.CharField(
        max_length=100,
        default="v1",
        blank=True,
        validators=[path_validator],
        help_text=_(
            "Path below the address of this site, for example v1 or team-a/v1. For Anthropic it must end with v1. An MCP headend "
            "has no path, because hosts use the address of its endpoint."
        ),
    )
    enabled = models.BooleanField(default=True)
    concurrency = models.PositiveIntegerField(
        _("concurrent runs"),
        default=10,
        validators=[MinValueValidator(1), MaxValueValidator(1_000)],
        help_text=_(
            "Maximum number of runs at the same time, in all processes together. Default: 10. Further requests wait. "
            "Waiting agents are served in turn."
        ),
    )
    longest_queue = models.PositiveIntegerField(
        default=100,
        validators=[MaxValueValidator(10_000)],
        help_text=_(
            "Maximum number of waiting requests. Default: 100. Further requests are refused with status 429 and can be retried."
        ),
    )
    patience_seconds = models.PositiveIntegerField(
        _("longest wait for an approval"),
        default=300,
        validators=[MaxValueValidator(3_600)],
        help_text=_(
            "How long a client waits for an approval, in seconds. Default: 300. After that, the client gets a"
            " message with a link, and the run continues. If the client asks the same question again later, "
            "it gets the answer of the run. Set to 0 to answer immediately."
        ),
    )
    aliases = models.JSONField(
        default=dict,
        blank=True,
        help_text=_(
            'Additional model IDs with the names of expert tools, for example {"gpt-4o": "research"}.'
        ),
    )
    background_prompts = models.BooleanField(
        default=False,
        help_text=_(
            "Allow requests from chat clients for titles, tags and follow-up questions. Each request starts a"
            " run. By default, these requests are refused."
        ),
    )
    created_at = models.DateTimeField(auto_now_add=True)

    history = HistoricalRecords()

    class Meta:
        ordering = ["slug"]
        constraints = [
            models.UniqueConstraint(
                fields=["kind", "path"],
                condition=~Q(kind="mcp"),
                name="one_headend_of_a_kind_for_each_path",
                violation_error_message=_(
                    "Another headend with this interface already uses this path."
                ),
            ),
            models.UniqueConstraint(
                fields=["endpoint"],
                condition=Q(kind="mcp"),
                name="one_mcp_headend_for_each_endpoint",
                violation_error_message=_("The endpoint already has an MCP headend."),
            ),
        ]

    def __str__(self) -> str:
        return self.slug

    def clean(self) -> None:
        """Check what the fields mean together. Raises ValidationError."""
        if self.kind == HeadendKind.MCP:
            self.path = ""
        elif not self.path:
            raise ValidationError({"path": _("Enter a path, for example v1.")})
        elif self.kind == HeadendKind.ANTHROPIC and self.path.rpartition("/")[2] != "v1":
            raise ValidationError(
                {
                    "path": _(
                        "Anthropic clients add /v1 to the address. Use a path that ends with v1, for example team-a/v1."
                    )
                }
            )
        _check_aliases(self.aliases)


def _check_aliases(aliases: Any) -> None:
    if not isinstance(aliases, dict) or not all(
        isinstance(name, str) and name for name in aliases.values()
    ):
        raise ValidationError(
            {
                "aliases": _(
                    'Use a JSON object with strings as values, for example {"gpt-4o": "research"}.'
                )
            }
        )
    if wrong := [
        alias for alias in aliases if not alias or len(alias) > 200 or not alias.isprintable()
    ]:
        raise ValidationError(
            {
                "aliases": gettext(
                    "{id!r} is not a valid model ID. Use 1 to 200 printable characters."
                ).format(id=wrong[0][:50])
            }
        )


class HeadendRequest(models.Model):
    """A request to a headend, with its place in the queue.

    The first ``concurrency`` active places may run, in the order of their rounds and numbers. A
    place is active until it is released, or until its process stops renewing the lease. After that,
    the row is used to answer the same request from the same call.
    """

    headend = models.ForeignKey(Headend, on_delete=models.CASCADE, related_name="requests")
    agent_slug = models.CharField(max_length=63)
    fingerprint = models.CharField(max_length=64, help_text=_("Keyed hash of the question."))
    idempotency_key = models.CharField(max_length=200, blank=True)
    call_id = models.CharField(max_length=32, help_text=_("ID of the call that the request makes."))
    process = models.CharField(max_length=100)
    queue_round = models.PositiveBigIntegerField(
        default=0,
        db_default=0,
        help_text=_("Round in which the request is served. Waiting agents are served in turn."),
    )
    lease_until = models.DateTimeField()
    released_at = models.DateTimeField(null=True, blank=True)
    joinable = models.BooleanField(
        default=False,
        help_text=_("Whether a client that repeats the question gets the answer of this request."),
    )
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["id"]
        indexes = [
            models.Index(
                fields=["headend", "id"], name="headend_queue", condition=Q(released_at=None)
            ),
            models.Index(
                fields=["headend", "agent_slug", "fingerprint"], name="headend_same_request"
            ),
            models.Index(fields=["released_at"], name="headend_released"),
        ]

    def __str__(self) -> str:
        return f"request {self.pk}"
