"""Providers of language models, and the models with what they hold and cost."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _
from simple_history.models import HistoricalRecords

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.models.sealing import Sealed
from mcpregistry.models.server import slug_validator
from mcpregistry.models.signing import compute_keyed_digest
from mcpregistry.models.tracked import TrackedModel
from subagents.domain.destination import describe_unconfirmed, fingerprint
from subagents.domain.model_options import OptionProblem, normalize_names, not_allowed


def validate_address(text: str) -> None:
    """Accept http or https with a host; one without a dot (``http://ollama:11434``) is as good as
    any other."""
    try:
        parts = urlsplit(text)
        fine = (
            parts.scheme in ("http", "https")
            and parts.hostname
            and (parts.port is None or parts.port > 0)
        )
    except ValueError:
        fine = False
    if not fine or any(letter.isspace() for letter in text):
        raise ValidationError(_("Enter a valid URL, for example https://api.example.org/v1."))
    if parts.username or parts.password:
        raise ValidationError(
            _(
                "The URL contains a user name or password. Enter them as the key or as a header instead."
            )
        )


class ProviderKind(models.TextChoices):
    """Which dialect a provider speaks."""

    OPENAI = "openai", "OpenAI"
    ANTHROPIC = "anthropic", "Anthropic"
    GOOGLE = "google", "Google"
    OPENROUTER = "openrouter", "OpenRouter"
    OLLAMA = "ollama", _("Ollama (native API)")
    COMPATIBLE = "compatible", _("Any server with the chat completions API of OpenAI")
    SCRIPTED = "scripted", _("Scripted: answers from a script, without a model")


class ToolChoice(models.TextChoices):
    """Whether a model is told that it must or may call a tool."""

    AUTO = "auto", _("The model chooses")
    REQUIRED = "required", _("The model must call a tool")


_TEST_FIELDS = ("test_asked_at", "tested_at", "test_model", "test_answer", "test_error", "test_ms")


class Provider(TrackedModel):
    """An account at a provider: where it is, and the key, sealed with the row.

    It is a draft, to which nothing is sent, until somebody has confirmed where its key goes
    (``draft_problem``).
    """

    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    slug = models.CharField(
        _("short name"), max_length=63, unique=True, validators=[slug_validator]
    )
    kind = models.CharField(max_length=12, choices=ProviderKind.choices)
    base_url = models.CharField(
        "base URL",
        max_length=500,
        blank=True,
        validators=[validate_address],
        help_text=_(
            "Address of the provider's API. If empty, the provider's default is used. For Ollama: "
            "http://127.0.0.1:11434."
        ),
    )
    allowed_networks = models.JSONField(
        default=list,
        db_default=[],
        blank=True,
        help_text=_(
            'Private networks in which this provider can be reached, for example ["127.0.0.1/32"]. If empty, '
            "only public addresses are allowed."
        ),
    )
    sealed_key = models.TextField(blank=True, editable=False)
    sealed_headers = models.TextField(blank=True, editable=False)
    options = models.JSONField(
        default=dict,
        blank=True,
        help_text=_(
            'Options for every request, as JSON, for example {"top_p": 0.9} or {"think": true} (Ollama).'
        ),
    )
    tool_choice = models.CharField(max_length=8, blank=True, choices=ToolChoice.choices)
    timeout = models.FloatField(
        default=60,
        validators=[MinValueValidator(1), MaxValueValidator(3600)],
        help_text=_("Seconds until a request times out."),
    )
    enabled = models.BooleanField(default=True)
    confirmed_destination = models.CharField(
        max_length=64, blank=True, default="", db_default="", editable=False
    )
    confirmed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
        editable=False,
    )
    confirmed_at = models.DateTimeField(null=True, blank=True, editable=False)
    test_asked_at = models.DateTimeField(null=True, blank=True, editable=False)
    tested_at = models.DateTimeField(null=True, blank=True, editable=False)
    test_model = models.CharField(max_length=200, blank=True, editable=False)
    test_answer = models.TextField(blank=True, editable=False)
    test_error = models.TextField(blank=True, editable=False)
    test_ms = models.FloatField(null=True, blank=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)

    key = Sealed("sealed_key", str)
    headers = Sealed("sealed_headers", dict)
    history = HistoricalRecords(excluded_fields=["sealed_key", "sealed_headers", *_TEST_FIELDS])

    class Meta:
        ordering = ["slug"]

    def __str__(self) -> str:
        return self.slug

    @property
    def leaves_the_site(self) -> bool:
        """False for the scripted provider in the worker itself, to which no key and no request goes
        over a network."""
        return self.kind != ProviderKind.SCRIPTED or bool(self.base_url)

    def destination_hash(self) -> str:
        """Keyed fingerprint of where its key and requests go. Raises ConfigInvalid where the
        headers no longer open."""
        whole = fingerprint(
            self.kind, self.base_url, self.allowed_networks, self.headers, self.options
        )
        return compute_keyed_digest("destination", whole)

    def draft_problem(self, overrides: Mapping[str, Any] | None = None) -> OptionProblem | None:
        """Why nothing may be sent to it, and what to do about it; None once its destination is the
        confirmed one.

        ``overrides``: of the model that is to be asked, which may hold nothing that is not allowed
        either.
        """
        if wrong := not_allowed(
            self.kind, normalize_names(self.options) | normalize_names(overrides or {})
        ):
            return OptionProblem(
                f'The provider "{self.slug}" is a draft: {wrong.sentence}', wrong.remedy
            )
        try:
            confirmed = (
                not self.leaves_the_site or self.confirmed_destination == self.destination_hash()
            )
        except ConfigInvalid as error:
            return OptionProblem(error.message, error.remedy)
        return None if confirmed else describe_unconfirmed(self.slug)

    @property
    def being_tested(self) -> bool:
        """Somebody has asked for a test that no worker has finished so far."""
        return self.test_asked_at is not None and (
            self.tested_at is None or self.tested_at < self.test_asked_at
        )


def _price() -> models.DecimalField[Decimal | None, Decimal | None]:
    return models.DecimalField(
        max_digits=12, decimal_places=6, null=True, blank=True, validators=[MinValueValidator(0)]
    )


class LanguageModel(TrackedModel):
    """One model at one provider. Prices are US dollars for a million tokens; empty means
    unknown."""

    provider = models.ForeignKey(Provider, on_delete=models.CASCADE, related_name="models")
    name = models.CharField(max_length=200, help_text=_("Name of the model at the provider."))
    context_window = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text=_("Size of the context window in tokens. If empty, 131,072 is assumed."),
    )
    max_output = models.PositiveIntegerField(
        default=4096,
        validators=[MinValueValidator(1)],
        help_text=_("Maximum number of output tokens of a turn."),
    )
    buffer_tokens = models.PositiveIntegerField(
        default=256,
        help_text=_(
            "Number of tokens to keep free in the context window, because token counts are estimates."
        ),
    )
    tokenizer = models.CharField(
        max_length=60,
        blank=True,
        help_text=_(
            "How tokens are counted: tiktoken:o200k_base, tiktoken:cl100k_base or anthropic. If empty, the "
            "method is chosen based on the model's name."
        ),
    )
    input_price = _price()
    output_price = _price()
    cache_read_price = _price()
    cache_write_price = _price()
    free = models.BooleanField(
        default=False,
        help_text=_(
            "Enable this if the model costs nothing. Budgets in US dollars then accept it without prices."
        ),
    )
    prices_from = models.DateField(
        _("date of prices"), null=True, blank=True, help_text=_("Date of these prices.")
    )
    overrides = models.JSONField(
        _("options"),
        default=dict,
        blank=True,
        help_text=_(
            'Options for every request to this model, as JSON, for example {"temperature": 0.2}.'
        ),
    )
    tool_choice = models.CharField(max_length=8, blank=True, choices=ToolChoice.choices)
    enabled = models.BooleanField(default=True)
    compared = models.BooleanField(
        _("callers' model"),
        default=False,
        help_text=_(
            "Enable this for the model that your hosts use. The savings of runs are calculated with its "
            "prices. Only one model can be selected."
        ),
    )

    history = HistoricalRecords()

    class Meta:
        verbose_name = _("model")
        ordering = ["provider__slug", "name"]
        constraints = [
            models.UniqueConstraint(fields=["provider", "name"], name="one_model_per_name"),
            models.UniqueConstraint(
                fields=["compared"],
                condition=Q(compared=True),
                name="one_model_to_compare_with",
                violation_error_message=_(
                    "Another model is marked as the callers' model. First, disable Callers' model on the page of that model."
                ),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.provider.slug}/{self.name}"

    @property
    def priced(self) -> bool:
        """Whether a money budget can be kept with it: it is free, or its prices are known."""
        return self.free or (self.input_price is not None and self.output_price is not None)
