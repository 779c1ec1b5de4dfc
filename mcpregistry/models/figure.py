"""What worker processes count, kept where the process that is asked for it can read it."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class Figure(models.Model):
    """One counter or gauge with its labels, over all processes; see
    ``services.records.metric_counters``."""

    name = models.CharField(max_length=100)
    labels = models.TextField(help_text=_("JSON object with sorted keys."))
    value = models.FloatField(default=0, db_default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["name", "labels"], name="one_figure_per_labels")
        ]

    def __str__(self) -> str:
        return f"{self.name}{self.labels}"
