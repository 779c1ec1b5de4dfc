"""The report of a trial as people read it: verdict first, beside the trial before, applied by who
may do it by hand."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from mcpregistry.models import Server, Tool
from mcpregistry.services.definitions import observe
from mcpregistry.services.servers import lifecycle
from subagents.domain.maintenance import Kind, State
from subagents.maintenance import queue
from subagents.models import Proposal, TrialReport
from tests.subagents.admin.test_pages import HOSTILE, client_as

pytestmark = [pytest.mark.one_database, pytest.mark.django_db]
TRIALS = "/admin/subagents/trialreport/"


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subagents.maintenance.queue.send_task", lambda task: True)


@pytest.fixture
def report() -> TrialReport:
    """Two trials of one server; the second has something to apply, and tells what its server
    wrote."""
    server = lifecycle.save_server(server=Server(slug="git", command=["true"]), actor="test")
    server = lifecycle.confirm_launch(server=server, actor="test", launch_hash=server.launch_hash())
    observe.observe(server=server, listed=[{"name": "look", "inputSchema": {"type": "object"}}])
    request = queue.ask(kind=Kind.TRY, params={"server": "git"}, actor=HOSTILE)
    found: dict[str, Any] = {
        "server": server,
        "verdict": "attention",
        "version": HOSTILE,
        "unobserved": ["What it tried."],
        "findings": [{"severity": "alarm", "kind": "call", "tool": HOSTILE, "text": HOSTILE}],
        "figures": {
            "eras": ["legacy"],
            "memory_kb": 40_960,
            "written": [HOSTILE],
            "calls": {"ok": 2},
            "network_needed": None,
        },
        "starts": [
            {"era": "legacy", "network": "closed", "ok": True, "connect_ms": 300.0},
            {"era": "modern", "network": "closed", "ok": False, "code": "X", "error": HOSTILE},
        ],
        "tools": [
            {"name": "look", "tokens": 7, "reads": True, "call": {"outcome": "ok", "ms": 3.0}}
        ],
    }
    tool = Tool.objects.select_related("latest").get()
    assert tool.latest is not None
    rows = [
        {
            "tool": "look",
            "hash": tool.latest.hash,
            "rule": "ask",
            "why": "it does not declare that it only reads",
        }
    ]
    proposed = {"tools": rows, "fields": {"sandbox": "enforce"}}
    now = timezone.now()
    TrialReport.objects.create(
        **found | {"figures": {"memory_kb": 10_240}}, created_at=now - timedelta(days=1)
    )
    Proposal.objects.create(
        request=request,
        server=server,
        server_revision=server.revision,
        server_saved_at=server.updated_at,
        fields=proposed["fields"],
        created_at=now,
    )
    queue.end(request, State.COMPLETED, result={"verdict": "attention"})
    return TrialReport.objects.create(
        **found,
        request=request,
        proposed=proposed,
        differences=[HOSTILE],
        behaves_otherwise=True,
        created_at=now,
    )


def test_the_verdict_stands_first_and_the_trial_before_beside_it(report: TrialReport) -> None:
    viewer = client_as("viewer")
    html = viewer.get(f"{TRIALS}{report.pk}/change/").content.decode()
    assert (
        html.index("Needs attention")
        < html.index("Findings")
        < html.index("Measurements")
        < html.index("proposed access")
    )
    assert "40 MB" in html
    assert "10 MB" in html
    assert "offer, and ask an approver" in html
    assert ("<script>window.x" in html, "\u202e" in html) == (False, False)
    assert f"{TRIALS}{report.pk}/do/apply" not in html
    assert "behaves differently" in viewer.get(TRIALS).content.decode()


def test_the_pages_of_the_request_the_proposal_and_the_server_lead_to_it(
    report: TrialReport,
) -> None:
    client = client_as("operator")
    assert report.request is not None
    for page in (
        f"/admin/subagents/maintenancerequest/{report.request_id}/change/",
        f"/admin/subagents/proposal/{report.request.proposal.pk}/change/",
    ):
        assert f'href="{TRIALS}{report.pk}/change/"' in client.get(page).content.decode(), page
    server = client.get(f"/admin/mcpregistry/server/{report.server_id}/change/").content.decode()
    assert f"{TRIALS}?q=git" in server
    link = "/admin/subagents/maintenancerequest/add/?kind=try_server&amp;server=git"
    assert link in server
    form = client.get(link.replace("&amp;", "&")).content.decode()
    assert 'value="git"' in form
    assert '<option value="try_server" selected>' in form


def test_it_is_applied_by_one_click_of_who_may_do_each_part(report: TrialReport) -> None:
    url = f"{TRIALS}{report.pk}/do/apply/"
    refused = client_as("operator").post(url, follow=True).content.decode()
    assert "approve_definition" in refused
    assert Tool.objects.get().pinned is None
    done = client_as("admin").post(url, follow=True).content.decode()
    assert "The proposal is applied as your own change." in done
    assert Tool.objects.get().status == "approved"
    assert Server.objects.get().sandbox == "enforce"
    assert f"{TRIALS}{report.pk}/do/apply" not in done


def test_an_outdated_one_says_so_and_can_be_declined(report: TrialReport) -> None:
    server = Server.objects.get()
    server.idle_timeout = 5
    lifecycle.save_server(server=server, actor="test")
    client = client_as("admin")
    assert "changed after this trial" in client.get(f"{TRIALS}{report.pk}/change/").content.decode()
    assert (
        "changed or deleted after"
        in client.post(f"{TRIALS}{report.pk}/do/apply/", follow=True).content.decode()
    )
    client.post(f"{TRIALS}{report.pk}/do/decline/")
    assert Proposal.objects.get().state == "declined"
