"""``GET /metrics`` for Prometheus, read from the database: right however many processes there are.

Calls are gauges over the last five minutes, not counters: retention removes old records, and a
counter that shrinks would look like a restart. The window also keeps a scrape cheap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from ipaddress import ip_address

from django.conf import settings
from django.db import Error
from django.db.models import Count, Q, Sum
from django.http import HttpRequest, HttpResponse
from django.http.request import split_domain_port
from django.utils import timezone
from django.views.decorators.http import require_safe
from prometheus_client.core import GaugeHistogramMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from mcpregistry.api.auth import bearer, check_allowed
from mcpregistry.api.errors import make_unauthorized, refusal
from mcpregistry.api.permissions import OperationRule
from mcpregistry.database_errors import make_unavailable_error
from mcpregistry.db import stream_rows
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.models import (
    AuditEntry,
    Configuration,
    Connection,
    Delivery,
    Invocation,
    PolicyRule,
    Server,
    ServerEvent,
    ServerTest,
    Tool,
)
from mcpregistry.services.policy.rules import CONDITION_FAILED
from mcpregistry.services.records import metric_counters, remote_sinks

WINDOW = timedelta(minutes=5)
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # seconds
RULE = OperationRule("view_server")
_OF_PROXIES = {
    "Forwarded",
    "Via",
    "X-Real-Ip",
    "X-Client-Ip",
    "X-Original-Host",
    "True-Client-Ip",
    "Cf-Connecting-Ip",
}


@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """For a bearer token whose owner may see servers; where a setting says so, for this machine
    itself as well."""
    try:
        if not (settings.METRICS_LOCAL and _from_this_machine(request)):
            if "Authorization" not in request.headers:
                raise make_unauthorized()
            check_allowed(bearer(request), RULE)
        return HttpResponse(_exposition(), content_type=CONTENT_TYPE_PLAIN_0_0_4)
    except Error as error:
        return refusal(make_unavailable_error(error))
    except SlipsnisseError as error:
        return refusal(error)


def _from_this_machine(request: HttpRequest) -> bool:
    """Directly, that is: what a proxy passes on comes from elsewhere, though its socket is
    local."""
    if any(name.startswith("X-Forwarded-") or name in _OF_PROXIES for name in request.headers):
        return False
    host = split_domain_port(request.get_host())[0].strip("[]")
    return (host == "localhost" or _is_loopback(host)) and _is_loopback(
        request.META.get("REMOTE_ADDR", "")
    )


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False


def _exposition() -> bytes:
    registry = CollectorRegistry()
    registry.register(DatabaseCollector())
    return generate_latest(registry)


class DatabaseCollector(Collector):
    """A collector for ``prometheus_client`` that counts rows at each scrape."""

    def describe(self) -> Iterable[Metric]:
        """Names alone, so that registering it does not query the database."""
        return ()  # so that registering does not query

    def collect(self) -> Iterator[Metric]:
        """Every metric, read now."""
        since = timezone.now() - WINDOW
        yield _read_calls(since)
        yield _read_warnings(since)
        yield _read_durations(since)
        yield from _read_servers(since)
        yield from _read_queues()
        yield _read_conditions(since)
        yield _read_deliveries(since)
        yield _seals()
        yield from metric_counters.read_all_metrics()


def _read_calls(since: datetime) -> Metric:
    family = GaugeMetricFamily(
        "slipsnisse_calls", "Calls received in the last 5 minutes.", labels=["server", "state"]
    )
    rows = Invocation.objects.filter(received_at__gte=since).order_by()
    for server, state, count in rows.values_list("server_slug", "state").annotate(Count("id")):
        family.add_metric([server, state], count)
    return family


def _read_warnings(since: datetime) -> Metric:
    """Results that broke their tool's approved output schema, first of all."""
    name = "slipsnisse_call_warnings"
    words = "Calls in the last 5 minutes whose result was passed on with a warning."
    family = GaugeMetricFamily(name, words, labels=["server"])
    odd = Invocation.objects.filter(received_at__gte=since).exclude(warning="").order_by()
    for server, count in odd.values_list("server_slug").annotate(Count("id")):
        family.add_metric([server], count)
    return family


def _read_durations(since: datetime) -> Metric:
    """Of calls that were sent to servers and ended, from receiving to the end; of none that a
    person was asked about."""
    rows = Invocation.objects.of_servers_alone().filter(
        received_at__gte=since, dispatched_at__isnull=False
    )
    values = stream_rows(rows.order_by().values_list("duration_ms", flat=True))
    seconds = [ms / 1000 for ms in values if ms is not None]
    counts = Counter(
        next((limit for limit in BUCKETS if value <= limit), None) for value in seconds
    )
    total = 0
    buckets = []
    for limit in BUCKETS:
        total += counts[limit]
        buckets.append((str(limit), total))
    return GaugeHistogramMetricFamily(
        "slipsnisse_call_duration_seconds",
        "Durations of calls to servers in the last 5 minutes, without calls that waited for an approval.",
        buckets=[*buckets, ("+Inf", len(seconds))],
        gsum_value=sum(seconds),
    )


def _read_servers(since: datetime) -> Iterator[Metric]:
    up = GaugeMetricFamily(
        "slipsnisse_server_up",
        "1 if the server is active and its checks succeed, otherwise 0.",
        labels=["server"],
    )
    for slug, lifecycle, down_since in Server.objects.values_list(
        "slug", "lifecycle", "unavailable_since"
    ):
        up.add_metric([slug], int(lifecycle == "active" and down_since is None))
    yield up
    open_ = GaugeMetricFamily(
        "slipsnisse_connections", "Connections of all processes to servers.", labels=["state"]
    )
    states: Counter[str] = Counter()
    sessions: Counter[str] = Counter()
    connections = Connection.objects.order_by().values_list("state", "server__slug")
    for state, slug, count, of_their_own in connections.annotate(Count("id"), Sum("sessions")):
        states[state] += count
        sessions[slug] += of_their_own
    for state, count in states.items():
        open_.add_metric([state], count)
    yield open_
    own = GaugeMetricFamily(
        "slipsnisse_server_sessions",
        "Connections of all processes that belong to one agent or host session.",
        labels=["server"],
    )
    for slug, count in (+sessions).items():
        own.add_metric([slug], count)
    yield own
    leaks = GaugeMetricFamily(
        "slipsnisse_secrets_replaced",
        "Reports in the last 5 minutes that answers contained a server's secrets.",
        labels=["server"],
    )
    noted = (
        ServerEvent.objects.filter(kind="secrets", at__gte=since)
        .order_by()
        .values_list("server__slug")
    )
    for slug, count in noted.annotate(Count("id")):
        leaks.add_metric([slug], count)
    yield leaks


def _read_queues() -> Iterator[Metric]:
    waiting = Tool.offers.waiting().count()
    yield GaugeMetricFamily(
        "slipsnisse_definitions_waiting",
        "Tools whose definition waits for an approval.",
        value=waiting,
    )
    held = Invocation.objects.in_state("pending").count()
    yield GaugeMetricFamily("slipsnisse_calls_held", "Calls that wait for an approval.", value=held)
    queued = ServerTest.objects.filter(verdict__in=("queued", "running")).count()
    yield GaugeMetricFamily(
        "slipsnisse_tests_open", "Server tests that are queued or running.", value=queued
    )
    revision = Configuration.load().revision
    yield GaugeMetricFamily(
        "slipsnisse_configuration_revision",
        "Revision of the configuration. It increases with every change.",
        value=revision,
    )


def _read_conditions(since: datetime) -> Metric:
    """Their calls are asked about at least; each process notes a rule at most once a minute."""
    subjects = [f"rule:{pk}" for pk in PolicyRule.objects.live().values_list("pk", flat=True)]
    failed = AuditEntry.objects.filter(subject__in=subjects, kind=CONDITION_FAILED, at__gte=since)
    return GaugeMetricFamily(
        "slipsnisse_policy_conditions_failed",
        "Rules whose condition failed for a call in the last 5 minutes.",
        value=failed.order_by().values("subject").distinct().count(),
    )


def _read_deliveries(since: datetime) -> Metric:
    """What is still owed, and what arrived or was given up within the window."""
    family = GaugeMetricFamily(
        "slipsnisse_notifications",
        "Deliveries to channels: all that wait or are retried, and those that were sent or given up in the last 5 minutes.",
        labels=["channel", "state"],
    )
    recent = Q(next_at__isnull=False) | Q(ended_at__gte=since)
    rows = (
        Delivery.objects.filter(recent)
        .order_by()
        .values_list("channel__name", "state")
        .annotate(Count("id"))
    )
    for channel, state, count in rows:
        family.add_metric([channel, state], count)
    return family


def _seals() -> Metric:
    """Of places that this process's settings name; those of the workers are the same, or the figure
    is of no use."""
    family = GaugeMetricFamily(
        "slipsnisse_audit_seals_lacking",
        "Checkpoints of the audit log that have not reached this place yet.",
        labels=["place"],
    )
    for name, url in remote_sinks.list_configured_sinks():
        family.add_metric([name], remote_sinks.count_undelivered(name, url))
    return family
