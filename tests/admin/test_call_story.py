"""A call's page tells its story, with links to all that belongs to it, and whether its record fits
the log."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import Permission
from django.urls import reverse
from django.utils import timezone

from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import ApprovalRequest, Invocation
from mcpregistry.queries import audit, call_story
from subagents.models import Run
from tests.admin.conftest import ClientOf
from tests.fakes.held import decided, hold
from tests.fakes.seed import Site, govern

pytestmark = [pytest.mark.one_database, pytest.mark.usefixtures("contexts")]


def told(call: Invocation) -> list[tuple[str, str]]:
    return [
        (step.what, step.tone)
        for step in call_story.list_story_steps(call, list(audit.query_audit_of_call(call)))
    ]


def page(call: Invocation) -> str:
    return reverse("admin:mcpregistry_invocation_change", args=[call.pk])


def test_a_plain_call_was_asked_decided_sent_and_answered(site: Site) -> None:
    call = Invocation.objects.filter(state=InvocationState.SUCCEEDED).latest("received_at")
    words = [what for what, _ in told(call)]
    assert words[0] == f"Requested by {call.agent_slug}"
    assert words[1:4] == ["Allowed", f"Sent to {call.server_slug}", "Answered"]
    steps = call_story.list_story_steps(call, [])
    assert steps[2].after == pytest.approx(1.0)


def test_a_held_call_tells_who_decided_and_its_log_is_looked_at(
    client_of: ClientOf, site: Site
) -> None:
    request = hold()
    held = ApprovalRequest.objects.get(pk=request.pk)
    assert told(held.call)[2][0] == "Held for 1 approval"
    decided(
        held,
        site.people["approver"],
        reason="Looks right.",
        at=timezone.now() + timedelta(seconds=5),
    )
    call = Invocation.objects.get(pk=held.call_id)
    assert ("Approved by approver", "good") in told(call)
    assert told(call)[-1] == ("The record matches the audit log", "good")
    html = client_of("viewer").get(page(call)).content.decode()
    assert reverse("approvals:detail", args=[held.pk]) in html
    assert "Looks right." in html
    assert "Try tool" not in html
    assert "Try tool" in client_of("operator").get(page(call)).content.decode()


def test_a_record_that_was_changed_by_hand_is_told(site: Site) -> None:
    call = Invocation.objects.get(pk=hold().call_id)
    Invocation.objects.filter(pk=call.pk).update(arguments='{"query": "another"}')
    call.refresh_from_db()
    assert told(call)[-1][1] == "wrong"


def test_a_call_leads_to_the_run_that_it_began(client_of: ClientOf, site: Site) -> None:
    govern(site)
    run = Run.objects.first()
    call = Invocation.objects.first()
    assert run is not None
    assert call is not None
    Run.objects.filter(pk=run.pk).update(call_id=call.pk)
    address = reverse("admin:subagents_run_change", args=[run.pk])
    assert address in client_of("viewer").get(page(call)).content.decode()


def test_who_decided_is_told_to_those_who_see_approvals(client_of: ClientOf, site: Site) -> None:
    held = ApprovalRequest.objects.get(pk=hold().pk)
    decided(
        held,
        site.people["approver"],
        reason="Looks right.",
        at=timezone.now() + timedelta(seconds=5),
    )
    viewer = site.people["viewer"]
    viewer.groups.clear()
    viewer.user_permissions.add(Permission.objects.get(codename="view_invocation"))
    html = client_of("viewer").get(page(Invocation.objects.get(pk=held.call_id))).content.decode()
    assert "A decision was made" in html
    assert "Looks right." not in html
    assert "approver" not in html
