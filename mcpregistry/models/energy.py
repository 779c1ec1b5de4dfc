"""Energy: pools that agents draw on, what was drawn, and what calls that are out will draw."""

from __future__ import annotations

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import OuterRef, Q, Subquery, Sum
from django.db.models.functions import Coalesce
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from simple_history.models import HistoricalRecords

from mcpregistry.domain.energy import (
    CostLine,
    EnergyLevel,
    EnergyRates,
    OnEmpty,
    PoolLevel,
    ToolCost,
    classify_level,
)
from mcpregistry.models.server import slug_validator
from mcpregistry.models.signed_books import HEAD_COLUMNS, SignedBook, SignedBookEntry
from mcpregistry.models.tool import Tool
from mcpregistry.models.visibility import VisibleQuerySet

_MOST = 1e9
_AT_LEAST_0 = [MinValueValidator(0), MaxValueValidator(_MOST)]


class LowPolicy(models.TextChoices):
    """What becomes of the background sub-agent's work when the level is critical."""

    AUTO = (
        "auto",
        _(
            "depends on progress: finish work that is at least 80 % done, cancel low-priority work that is "
            "less than 50 % done, and pause all other work"
        ),
    )
    FINISH = "finish", _("finish it")
    PAUSE = "pause", _("pause it until the level has recovered")
    CANCEL = "cancel", _("cancel it")


class EnergyPools(VisibleQuerySet["EnergyPool"]):
    """Pools as pages and programs look for them: an agent sees the one that it draws on."""

    own_by = "agents__slug"

    def with_reserved(self) -> EnergyPools:
        """Each with ``reserved``: what calls that are out are expected to cost."""
        held = EnergyReservation.objects.filter(pool=OuterRef("pk")).order_by().values("pool")
        total = Subquery(held.annotate(total=Sum("amount")).values("total"))
        return self.annotate(reserved=Coalesce(total, 0.0, output_field=models.FloatField()))


class EnergyPool(SignedBook):
    """Energy that refills by itself. One agent draws on it, or several together."""

    BOOK = "energy"

    slug = models.CharField(
        _("short name"), max_length=63, unique=True, validators=[slug_validator]
    )
    description = models.TextField(blank=True)
    capacity = models.FloatField(
        default=100.0, validators=[MinValueValidator(0.001), MaxValueValidator(_MOST)]
    )
    regeneration = models.FloatField(
        default=1.0,
        validators=_AT_LEAST_0,
        help_text=_("Units that are refilled per second, up to the capacity."),
    )
    critical = models.FloatField(
        default=10.0,
        validators=_AT_LEAST_0,
        help_text=_("Below this level, the work of the background sub-agent is reduced."),
    )
    resume = models.FloatField(
        default=30.0,
        validators=_AT_LEAST_0,
        help_text=_("At this level, work that was paused because of low energy continues."),
    )
    low_policy = models.CharField(
        _("sub-agent work at low energy"),
        max_length=8,
        choices=LowPolicy.choices,
        default=LowPolicy.AUTO,
    )
    on_empty = models.CharField(
        _("calls without enough energy"),
        max_length=8,
        default=OnEmpty.DENY.value,
        choices=[
            (OnEmpty.DENY.value, _("are refused; the error states how long to wait")),
            (OnEmpty.WAIT.value, _("wait for energy, then are refused")),
            (OnEmpty.ALLOW.value, _("run anyway; energy is only counted")),
        ],
    )
    max_wait = models.FloatField(
        _("longest wait"),
        default=20.0,
        validators=[MinValueValidator(0), MaxValueValidator(45)],
        help_text=_(
            "Maximum number of seconds that a call waits for energy, up to 45. Default: 20."
        ),
    )
    per_call = models.FloatField(_("energy per call"), default=0.0, validators=_AT_LEAST_0)
    per_second = models.FloatField(
        _("energy per second"),
        default=2.0,
        validators=_AT_LEAST_0,
        help_text=_(
            "Units for each second from when the call is sent until it ends. Waiting for an approval is free."
        ),
    )
    per_kilobyte = models.FloatField(_("energy per KiB"), default=0.0, validators=_AT_LEAST_0)
    per_1000_input = models.FloatField(
        _("per 1,000 input tokens"),
        default=0.5,
        db_default=0.5,
        validators=_AT_LEAST_0,
        help_text=_(
            "Units for 1,000 input tokens of model turns, in runs of expert tools that the agents call."
        ),
    )
    per_1000_cached = models.FloatField(
        _("per 1,000 cached tokens"),
        default=0.05,
        db_default=0.05,
        validators=_AT_LEAST_0,
        help_text=_("Units for 1,000 input tokens that the provider read from its cache."),
    )
    per_1000_output = models.FloatField(
        _("per 1,000 output tokens"), default=2.0, db_default=2.0, validators=_AT_LEAST_0
    )
    level = models.FloatField(default=100.0, editable=False)
    level_at = models.DateTimeField(default=timezone.now, editable=False)

    objects = EnergyPools.as_manager()
    history = HistoricalRecords(excluded_fields=["level", "level_at", *HEAD_COLUMNS])

    class Meta:
        ordering = ["slug"]
        constraints = [
            models.CheckConstraint(
                condition=Q(resume__gte=models.F("critical")), name="energy_resume_above_critical"
            )
        ]

    def __str__(self) -> str:
        return self.slug

    @property
    def stand(self) -> PoolLevel:
        """As it was written last, to be reckoned on from."""
        return PoolLevel(self.level, self.level_at, self.capacity, self.regeneration)

    @property
    def rates(self) -> EnergyRates:
        return EnergyRates(
            self.per_call,
            self.per_second,
            self.per_kilobyte,
            self.per_1000_input,
            self.per_1000_cached,
            self.per_1000_output,
        )

    def word(self, level: float) -> EnergyLevel:
        """How this level is called, for this pool."""
        return classify_level(level, critical=self.critical, resume=self.resume)


class EnergyEntry(SignedBookEntry):
    """One charge or gift. Only ever added; ``reference`` makes sure that nothing is charged
    twice."""

    SIGNED = ("kind", "amount", "before", "after", "agent_slug", "reference", "seconds", "at")

    class Kind(models.TextChoices):
        CALL = "call", _("call")
        CORRECTION = "correction", _("correction of a call")
        TURN = "turn", _("model turn")
        MAINTENANCE = "maintenance", _("background sub-agent")
        GRANT = "grant", _("filled up by a user")
        SETTING = "setting", _("change to the pool")
        CLOCK = "clock", _("clock correction")

    pool = models.ForeignKey(EnergyPool, on_delete=models.CASCADE, related_name="entries")
    kind = models.CharField(max_length=12, choices=Kind.choices)
    amount = models.FloatField(help_text=_("Units that were taken. Negative if units were added."))
    before = models.FloatField()
    after = models.FloatField()
    agent_slug = models.CharField(_("agent"), max_length=63, blank=True)
    reference = models.CharField(
        max_length=80, blank=True, help_text=_("ID of the call, run or request.")
    )
    seconds = models.FloatField(
        null=True,
        blank=True,
        help_text=_(
            "Seconds from when the call is sent until it ends, without its wait for energy."
        ),
    )
    at = models.DateTimeField(_("time"))

    class Meta:
        verbose_name_plural = _("energy entries")
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["pool", "-id"], name="energy_entries_of_pool"),
            models.Index(
                fields=["reference"], condition=Q(kind="call", seconds=None), name="energy_supposed"
            ),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["kind", "reference"], condition=~Q(reference=""), name="energy_charged_once"
            ),
            models.UniqueConstraint(
                fields=["pool", "seq"], condition=Q(seq__gt=0), name="one_energy_entry_per_seq"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.get_kind_display()}, {self.amount:g} units"

    @property
    def subject(self) -> str:
        """The id of the call, run or maintenance request that it was for; empty: of none."""
        return self.reference.partition(":")[0]

    @classmethod
    def of_call(cls, call: str = "pk") -> Subquery:
        """Units that a call has cost, for a query of calls or of rows that name one in ``call``;
        null: nothing."""
        kinds = [cls.Kind.CALL, cls.Kind.CORRECTION]
        rows = cls.objects.filter(
            ~Q(reference=""), kind__in=kinds, reference=OuterRef(call)
        ).order_by()
        sums = rows.values("reference").annotate(sum=models.Sum("amount"))
        return Subquery(sums.values("sum"), output_field=models.FloatField())

    @property
    def overdraft(self) -> float:
        """Units that were not there to be taken."""
        return max(0.0, self.amount - (self.before - self.after))


class EnergyReservation(models.Model):
    """What is out and still to be charged, and what it is expected to cost.

    That of a call goes when the call has ended, in the transaction that charges it; that of a
    model's turn, which has the run's id, with the turn.
    """

    class Kind(models.TextChoices):
        CALL = "call", _("call")
        TURN = "turn", _("model turn")

    pool = models.ForeignKey(EnergyPool, on_delete=models.CASCADE, related_name="reservations")
    kind = models.CharField(
        max_length=4, choices=Kind.choices, default=Kind.CALL, db_default=Kind.CALL.value
    )
    call_id = models.CharField(max_length=32, unique=True)
    agent_slug = models.CharField(max_length=63)
    amount = models.FloatField()
    waited = models.FloatField(
        default=0.0,
        db_default=0.0,
        help_text=_("Seconds that the call waited for energy. They are not part of its duration."),
    )
    made_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.amount:g} for {self.call_id}"


class ToolUsage(models.Model):
    """What the last calls of a tool took, from their records; the clock reckons it anew. Estimates
    are made of it."""

    tool = models.OneToOneField(
        Tool, on_delete=models.CASCADE, related_name="usage", primary_key=True
    )
    calls = models.PositiveIntegerField(
        help_text=_("Number of calls that these figures are based on.")
    )
    seconds = models.FloatField(help_text=_("Average duration in seconds. Newer calls count more."))
    length = models.FloatField(
        help_text=_("Average size of arguments and result in bytes. Newer calls count more.")
    )
    median = models.FloatField(help_text=_("Median duration in seconds."))
    p95 = models.FloatField(
        _("95th percentile"), help_text=_("95th percentile of the duration in seconds.")
    )
    line = models.JSONField(
        null=True,
        blank=True,
        help_text=_(
            "Durations and sizes, grouped by the length of the arguments. Set only if these groups predict a "
            "call better than the average does."
        ),
    )
    counted_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.calls} calls of {self.tool_id}"

    @property
    def usage(self) -> ToolCost:
        """As a value for estimates."""
        line = CostLine(*self.line) if self.line else None
        return ToolCost(self.calls, self.seconds, self.length, self.median, self.p95, line)
