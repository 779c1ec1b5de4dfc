"""The first run fills an empty site through the ordinary verbs, once."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.conf import settings as site
from django.contrib.auth.models import User

from mcpregistry.calls.catalog import CatalogueEntry, Catalogues, DownstreamTools
from mcpregistry.domain.policy.decision import PolicyQuestion
from mcpregistry.domain.snapshot import Snapshot
from mcpregistry.models import Agent, AuditEntry, Grant, Server, ServerTest, Token
from mcpregistry.services import demo
from mcpregistry.services.access.tokens import find_token
from mcpregistry.services.configuration.snapshot import load_snapshot
from mcpregistry.services.demo import set_up_demo
from tests.services.rows import draft
from tests.tasks import worker
from tests.waiting import HANG_LIMIT


def decided(snapshot: Snapshot, entry: CatalogueEntry) -> str:
    agent = snapshot.agents["local"]
    endpoint = snapshot.endpoints["default"]
    return snapshot.policy(
        PolicyQuestion(agent, endpoint, entry.offer.server, entry.offer.tool, {})
    ).outcome


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.mark.exhaustive
@pytest.mark.e2e
def test_an_empty_site_serves_two_real_servers_to_a_new_agent(site_env, broker, said):
    User.objects.create_superuser("root")  # somebody to ask
    worker.empty_broker()
    with worker.running(site_env):
        made = set_up_demo(say=said.append, patience=2 * HANG_LIMIT)  # two servers are tested
    assert made is not None
    expected = {"time": 2, "git": 12} if (Path(site.BASE_DIR) / ".git").exists() else {"time": 2}
    assert made.approved == expected
    assert "time: works, 2 tools approved" in said
    assert find_token(made.token).agent.slug == "local"
    snapshot = load_snapshot()
    catalogue = Catalogues([DownstreamTools()]).get(
        snapshot, snapshot.endpoints["default"], snapshot.agents["local"], 0.0
    )
    assert catalogue.find("time__get_current_time") is not None
    outcomes = {name: decided(snapshot, entry) for name, entry in catalogue.entries.items()}
    assert outcomes["time__get_current_time"] == outcomes["time__convert_time"] == "allow"
    if "git" in expected:
        asked = {"git_add", "git_checkout", "git_commit", "git_create_branch", "git_reset"}
        assert {name for name, outcome in outcomes.items() if outcome == "ask"} == {
            f"git__{name}" for name in asked
        }
        assert set(outcomes.values()) == {"allow", "ask"}
    told = AuditEntry.objects.exclude(subject="user:root")
    assert set(told.values_list("actor", flat=True)) == {"demo", "server"}
    rows = Server.objects.count(), Grant.objects.count(), Token.objects.count()
    assert set_up_demo(say=said.append) is None
    assert (Server.objects.count(), Grant.objects.count(), Token.objects.count()) == rows


@pytest.mark.django_db
def test_a_site_in_use_is_left_alone(said):
    draft()
    assert set_up_demo(say=said.append) is None
    assert said == ["the site already has servers or agents: no demo servers added"]
    assert not Agent.objects.exists()


@pytest.mark.django_db
def test_what_cannot_work_here_is_left_out_and_said(said, settings, tmp_path, monkeypatch):
    settings.BASE_DIR = tmp_path
    monkeypatch.setattr(
        demo, "_find_program", lambda name: None if name == "mcp-server-time" else f"/bin/{name}"
    )
    made = set_up_demo(say=said.append, patience=0)
    assert (made.approved, Server.objects.count()) == ({}, 0)
    assert any("mcp-server-time is not installed" in line for line in said)
    assert any(f"{tmp_path} is not a git repository" in line for line in said)
    assert find_token(made.token) is not None


@pytest.mark.django_db
def test_without_a_worker_the_servers_wait_for_a_person(said):
    made = set_up_demo(say=said.append, patience=0)
    assert set(made.approved.values()) == {0}
    assert any("the worker has not tested it yet" in line for line in said)
    assert any("no user can approve calls yet" in line for line in said)
    assert ServerTest.objects.filter(verdict="queued").count() == len(made.approved)


@pytest.mark.django_db
def test_a_server_that_fails_is_told_with_its_reason(said, monkeypatch):
    def fail(tests, patience):
        ServerTest.objects.update(
            verdict="failed", finished_at="2026-01-01T00:00Z", error="It fell over."
        )
        return list(ServerTest.objects.select_related("server"))

    monkeypatch.setattr(demo, "_wait_for_tests", fail)
    assert set(set_up_demo(say=said.append).approved.values()) == {0}
    assert "time: the test failed: It fell over." in said
