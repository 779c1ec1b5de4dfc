"""What servers offer (tools, prompts), and every definition of it that we have seen; at most one is
approved."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from django.conf import settings
from django.core.validators import MaxLengthValidator, MinValueValidator, RegexValidator
from django.db import models
from django.utils.translation import gettext_lazy as _
from simple_history.models import HistoricalRecords

from mcpregistry.domain import offer_kinds
from mcpregistry.domain.definitions.findings import ScanFinding, Severity
from mcpregistry.domain.definitions.naming import map_exposed_names, map_offer_names
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models.server import Server
from mcpregistry.models.tracked import TrackedModel


def _find_readings(
    name: str, offers: Sequence[tuple[int, str, str, str]], styles: Sequence[str]
) -> Iterator[list[int]]:
    """The keys of what the name may mean, the likeliest reading first; each offer is (key, server,
    name, own name)."""
    for style in styles:
        shown = map_offer_names(offer_kinds.TOOL, (offer[1:] for offer in offers), style)
        yield [pk for pk, slug, tool, _ in offers if shown[slug, tool] == name]
    for style in styles:
        plain = map_exposed_names((offer[1:3] for offer in offers), style)
        yield [pk for pk, slug, tool, _ in offers if plain[slug, tool] == name]
    yield [pk for pk, _, tool, own in offers if name in (tool, own)]
    # two that take each other's name have it all the same where an agent sees only one of them
    for style in styles:
        alone = (
            (pk, map_exposed_names([(slug, own or tool)], style)) for pk, slug, tool, own in offers
        )
        yield [pk for pk, names in alone if name in names.values()]


class ToolQuerySet(models.QuerySet["Tool"]):
    """What is offered, by how its definition was decided on."""

    def of_record(self, server: str, text: str) -> ToolQuerySet:
        """The one that records and references name by its server's slug and by its own name with
        its kind."""
        kind, name = offer_kinds.parse_offer_key(text)
        return self.filter(server__slug=server, kind=kind, name=name)

    def find_by_name(self, name: str) -> Tool | None:
        """The one that the name means (see ``match_name``), if it is one."""
        found = self.match_name(name)
        return found[0] if len(found) == 1 else None

    def match_name(self, name: str, styles: Sequence[str] = ("double",)) -> list[Tool]:
        """By any of its spellings; more than one where it cannot be told which is meant, empty for
        none.

        ``server::tool`` (``server::prompt:name``); of tools also the name that hosts use in one of
        the ``styles``, the first that knows it, the same with the server's own name for it, and the
        bare name. Names are looked up whole, never split.
        """
        slug, separator, own = name.partition("::")  # a server's slug holds no colon
        if separator:
            return [*self.of_record(slug, own)]
        offers = list(
            self.filter(kind=offer_kinds.TOOL)
            .order_by()
            .values_list("pk", "server__slug", "name", "own_name")
        )
        found = next(filter(None, _find_readings(name, offers, styles)), [])
        return [*self.filter(pk__in=found)]

    def filter_approved(self) -> ToolQuerySet:
        """Some version of the definition was approved; the server may say something else by now."""
        return self.filter(pinned__isnull=False)

    def serving(self) -> ToolQuerySet:
        """Tools whose server says now exactly what was approved; only these can be called."""
        return self.filter(present=True, pinned__isnull=False, latest=models.F("pinned"))

    def waiting(self) -> ToolQuerySet:
        """Tools with a new or changed definition that nobody has decided on: the inbox."""
        return self.filter(
            present=True, latest__isnull=False, latest__decided_at__isnull=True
        ).exclude(latest=models.F("pinned"))


class Tools(models.Manager["Tool"].from_queryset(ToolQuerySet)):  # type: ignore[misc]
    """Tools alone."""

    def get_queryset(self) -> ToolQuerySet:
        """Without whatever else is offered."""
        found: ToolQuerySet = super().get_queryset().filter(kind=offer_kinds.TOOL)
        return found


class Tool(TrackedModel):
    """One tool, or one prompt (``kind``), that a server offers. It is served only while what the
    server says now is what was approved.

    ``Tool.objects`` are the tools alone: whoever does not think of other kinds meets none.
    ``Tool.offers`` is everything.
    """

    class Kind(models.TextChoices):
        TOOL = offer_kinds.TOOL, _("tool")
        PROMPT = offer_kinds.PROMPT, _("prompt")
        RESOURCE = offer_kinds.RESOURCE, _("resource")
        TEMPLATE = offer_kinds.TEMPLATE, _("template")

    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="tools")
    kind = models.CharField(
        max_length=10,
        choices=Kind.choices,
        default=Kind.TOOL,
        db_default=offer_kinds.TOOL,
        editable=False,
    )
    name = models.CharField(max_length=500, help_text=_("Name of the tool on its server."))
    enabled = models.BooleanField(
        default=True,
        help_text=_("If disabled, the tool is hidden from every agent, even if it is granted."),
    )
    idempotent = models.BooleanField(
        default=False,
        help_text=_(
            "Enable this if a second call with the same arguments has no further effect. A failed call may "
            "then be sent again."
        ),
    )
    call_energy = models.FloatField(
        _("energy of a call"),
        null=True,
        blank=True,
        validators=[MinValueValidator(0)],
        help_text=_(
            "Estimated energy units of one call. They count against the budgets of agents and expert tools. "
            "If empty, the energy is estimated from past calls."
        ),
    )
    call_cost = models.DecimalField(
        _("cost of a call"),
        max_digits=10,
        decimal_places=6,
        null=True,
        blank=True,
        validators=[MinValueValidator(0)],
        help_text=_(
            "Estimated price of one call in US dollars, as charged by the service behind the tool. If empty, "
            "calls have no price."
        ),
    )
    own_name = models.CharField(
        _("name for hosts"),
        max_length=64,
        blank=True,
        default="",
        db_default="",
        validators=[RegexValidator(r"^[A-Za-z0-9_-]+$", _("Use only letters, digits, _ and -."))],
        help_text=_(
            "Name that hosts see instead of the server's name for the tool. Grants and rules are not affected. "
            "If empty, the server's name is used."
        ),
    )
    own_description = models.TextField(
        _("description for hosts"),
        blank=True,
        default="",
        db_default="",
        validators=[MaxLengthValidator(10_000)],
        help_text=_(
            "Description that hosts see instead of the approved one, for example a shorter one. If the server "
            "changes its own description, the tool must still be approved again. If empty, the approved description is "
            "used."
        ),
    )
    # What an operator has confirmed of the server's claims; None: nothing, so the worst is assumed.
    read_only = models.BooleanField(
        null=True, blank=True, help_text=_("Whether the tool changes nothing anywhere.")
    )
    destructive = models.BooleanField(
        null=True, blank=True, help_text=_("Whether the tool may delete or overwrite data.")
    )
    open_world = models.BooleanField(
        null=True,
        blank=True,
        help_text=_("Whether the tool reaches systems outside of its server."),
    )
    pinned = models.ForeignKey(
        "Definition",
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        editable=False,
        verbose_name=_("approved definition"),
    )
    latest = models.ForeignKey(
        "Definition",
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        editable=False,
    )
    present = models.BooleanField(
        default=True,
        editable=False,
        help_text=_("Whether the server listed the tool when its tools were last read."),
    )
    first_seen_at = models.DateTimeField(editable=False)
    last_seen_at = models.DateTimeField(editable=False)

    offers = ToolQuerySet.as_manager()
    objects = Tools()
    history = HistoricalRecords(excluded_fields=["last_seen_at"])

    class Meta:
        ordering = ["server__slug", "name"]
        constraints = [
            models.UniqueConstraint(
                fields=["server", "kind", "name"], name="one_tool_per_kind_and_name"
            )
        ]
        permissions = [("approve_definition", "Can approve and reject tool definitions")]

    def __str__(self) -> str:
        return f"{self.server.slug}::{show_invisible_characters(self.key)}"

    @property
    def key(self) -> str:
        """Its name with its kind, as records have it."""
        return offer_kinds.spell_offer_key(self.kind, self.name)

    @property
    def status(self) -> str:
        """One word for lists: gone, approved, changed, rejected or quarantined. Only approved ones
        serve."""
        if not self.present:
            return "gone"
        if self.pinned_id and self.pinned_id == self.latest_id:
            return "approved"
        if self.latest is not None and self.latest.decided_at and not self.latest.approved:
            return "rejected"
        return "changed" if self.pinned_id else "quarantined"


def decode_definition(body: str) -> dict[str, Any]:
    """A definition's stored text as what its server said; for who has the text of thousands and no
    rows of them."""
    try:
        found: dict[str, Any] = msgspec.json.decode(body)
    except msgspec.DecodeError:  # a lone surrogate, which only the standard library reads
        found = json.loads(body)
    return found


class Definition(models.Model):
    """One version of a tool or prompt as the server described it; content never changes.

    ``body`` is canonical JSON text, not a JSON column: PostgreSQL refuses NUL and lone surrogates.
    """

    tool = models.ForeignKey(Tool, on_delete=models.CASCADE, related_name="definitions")
    hash = models.CharField(
        max_length=64, help_text=_("SHA-256 over every field that a model can see.")
    )
    body = models.TextField()
    seen_at = models.DateTimeField()
    decided_at = models.DateTimeField(null=True, blank=True)
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    approved = models.BooleanField(default=False)
    # What the scanner found, for people to weigh; it decides nothing.
    scanner = models.PositiveSmallIntegerField(
        default=0,
        editable=False,
        help_text=_(
            "Version of the scanner that checked the definition. 0 if the definition was not checked."
        ),
    )
    severity = models.PositiveSmallIntegerField(
        default=0, editable=False, help_text=_("Severity of the worst finding, from 0 to 3.")
    )
    findings_json = models.TextField(default="[]", editable=False)

    class Meta:
        ordering = ["-seen_at", "-id"]
        constraints = [
            models.UniqueConstraint(fields=["tool", "hash"], name="one_definition_per_hash")
        ]

    def __str__(self) -> str:
        return f"{self.tool} {self.hash[:12]}"

    @property
    def data(self) -> dict[str, Any]:
        return decode_definition(self.body)

    @property
    def findings(self) -> list[ScanFinding]:
        """Worst first, as of the time it was scanned."""
        return [
            ScanFinding(
                row["kind"], Severity(row["severity"]), row["where"], row["excerpt"], row["why"]
            )
            for row in json.loads(self.findings_json)
        ]

    @property
    def description(self) -> str:
        return str(self.data.get("description") or "")
