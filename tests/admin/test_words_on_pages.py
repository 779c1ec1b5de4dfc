"""Records are shown by names and in words: no ids of 32 digits, no JSON, no numbers with sixteen
digits."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import Agent, AuditEntry, EnergyEntry, EnergyPool, Invocation
from mcpregistry.queries import energy
from subagents.models import EffortAgent, MaintenanceRequest, Run
from tests.admin.conftest import ClientOf
from tests.admin.pressing import pressed
from tests.fakes.held import hold
from tests.fakes.seed import CONVERSATION, Site, govern

pytestmark = [pytest.mark.one_database, pytest.mark.usefixtures("contexts")]


def words(client: Client, address: str) -> str:
    """What a reader sees of the part between the header and the end."""
    text = client.get(address).content.decode()
    shown = re.sub(
        r"<(script|style|details).*?</\1>|<[^>]+>", " ", text[text.index("<h1") :], flags=re.S
    )
    return " ".join(unescape(shown).split())


def test_audit_log_names_calls_by_tool(client_of: ClientOf, site: Site) -> None:
    held = hold()
    client = client_of("admin")
    listed = words(
        client, reverse("admin:mcpregistry_auditentry_changelist") + f"?q=call:{held.call_id}"
    )
    assert "call of git::git_push" in listed
    assert held.call_id not in listed.partition("Subject")[2]
    entry = AuditEntry.objects.filter(subject=f"call:{held.call_id}").earliest("pk")
    assert "call of git::git_push" in words(
        client, reverse("admin:mcpregistry_auditentry_change", args=[entry.pk])
    )


def test_audit_entry_is_told_in_words(client_of: ClientOf, site: Site) -> None:
    govern(site)
    entry = AuditEntry.objects.filter(kind="rule.created").latest("pk")
    shown = words(
        client_of("admin"), reverse("admin:mcpregistry_auditentry_change", args=[entry.pk])
    )
    assert "Name No merges" in shown
    assert "Enabled no" in shown
    assert '"enabled"' not in shown


def test_titles_of_runs_and_requests_hold_no_ids(client_of: ClientOf, site: Site) -> None:
    govern(site)
    for row in (Run.objects.latest("created_at"), MaintenanceRequest.objects.latest("created_at")):
        assert row.pk[:8] not in str(row)
        name = f"admin:subagents_{row._meta.model_name}_changelist"
        assert row.pk[:8] not in words(client_of("admin"), reverse(name))


@pytest.mark.exhaustive
def test_cycles_name_their_conversation(client_of: ClientOf, site: Site) -> None:
    govern(site)
    EffortAgent.objects.update(focus=CONVERSATION)
    shown = words(
        client_of("admin"),
        reverse("admin:subagents_effortagent_change", args=[EffortAgent.objects.get().pk]),
    )
    assert "Answers only in Release notes" in shown
    assert "Release notes: started an answer" in shown
    assert CONVERSATION not in shown


def test_people_have_a_hosted_agent_answer_all_conversations_again(
    client_of: ClientOf, site: Site
) -> None:
    govern(site)
    EffortAgent.objects.update(focus=CONVERSATION)
    shown = pressed(client_of("admin"), EffortAgent.objects.get(), "answer-all")
    assert b"The hosted agent answers in all its conversations again." in shown.content
    assert EffortAgent.objects.get().focus == ""
    assert AuditEntry.objects.latest("id").kind == "effort_agent.answers_all"


def test_energy_entry_is_rounded(client_of: ClientOf, site: Site) -> None:
    entry = EnergyEntry.objects.create(
        pool=EnergyPool.objects.get(),
        kind="grant",
        amount=0.1,
        before=14.3,
        after=14.200000000000003,
        at=timezone.now(),
    )
    shown = words(
        client_of("admin"), reverse("admin:mcpregistry_energyentry_change", args=[entry.pk])
    )
    assert "14.2" in shown
    assert "14.20000" not in shown


def test_level_is_not_drawn_before_the_pool_was_made(site: Site) -> None:
    pool = EnergyPool.objects.get()
    now = timezone.now()
    pool.history.update(history_date=now - timedelta(hours=3))
    there = [bar.there for bar in energy.chart(pool, now)]
    assert there.count(True) in (12, 13)
    assert there[0] is False
    assert there[-1] is True


def test_result_of_a_call_is_shown_as_its_text(client_of: ClientOf, site: Site) -> None:
    call = Invocation.objects.filter(
        state=InvocationState.SUCCEEDED, result__contains="Result 0"
    ).latest("received_at")
    shown = words(
        client_of("admin"), reverse("admin:mcpregistry_invocation_change", args=[call.pk])
    )
    assert "Result 0" in shown
    assert '"content"' not in shown


def test_a_no_is_shown_in_words_and_not_as_a_fault(client_of: ClientOf, site: Site) -> None:
    Agent.objects.update(enabled=False)
    page = client_of("viewer").get(reverse("admin:mcpregistry_agent_changelist")).content.decode()
    assert '<span class="sn-boolean" title="no">' in page
    assert "close_small" not in page
    assert '<span class="sn-unseen">no</span>' in page
