"""What Prometheus reads: parsed with its own client, true to the database, shown to few."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from mcpregistry.models import Figure, Server, ServerEvent
from mcpregistry.services.records import audit
from tests.api.conftest import new_call, new_server, new_tool
from tests.fakes.tampered import seal

HERE = {"Host": "127.0.0.1:8000"}
ELSEWHERE = {"REMOTE_ADDR": "192.0.2.7"}


@pytest.fixture(autouse=True)
def _local(settings) -> None:
    settings.METRICS_LOCAL = True


def scrape(**environ: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    response = Client(headers=HERE).get("/metrics", **environ)
    assert response.status_code == 200
    assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(response.content.decode())
    return {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for family in families
        for s in family.samples
    }


def recent(number: int, **fields: object) -> None:
    new_call(number, received_at=timezone.now() - timedelta(seconds=10), **fields)


@pytest.fixture
def busy(db) -> None:
    new_tool(new_server("echo"))
    new_tool(Server.objects.get(), "changed", approve=False)
    Server.objects.update(lifecycle="active")
    new_server("draft")
    sent = timezone.now()
    for number, duration in enumerate((4.0, 40.0, 400.0)):
        recent(number, duration_ms=duration, dispatched_at=sent)
    recent(10, state="denied")
    recent(11, state="pending", duration_ms=None)
    new_call(12)  # a quarter of an hour ago


def test_figures_are_those_of_the_database(busy):
    seen = scrape()
    calls = "slipsnisse_calls"
    assert seen[calls, (("server", "echo"), ("state", "succeeded"))] == 3
    assert seen[calls, (("server", "echo"), ("state", "denied"))] == 1
    assert seen["slipsnisse_server_up", (("server", "echo"),)] == 1
    assert seen["slipsnisse_server_up", (("server", "draft"),)] == 0
    assert seen["slipsnisse_definitions_waiting", ()] == 1
    assert seen["slipsnisse_calls_held", ()] == 1
    bucket = "slipsnisse_call_duration_seconds_bucket"
    assert [seen[bucket, (("le", limit),)] for limit in ("0.005", "0.05", "0.5", "+Inf")] == [
        1,
        2,
        3,
        3,
    ]


def test_seals_that_a_place_outside_lacks_are_counted(db, settings):
    name = "slipsnisse_audit_seals_lacking"
    assert not [labels for metric, labels in scrape() if metric == name]
    settings.AUDIT_WEBHOOK = "https://hook.example.org/seals"
    before = scrape()[name, (("place", "webhook"),)]
    audit.record_entry(kind="test", actor="ann", subject="x")
    assert seal() is not None
    assert scrape()[name, (("place", "webhook"),)] == before + 1
    assert not Figure.objects.filter(name="audit.webhook").exists(), "a scrape writes nothing"


def test_labels_with_quotes_and_newlines_do_not_break_the_format(db):
    recent(1, server_slug='a"b\\c\nd')
    assert scrape()["slipsnisse_calls", (("server", 'a"b\\c\nd'), ("state", "succeeded"))] == 1


def test_from_elsewhere_only_with_a_token_that_may_see_servers(db, caller):
    assert Client().get("/metrics", **ELSEWHERE).status_code == 401
    for kind, status in (("viewer", 200), ("agent", 403)):
        headers = {"Authorization": f"Bearer {caller(kind).token}"}
        assert Client().get("/metrics", headers=headers, **ELSEWHERE).status_code == status


@pytest.mark.attack
@pytest.mark.parametrize(
    "header",
    [
        "X-Forwarded-For",
        "Forwarded",
        "X-Forwarded-Proto",
        "X-Forwarded-Host",
        "X-Real-IP",
        "Via",
        "X-Client-IP",
    ],
)
def test_what_a_proxy_on_this_machine_passes_on_is_not_local(db, header):
    assert Client().get("/metrics", headers=HERE).status_code == 200
    assert Client().get("/metrics", headers=HERE | {header: "for=192.0.2.7"}).status_code == 401
    assert Client().get("/metrics", headers=HERE | {header: ""}).status_code == 401


@pytest.mark.attack
def test_whoever_is_elsewhere_is_so_under_any_name(db):
    assert Client().get("/metrics", headers={"Host": "localhost"}).status_code == 200
    for host in ("localhost", "127.0.0.1"):
        assert Client().get("/metrics", headers={"Host": host}, **ELSEWHERE).status_code == 401


@pytest.mark.attack
def test_without_the_setting_a_tunnel_on_this_machine_publishes_nothing(db, settings, caller):
    settings.METRICS_LOCAL = False
    assert Client().get("/metrics", headers=HERE).status_code == 401
    headers = HERE | {"Authorization": f"Bearer {caller('viewer').token}"}
    assert Client().get("/metrics", headers=headers).status_code == 200


@pytest.mark.attack
def test_a_name_of_the_outside_is_not_local_though_the_socket_is(db, settings):
    settings.ALLOWED_HOSTS = ["tools.example.org"]
    assert Client().get("/metrics", headers={"Host": "tools.example.org"}).status_code == 401


def test_it_only_reads(db):
    assert Client().post("/metrics").status_code == 405


def test_a_scrape_asks_a_fixed_number_of_questions(busy, django_assert_max_num_queries):
    for number in range(20):
        new_server(f"more-{number}")
    with django_assert_max_num_queries(13):
        scrape()


def test_answers_that_held_secrets_are_counted_by_server(db):
    server = new_server("echo")
    for minutes in (1, 60):
        at = timezone.now() - timedelta(minutes=minutes)
        ServerEvent.objects.create(
            server=server, at=at, kind="secrets", message="Answers held secrets."
        )
    assert scrape()["slipsnisse_secrets_replaced", (("server", "echo"),)] == 1
