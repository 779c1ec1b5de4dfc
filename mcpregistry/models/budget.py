"""Budgets: what an agent or an endpoint may spend in a period, what was spent, and what is out and will be spent."""

from __future__ import annotations

from decimal import Decimal
from functools import cached_property
from zoneinfo import ZoneInfo

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import F, Q
from simple_history.models import HistoricalRecords

from mcpregistry.domain.budgets import Period, Span, Unit, counted, of_endpoint
from mcpregistry.models.access import Agent, Endpoint
from mcpregistry.models.server import slug_validator
from mcpregistry.models.tracked import TrackedModel
from mcpregistry.models.visibility import VisibleQuerySet

_MARK = [MinValueValidator(Decimal(0)), MaxValueValidator(Decimal("1e12"))]


def check_zone(name: str) -> None:
    """Raises ValidationError for a time zone that this machine does not know."""
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ValidationError("There is no such time zone here. Write it as in Europe/Oslo, or UTC.") from error


class Budgets(VisibleQuerySet["Budget"]):
    """Budgets as pages and programs look for them: an agent sees its own."""

    own_by = "agent__slug"


class Budget(TrackedModel):
    """A limit of what may be spent in each hour, day, week or month: by calls, and the runs of expert tools that they cause.

    Either of one agent, or of one endpoint: then of all that comes by it, whosever it is.
    """

    UNITS = [(Unit.MONEY.value, "US dollars"), (Unit.TOKENS.value, "tokens of models"), (Unit.CALLS.value, "calls")]
    PERIODS = [(each.value, f"each {each.value}") for each in Period]

    slug = models.CharField("name", max_length=63, unique=True, validators=[slug_validator])
    description = models.TextField(blank=True)
    agent = models.ForeignKey(Agent, null=True, blank=True, on_delete=models.CASCADE, related_name="budgets")
    endpoint = models.ForeignKey(Endpoint, null=True, blank=True, on_delete=models.CASCADE, related_name="budgets")
    enabled = models.BooleanField(default=True)
    unit = models.CharField("counts", max_length=8, choices=UNITS, default=Unit.MONEY.value)
    period = models.CharField("resets", max_length=8, choices=PERIODS, default=Period.DAY.value)
    soft = models.DecimalField(
        "soft limit", max_digits=20, decimal_places=8, null=True, blank=True, validators=_MARK,
        help_text="When this amount is reached, notifications are sent and the agent is warned, once in each period. "
        "For the budget of an endpoint, only the next calling agent is warned. If empty, there is no warning.",
    )  # fmt: skip
    hard = models.DecimalField(
        "hard limit", max_digits=20, decimal_places=8, null=True, blank=True, validators=_MARK,
        help_text="Calls that would exceed this amount are refused until the period ends. If empty, no call is "
        "refused.",
    )  # fmt: skip
    time_zone = models.CharField(
        max_length=63, default="UTC", validators=[check_zone],
        help_text="Time zone in which days, weeks (from Monday) and months begin, for example Europe/Oslo.",
    )  # fmt: skip
    created_at = models.DateTimeField(auto_now_add=True)

    objects = Budgets.as_manager()
    history = HistoricalRecords()

    class Meta:
        ordering = ["agent__slug", "endpoint__slug", "slug"]
        constraints = [
            models.CheckConstraint(
                condition=Q(agent__isnull=False, endpoint__isnull=True) | Q(agent__isnull=True, endpoint__isnull=False),
                name="budget_of_agent_or_endpoint",
                violation_error_message="Choose either an agent or an endpoint.",
            ),
            models.CheckConstraint(
                condition=Q(soft=None) | Q(hard=None) | Q(soft__lte=F("hard")), name="budget_soft_below_hard"
            ),
        ]

    def __str__(self) -> str:
        return self.slug

    @property
    def payer(self) -> str:
        """Whose it is, among those who pay (``domain.budgets``)."""
        return self.agent.slug if self.agent else of_endpoint(self.endpoint.slug if self.endpoint else "")

    @property
    def whose(self) -> str:
        """Whose it is, in words."""
        return (
            f"agent '{self.agent.slug}'" if self.agent else f"endpoint '{self.endpoint.slug if self.endpoint else ''}'"
        )

    @property
    def counts(self) -> Unit:
        return Unit(self.unit)

    @cached_property
    def zone(self) -> ZoneInfo:
        return ZoneInfo(self.time_zone)

    @property
    def marks(self) -> tuple[int | None, int | None]:
        """(soft, hard) as the books count."""
        return counted(self.soft, self.counts), counted(self.hard, self.counts)


class BudgetPeriod(models.Model):
    """What of a budget was spent in one period. Money in hundred-millionths of a dollar, as in all books of budgets."""

    budget = models.ForeignKey(Budget, on_delete=models.CASCADE, related_name="periods")
    start = models.DateTimeField()
    end = models.DateTimeField()
    spent = models.BigIntegerField(default=0)
    soft_told_at = models.DateTimeField(null=True, blank=True, help_text="When channels were told of the soft limit.")
    hard_told_at = models.DateTimeField(null=True, blank=True, help_text="The same of the hard limit.")
    agent_told = models.BooleanField(default=False, help_text="Whether the agent was told of the soft limit.")

    class Meta:
        ordering = ["-start"]
        constraints = [models.UniqueConstraint(fields=["budget", "start", "end"], name="one_budget_period")]

    def __str__(self) -> str:
        return f"{self.budget} {self.start:%Y-%m-%d %H:%M}"

    @property
    def span(self) -> Span:
        return Span(self.start, self.end)


class BudgetEntries(VisibleQuerySet["BudgetEntry"]):
    """Entries as programs look for them: an agent sees those of its budgets."""

    own_by = "budget__agent__slug"


class BudgetEntry(models.Model):
    """One thing that was spent. Only ever added; ``reference`` makes sure that nothing is spent twice."""

    class Kind(models.TextChoices):
        CALL = "call", "call"
        TURN = "turn", "turn of a model"
        LOST = "lost", "turn whose end is not known"

    budget = models.ForeignKey(Budget, on_delete=models.CASCADE, related_name="entries")
    kind = models.CharField(max_length=8, choices=Kind.choices)
    amount = models.BigIntegerField()
    agent_slug = models.CharField("by", max_length=63, help_text="The agent that made the call or started the run.")
    reference = models.CharField(max_length=80, help_text="Id of the call, or of the run with the number of its turn.")
    at = models.DateTimeField()

    objects = BudgetEntries.as_manager()

    class Meta:
        verbose_name_plural = "budget entries"
        ordering = ["-id"]
        indexes = [models.Index(fields=["budget", "at"], name="budget_entries_by_time")]
        constraints = [models.UniqueConstraint(fields=["budget", "kind", "reference"], name="budget_spent_once")]

    def __str__(self) -> str:
        return f"{self.get_kind_display()} of {self.agent_slug}, {self.at:%Y-%m-%d %H:%M}"


class BudgetReservation(models.Model):
    """What a call or turn that is out will spend at most. Goes in the transaction that writes what it has spent."""

    budget = models.ForeignKey(Budget, on_delete=models.CASCADE, related_name="reservations")
    kind = models.CharField(max_length=8, choices=BudgetEntry.Kind.choices)
    reference = models.CharField(max_length=80, help_text="The call, or the run.")
    amount = models.BigIntegerField()
    agent_slug = models.CharField(max_length=63)
    made_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["kind", "reference", "budget"], name="budget_reserved_once")]

    def __str__(self) -> str:
        return f"{self.amount} for {self.reference}"


class RateLevel(models.Model):
    """What is left of an agent's calls per minute for all processes; see ``domain/rates.py``."""

    agent = models.OneToOneField(Agent, on_delete=models.CASCADE, primary_key=True, related_name="+")
    level = models.FloatField()
    at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.level:g} of {self.agent_id}"
