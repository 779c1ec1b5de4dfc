"""Budgets: what an agent or an endpoint may spend in a period, what was spent, and what is out and
will be spent."""

from __future__ import annotations

from decimal import Decimal
from functools import cached_property
from zoneinfo import ZoneInfo

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _
from simple_history.models import HistoricalRecords

from mcpregistry.domain.budgets import (
    CalendarSpan,
    Period,
    Unit,
    convert_limit,
    name_endpoint_payer,
)
from mcpregistry.models.access import Agent, Endpoint
from mcpregistry.models.server import slug_validator
from mcpregistry.models.signed_books import HEAD_COLUMNS, SignedBook, SignedBookEntry
from mcpregistry.models.visibility import VisibleQuerySet

_MARK = [MinValueValidator(Decimal(0)), MaxValueValidator(Decimal("1e12"))]


def check_zone(name: str) -> None:
    """Raises ValidationError for a time zone that this machine does not know."""
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ValidationError(
            _("This time zone is not known. Use a name such as Europe/Oslo, or UTC.")
        ) from error


class Budgets(VisibleQuerySet["Budget"]):
    """Budgets as pages and programs look for them: an agent sees its own."""

    own_by = "agent__slug"


class Budget(SignedBook):
    """A limit of what may be spent in each hour, day, week or month: by calls, and the runs of
    expert tools that they cause.

    Either of one agent, or of one endpoint: then of all that comes by it, whosever it is.
    """

    BOOK = "budget"
    UNITS = [
        (Unit.MONEY.value, _("US dollars")),
        (Unit.TOKENS.value, _("model tokens")),
        (Unit.CALLS.value, _("calls")),
    ]
    PERIODS = [
        (Period.HOUR.value, _("every hour")),
        (Period.DAY.value, _("every day")),
        (Period.WEEK.value, _("every week")),
        (Period.MONTH.value, _("every month")),
    ]

    slug = models.CharField(_("name"), max_length=63, unique=True, validators=[slug_validator])
    description = models.TextField(blank=True)
    agent = models.ForeignKey(
        Agent, null=True, blank=True, on_delete=models.CASCADE, related_name="budgets"
    )
    endpoint = models.ForeignKey(
        Endpoint, null=True, blank=True, on_delete=models.CASCADE, related_name="budgets"
    )
    enabled = models.BooleanField(default=True)
    unit = models.CharField(_("unit"), max_length=8, choices=UNITS, default=Unit.MONEY.value)
    period = models.CharField(_("period"), max_length=8, choices=PERIODS, default=Period.DAY.value)
    soft = models.DecimalField(
        _("soft limit"),
        max_digits=20,
        decimal_places=8,
        null=True,
        blank=True,
        validators=_MARK,
        help_text=_(
            "When this amount is reached, notifications are sent and the agent is warned, once in each "
            "period. For the budget of an endpoint, only the agent that makes the next call is warned. If "
            "empty, there is no warning."
        ),
    )
    hard = models.DecimalField(
        _("hard limit"),
        max_digits=20,
        decimal_places=8,
        null=True,
        blank=True,
        validators=_MARK,
        help_text=_(
            "Calls that would exceed this amount are refused until the period ends. If empty, no call is "
            "refused."
        ),
    )
    time_zone = models.CharField(
        max_length=63,
        default="UTC",
        validators=[check_zone],
        help_text=_(
            "Time zone in which days, weeks (from Monday) and months begin, for example Europe/Oslo."
        ),
    )
    created_at = models.DateTimeField(auto_now_add=True)

    objects = Budgets.as_manager()
    history = HistoricalRecords(excluded_fields=[*HEAD_COLUMNS])

    class Meta:
        ordering = ["agent__slug", "endpoint__slug", "slug"]
        constraints = [
            models.CheckConstraint(
                condition=Q(agent__isnull=False, endpoint__isnull=True)
                | Q(agent__isnull=True, endpoint__isnull=False),
                name="budget_of_agent_or_endpoint",
                violation_error_message=_("Choose either an agent or an endpoint."),
            ),
            models.CheckConstraint(
                condition=Q(soft=None) | Q(hard=None) | Q(soft__lte=F("hard")),
                name="budget_soft_below_hard",
            ),
        ]

    def __str__(self) -> str:
        return self.slug

    @property
    def payer(self) -> str:
        """Whose it is, among those who pay (``domain.budgets``)."""
        if self.agent:
            return self.agent.slug
        return name_endpoint_payer(self.endpoint.slug if self.endpoint else "")

    @property
    def whose(self) -> str:
        """Whose it is, in words."""
        if self.agent:
            return f"agent '{self.agent.slug}'"
        return f"endpoint '{self.endpoint.slug if self.endpoint else ''}'"

    @property
    def counts(self) -> Unit:
        return Unit(self.unit)

    @cached_property
    def zone(self) -> ZoneInfo:
        return ZoneInfo(self.time_zone)

    @property
    def marks(self) -> tuple[int | None, int | None]:
        """(soft, hard) as the books count."""
        return convert_limit(self.soft, self.counts), convert_limit(self.hard, self.counts)


class BudgetPeriod(models.Model):
    """What of a budget was spent in one period. Money in hundred-millionths of a dollar, as in all
    books of budgets."""

    budget = models.ForeignKey(Budget, on_delete=models.CASCADE, related_name="periods")
    start = models.DateTimeField()
    end = models.DateTimeField()
    spent = models.BigIntegerField(default=0)
    soft_told_at = models.DateTimeField(
        null=True, blank=True, help_text=_("When channels were notified of the soft limit.")
    )
    hard_told_at = models.DateTimeField(
        null=True, blank=True, help_text=_("When channels were notified of the hard limit.")
    )
    agent_told = models.BooleanField(
        default=False, help_text=_("Whether the agent was warned about the soft limit.")
    )

    class Meta:
        ordering = ["-start"]
        constraints = [
            models.UniqueConstraint(fields=["budget", "start", "end"], name="one_budget_period")
        ]

    def __str__(self) -> str:
        return f"{self.budget} {self.start:%Y-%m-%d %H:%M}"

    @property
    def span(self) -> CalendarSpan:
        return CalendarSpan(self.start, self.end)


class BudgetEntries(VisibleQuerySet["BudgetEntry"]):
    """Entries as programs look for them: an agent sees those of its budgets."""

    own_by = "budget__agent__slug"


class BudgetEntry(SignedBookEntry):
    """One thing that was spent. Only ever added; ``reference`` makes sure that nothing is spent
    twice."""

    SIGNED = ("kind", "amount", "agent_slug", "reference", "at", "start", "end", "spent")

    class Kind(models.TextChoices):
        CALL = "call", _("call")
        TURN = "turn", _("model turn")
        LOST = "lost", _("model turn whose outcome is unknown")

    budget = models.ForeignKey(Budget, on_delete=models.CASCADE, related_name="entries")
    kind = models.CharField(max_length=8, choices=Kind.choices)
    amount = models.BigIntegerField()
    agent_slug = models.CharField(
        _("agent"), max_length=63, help_text=_("The agent that made the call or started the run.")
    )
    reference = models.CharField(
        max_length=80, help_text=_("ID of the call, or ID of the run and number of its turn.")
    )
    at = models.DateTimeField(_("time"))
    start = models.DateTimeField(null=True, help_text=_("When the period of the entry begins."))
    end = models.DateTimeField(null=True, help_text=_("When the period of the entry ends."))
    spent = models.BigIntegerField(
        default=0, db_default=0, help_text=_("Amount spent in the period, including this entry.")
    )

    objects = BudgetEntries.as_manager()

    class Meta:
        verbose_name_plural = _("budget entries")
        ordering = ["-id"]
        indexes = [models.Index(fields=["budget", "at"], name="budget_entries_by_time")]
        constraints = [
            models.UniqueConstraint(
                fields=["budget", "kind", "reference"], name="budget_spent_once"
            ),
            models.UniqueConstraint(
                fields=["budget", "seq"], condition=Q(seq__gt=0), name="one_budget_entry_per_seq"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.get_kind_display()} of {self.agent_slug}, {self.at:%Y-%m-%d %H:%M}"


class BudgetReservation(models.Model):
    """What a call or turn that is out will spend at most. Goes in the transaction that writes what
    it has spent."""

    budget = models.ForeignKey(Budget, on_delete=models.CASCADE, related_name="reservations")
    kind = models.CharField(max_length=8, choices=BudgetEntry.Kind.choices)
    reference = models.CharField(max_length=80, help_text=_("ID of the call or run."))
    amount = models.BigIntegerField()
    agent_slug = models.CharField(max_length=63)
    made_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["kind", "reference", "budget"], name="budget_reserved_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.amount} for {self.reference}"


class RateLevel(models.Model):
    """What is left of an agent's calls per minute for all processes; see ``domain/rates.py``."""

    agent = models.OneToOneField(
        Agent, on_delete=models.CASCADE, primary_key=True, related_name="+"
    )
    level = models.FloatField()
    at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.level:g} of {self.agent_id}"
