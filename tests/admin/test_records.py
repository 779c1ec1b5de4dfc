"""Calls, the audit log, histories and the overview."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib import admin
from django.urls import reverse
from django.utils import timezone

from mcpregistry.models import AuditArchive, AuditEntry, EnergyEntry, EnergyPool, Invocation, Server
from mcpregistry.models.sealing import Sealed
from mcpregistry.queries import calls
from mcpregistry.services.access.roles import ROLES
from mcpregistry.services.records import archiving, audit, verification
from mcpregistry.services.servers import lifecycle
from subagents.models import Provider
from tests.admin.conftest import ClientOf
from tests.fakes.seed import ACTOR, CONVERSATION, Site
from tests.fakes.tampered import process_wrote, seal, sealed_anew, unguarded
from tests.fakes.woken import listened_to

pytestmark = pytest.mark.usefixtures("contexts")

CALLS = "/admin/mcpregistry/invocation/"


def call_page(call: Invocation) -> str:
    return reverse("admin:mcpregistry_invocation_change", args=[call.pk])


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize(
    "query",
    [
        "state__exact=succeeded",
        "server=git",
        "agent=local",
        "origin=http",
        "period=hour",
        f"conversation={CONVERSATION}",
    ],
)
def test_calls_are_filtered(client_of: ClientOf, site: Site, query: str) -> None:
    name, _, value = query.partition("=")
    since = timezone.now() - timedelta(hours=1)
    field = {"server": "server_slug", "agent": "agent_slug", "state__exact": "state"}.get(
        name, name
    )
    wanted = {"received_at__gte": since} if name == "period" else {field: value}
    answer = client_of("viewer").get(f"{CALLS}?{query}")
    assert answer.context["cl"].result_count == Invocation.objects.filter(**wanted).count() > 0


def test_a_call_is_found_by_its_id(client_of: ClientOf, site: Site) -> None:
    call = Invocation.objects.all()[3]
    answer = client_of("viewer").get(f"{CALLS}?q={call.pk}")
    assert [found.pk for found in answer.context["cl"].result_list] == [call.pk]


def test_a_calls_page_shows_payloads_times_and_its_audit_entries(
    client_of: ClientOf, site: Site
) -> None:
    call = Invocation.objects.get(pk=f"{0:032x}")
    html = client_of("viewer").get(call_page(call)).content.decode()
    for told in ("&quot;number 0&quot;", "Result 0", "call.sent", "call.ended", "claude-code"):
        assert told in html, told
    assert "Show all" not in html


def test_a_long_result_is_cut_until_all_of_it_is_wanted(client_of: ClientOf, site: Site) -> None:
    call = Invocation.objects.create(
        id="long",
        state="succeeded",
        agent_slug="local",
        tool_name="t",
        exposed_name="t",
        origin="http",
        writer="w",
        received_at=timezone.now(),
        result=json.dumps({"text": "x" * 9_000 + "END"}),
        arguments="{}",
    )
    client = client_of("viewer")
    short = client.get(call_page(call)).content.decode()
    assert "more characters)" in short
    assert "Show all" in short
    assert "xEND" not in short
    assert "xEND" in client.get(call_page(call) + "?all=1").content.decode()


@pytest.mark.exhaustive(one_in=6)
@pytest.mark.attack
@pytest.mark.parametrize(
    "payload",
    ['"\\ud800"', "[" * 50_000, "9" * 6_000, '"\u202e\x1b[2J"', "not json \x00"[:8], '{"a": NaN}'],
)
def test_odd_payloads_are_shown_without_failing(
    client_of: ClientOf, site: Site, payload: str
) -> None:
    call = Invocation.objects.create(
        id="odd",
        state="succeeded",
        agent_slug="a\u202eb",
        tool_name="t\u200b",
        exposed_name="t\u200b",
        origin="http",
        writer="w",
        received_at=timezone.now(),
        result=payload,
        arguments=payload,
    )
    client = client_of("viewer")
    for page in (call_page(call), call_page(call) + "?all=1", CALLS, reverse("admin:index")):
        answer = client.get(page)
        assert answer.status_code == 200
        html = answer.content.decode()
        assert not any(hidden in html for hidden in ("\u202e", "\u200b", "\x1b"))


# The audit log


VERIFY = "admin:mcpregistry_auditentry_verify"


def report_of(client_of: ClientOf) -> str:
    """The page after a worker has verified the log."""
    verification.verify_log(timezone.now(), full=True)
    return client_of("viewer").get(reverse(VERIFY)).content.decode()


def test_an_intact_log_is_said_to_hold(client_of: ClientOf, site: Site) -> None:
    assert "No verification yet" in client_of("viewer").get(reverse(VERIFY)).content.decode()
    sealed_anew()
    html = report_of(client_of)
    assert "intact" in html
    assert "broken" not in html


@pytest.mark.exhaustive
def test_files_of_archived_entries_are_shown_with_their_digests(
    client_of: ClientOf, site: Site, tmp_path: Path
) -> None:
    sealed_anew()
    process_wrote("web:1", 5, minutes_ago=200 * 24 * 60)
    assert seal() is not None
    (file,) = archiving.archive_entries(timezone.now(), timedelta(days=90), tmp_path, str).files
    html = report_of(client_of)
    for shown in (
        "intact",
        "4 entries of 1 chain are in archives",
        file.name,
        AuditArchive.objects.get().digest,
    ):
        assert shown in html


def test_a_worker_verifies_not_a_request(
    client_of: ClientOf, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = listened_to(monkeypatch)
    answer = client_of("viewer").post(reverse(VERIFY), follow=True).content.decode()
    assert sent == [("verify_audit", ())]
    assert "A worker is verifying the audit log" in answer


def tamper(**columns: object) -> AuditEntry:
    """Change a row behind the guards' back, as somebody with the database file could."""
    entry = AuditEntry.objects.get(writer=audit.CHAIN, seq=5)
    with unguarded():
        AuditEntry.objects.filter(pk=entry.pk).update(**columns)
    return entry


@pytest.mark.exhaustive(one_in=9)
@pytest.mark.attack
@pytest.mark.parametrize(
    ("columns", "seq"),
    [
        ({"body": '{"seq":5}'}, 5),
        ({"actor": "user:nobody"}, 5),
        ({"kind": "x"}, 5),
        ({"subject": "x"}, 5),
        ({"hash": "0" * 64}, 5),
        ({"prev": "0" * 64}, 5),
        ({"seq": 5_000}, 6),
        ({"writer": "other"}, 6),
        ({"at": timezone.now() + timedelta(days=1)}, 5),
    ],
)
def test_the_first_entry_that_was_changed_is_named(
    client_of: ClientOf, site: Site, columns: dict[str, object], seq: int
) -> None:
    tamper(**columns)
    assert f"{audit.CHAIN} #{seq}:" in report_of(client_of)


@pytest.mark.attack
def test_a_removed_entry_breaks_the_chain_and_a_changed_one_is_marked(
    client_of: ClientOf, site: Site
) -> None:
    entry = tamper(body="{}")
    page = reverse("admin:mcpregistry_auditentry_change", args=[entry.pk])
    assert "differs from the one that was written" in client_of("viewer").get(page).content.decode()
    with unguarded():
        AuditEntry.objects.filter(pk=entry.pk)._raw_delete("default")
    assert f"{audit.CHAIN} #6: the entries before it are missing, from number 5 on" in report_of(
        client_of
    )


def test_the_log_is_searched_by_subject(client_of: ClientOf, site: Site) -> None:
    answer = client_of("viewer").get("/admin/mcpregistry/auditentry/?q=server:browser")
    assert {entry.kind for entry in answer.context["cl"].result_list} == {"server.created"}


# History


def test_a_history_names_fields_and_keeps_secrets(client_of: ClientOf, site: Site) -> None:
    git = Server.objects.get(slug="git")
    git.description = "Other words"
    git.env = {"GIT_TOKEN": "fresh-canary"}
    lifecycle.save_server(server=git, actor=ACTOR)
    html = (
        client_of("viewer")
        .get(reverse("admin:mcpregistry_server_history", args=[git.pk]))
        .content.decode()
    )
    assert "Other words" in html
    assert "<strong>env</strong>" in html
    assert "fresh-canary" not in html
    assert git.sealed_env not in html


def test_percentiles_are_those_of_the_last_day(site: Site) -> None:
    Invocation.objects.all().delete()
    now = timezone.now()
    for number in range(100):
        Invocation.objects.create(
            id=str(number),
            state="succeeded" if number else "unknown",
            agent_slug="a",
            server_slug="git",
            tool_name="t",
            exposed_name="t",
            origin="http",
            writer="w",
            received_at=now,
            duration_ms=float(number + 1),
        )
    Invocation.objects.create(
        id="old",
        state="unknown",
        agent_slug="a",
        server_slug="git",
        tool_name="t",
        exposed_name="t",
        origin="http",
        writer="w",
        received_at=now - timedelta(hours=25),
        duration_ms=1e9,
    )
    Invocation.objects.create(
        id="held",
        state="succeeded",
        outcome="ask",
        agent_slug="a",
        server_slug="time",
        tool_name="t",
        exposed_name="t",
        origin="http",
        writer="w",
        received_at=now,
        duration_ms=1e9,
    )
    Invocation.objects.create(
        id="expert",
        state="succeeded",
        agent_slug="a",
        server_slug="expert",
        tool_name="t",
        exposed_name="t",
        origin="http",
        writer="w",
        received_at=now,
        duration_ms=1e9,
    )
    figures = calls.call_figures(now=now, server=site.servers["git"])
    assert figures == calls.CallFigures(calls=100, errors=1, p50=51.0, p95=96.0)
    assert figures.error_rate == 0.01
    assert calls.call_figures(now=now, server=site.servers["time"]) == calls.CallFigures(calls=1)


@pytest.mark.exhaustive(but=("admin",))
@pytest.mark.parametrize("role", ROLES)
def test_nobody_reads_a_sealed_value_on_the_page_of_a_record(
    client_of: ClientOf, site: Site, role: str
) -> None:
    """Also not whoever may only look: for them a page shows attributes of the record instead of a
    form."""
    client = client_of(role)
    looked_at = 0
    Provider.objects.create(slug="acme", kind="openai")
    for model in admin.site._registry:
        for name in [name for name, sealed in vars(model).items() if isinstance(sealed, Sealed)]:
            row = model._default_manager.first()
            if row is None or name in ("extra", "rest"):  # of files; no page has a field for them
                continue
            setattr(
                row,
                name,
                "sealed-canary"
                if isinstance(getattr(row, name), str)
                else {"NAME": "sealed-canary"},
            )
            model._default_manager.filter(pk=row.pk).update(
                **{f"sealed_{name}": getattr(row, f"sealed_{name}")}
            )
            for what in ("change", "history"):
                address = reverse(
                    f"admin:{model._meta.app_label}_{model._meta.model_name}_{what}", args=[row.pk]
                )
                assert "sealed-canary" not in client.get(address).content.decode(), (model, name)
            looked_at += 1
    # env and headers of servers, credentials, channels, keys and headers of providers
    assert looked_at >= 6


@pytest.mark.exhaustive
def test_a_list_says_how_many_it_has_found_where_it_was_searched(
    client_of: ClientOf, site: Site
) -> None:
    viewer = client_of("viewer")
    assert "Show all</a>" not in viewer.get("/admin/mcpregistry/serverevent/").content.decode()
    assert "Show all</a>" in viewer.get("/admin/mcpregistry/serverevent/?q=time").content.decode()
    assert "Show all</a>" in viewer.get(f"{CALLS}?server=git").content.decode()


def test_what_a_request_has_cost_is_found_by_its_id(client_of: ClientOf, site: Site) -> None:
    pool = EnergyPool.objects.create(slug="p")
    given = {
        "pool": pool,
        "kind": EnergyEntry.Kind.MAINTENANCE,
        "amount": 1,
        "before": 9,
        "after": 8,
    }
    for reference in ("asked:1", "asked:2", "other:1"):
        EnergyEntry.objects.create(**given, reference=reference, at=timezone.now())
    found = (
        client_of("root").get("/admin/mcpregistry/energyentry/?q=asked").context["cl"].result_list
    )
    assert {entry.reference for entry in found} == {"asked:1", "asked:2"}
