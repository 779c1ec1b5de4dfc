"""What calls come to by the hour and by the day, so that no page goes through the calls of weeks.

The clock makes these rows of the record (``services.records.call_hours``), and makes a span anew
when its calls changed.
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from mcpregistry.domain.usage import BUCKETS


class SpanLength(models.IntegerChoices):
    """How long a span is, in hours."""

    HOUR = 1, "hour"
    DAY = 24, "day"


class CountedSpan(models.Model):
    """An hour that was counted, however few calls came; or a day whose hours were added up.

    A day has a row only while it agrees with its hours: whoever replaces one of them deletes it in
    the same transaction.
    """

    span = models.PositiveSmallIntegerField(choices=SpanLength.choices)
    begins = models.DateTimeField(help_text=_("Start of the hour or day, in UTC."))
    calls = models.PositiveIntegerField(default=0)
    errors = models.PositiveIntegerField(default=0)
    unsettled = models.PositiveIntegerField(
        default=0, help_text=_("Calls whose end was not known when they were counted.")
    )
    again = models.BooleanField(
        default=False,
        help_text=_(
            "Whether the period is being counted again, because the clock was set back to a time before the "
            "period."
        ),
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["span", "begins"], name="one_row_per_counted_span")
        ]

    def __str__(self) -> str:
        return f"{self.calls} calls at {self.begins:%Y-%m-%d %H}"


class SpanUsage(models.Model):
    """Calls of one agent, by one endpoint, of one tool, in an hour or a day. Names are copied, as
    those of a call."""

    span = models.PositiveSmallIntegerField(choices=SpanLength.choices)
    begins = models.DateTimeField(help_text=_("Start of the hour or day, in UTC."))
    agent_slug = models.CharField(_("agent"), max_length=63, blank=True)
    endpoint_slug = models.CharField(_("endpoint"), max_length=63, blank=True)
    server_slug = models.CharField(
        _("server"), max_length=63, blank=True, help_text=_("Empty if no server has the tool.")
    )
    tool_name = models.CharField(_("tool"), max_length=500, blank=True)
    calls = models.PositiveIntegerField()
    errors = models.PositiveIntegerField()
    refused = models.PositiveIntegerField()
    sent = models.PositiveIntegerField()
    size = models.BigIntegerField(help_text=_("Number of characters in the results of sent calls."))
    cost = models.BigIntegerField(
        null=True,
        help_text=_("Cost in hundred-millionths of a US dollar, of the calls whose cost is known."),
    )
    codes = models.JSONField(default=dict, help_text=_("Number of failures by error code."))
    last = models.DateTimeField(help_text=_("Time of the last call."))

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=[
                    "span",
                    "begins",
                    "agent_slug",
                    "endpoint_slug",
                    "server_slug",
                    "tool_name",
                ],
                name="one_usage_per_span_and_key",
            )
        ]

    def __str__(self) -> str:
        return f"{self.calls} calls of {self.server_slug} at {self.begins:%Y-%m-%d %H}"


# Columns, not one value: so the database itself adds up what lies in each bucket, over any rows.
TOOK = tuple(f"took_{bucket:02}" for bucket in range(BUCKETS))
for _name in TOOK:
    SpanUsage.add_to_class(_name, models.PositiveIntegerField(default=0))


class SpanFailure(models.Model):
    """Failures of one hour that are alike. Words of tools stand in it, so it goes with the payloads
    of calls."""

    begins = models.DateTimeField(help_text=_("Start of the hour, in UTC."))
    server_slug = models.CharField(_("server"), max_length=63, blank=True)
    tool_name = models.CharField(_("tool"), max_length=500, blank=True)
    code = models.CharField(max_length=40)
    shape = models.CharField(
        max_length=200, help_text=_("Error text without the parts that differ between calls.")
    )
    count = models.PositiveIntegerField()
    first = models.DateTimeField()
    last = models.DateTimeField()
    examples = models.JSONField(
        default=list, help_text=_("Newest of these calls, each as [time, id].")
    )

    class Meta:
        indexes = [models.Index(fields=["begins"], name="failure_by_hour")]

    def __str__(self) -> str:
        return f"{self.count} times {self.code} of {self.server_slug} at {self.begins:%Y-%m-%d %H}"


class UsageSums(models.Model):
    """Sums of a day, or of a period with the one before it, in one value (``domain.usage_sums``),
    so that a page reads one row.

    They are made of the rows above, and hold only while hours, calls, errors and unsettled calls of
    the hours from ``begins`` to ``until`` are still as many as stand here: whoever counts an hour
    anew need not know of them.
    """

    name = models.CharField(
        max_length=40, help_text=_("Which values are summed, and for which period.")
    )
    begins = models.DateTimeField(help_text=_("Start of the period, in UTC."))
    until = models.DateTimeField(help_text=_("End of the period, in UTC."))
    hours = models.PositiveIntegerField()
    calls = models.PositiveBigIntegerField()
    errors = models.PositiveBigIntegerField()
    unsettled = models.PositiveBigIntegerField()
    body = models.TextField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["name", "begins", "until"], name="one_row_per_sums")
        ]

    def __str__(self) -> str:
        return f"{self.name} until {self.until:%Y-%m-%d %H}"
