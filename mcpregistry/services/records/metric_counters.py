"""Counters and gauges of processes that no Prometheus can ask, the workers: kept in the database,
for ``GET /metrics``.

A worker has no port, there may be many, and they come and go. So a counter is a row that all of
them add to, best in the transaction that does what is counted. Declare each once, at import; a name
ends in ``_total`` only where it is told.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from django.db.models import F

from mcpregistry.models import Figure
from mcpregistry.prepared_queries import Given, Update

if TYPE_CHECKING:  # only the process that serves /metrics loads it
    from prometheus_client.core import Metric


class Counter:
    """Only ever rises. ``labels``: their names, in the order in which they are told."""

    family = "CounterMetricFamily"  # of prometheus_client.core

    def __init__(self, name: str, help: str, labels: Sequence[str]) -> None:
        self.name = name
        self.help = help
        self.labels = tuple(labels)
        _declared.append(self)

    def inc(self, **labels: str) -> None:
        """One more. Call it where the ORM may be used."""
        _write(_ADD, self, labels, by=1.0)

    def build_metric(self, rows: Iterable[tuple[str, float]]) -> Metric:
        """As Prometheus reads it; ``rows``: labels as they are stored, and values."""
        from prometheus_client import core

        family = getattr(core, self.family)(self.name, self.help, labels=self.labels)
        for text, value in rows:
            known = json.loads(text)
            family.add_metric([known.get(label, "") for label in self.labels], value)
        found: Metric = family
        return found


class Gauge(Counter):
    """What was the case last, in whatever process."""

    family = "GaugeMetricFamily"

    def set(self, value: float, **labels: str) -> None:
        """Call it where the ORM may be used."""
        _write(_SET, self, labels, value=value)


_declared: list[Counter] = []
_ROW = Figure.objects.filter(name=Given("name"), labels=Given("labels"))
_ADD = Update(_ROW, value=F("value") + Given("by", like="value"))
_SET = Update(_ROW, "value")


def _write(change: Update, of: Counter, labels: Mapping[str, str], **given: float) -> None:
    assert labels.keys() == set(of.labels), f"{of.name} has the labels {of.labels}"
    key = json.dumps({name: str(labels[name]) for name in sorted(labels)}, ensure_ascii=False)
    if not change(name=of.name, labels=key, **given):
        Figure.objects.get_or_create(name=of.name, labels=key)
        change(name=of.name, labels=key, **given)


def read_all_metrics() -> Iterator[Metric]:
    """Every figure that this process has heard of, in one query."""
    rows = defaultdict[str, list[tuple[str, float]]](list)
    for name, labels, value in Figure.objects.order_by("name", "labels").values_list(
        "name", "labels", "value"
    ):
        rows[name].append((labels, value))
    return (each.build_metric(rows[each.name]) for each in _declared)
