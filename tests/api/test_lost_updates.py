"""A PATCH writes only the keys that were sent, also if another change happens at the same time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mcpregistry.api import lookup
from mcpregistry.models import Agent, Server
from mcpregistry.services.access import agents
from mcpregistry.services.servers import lifecycle
from tests.api.conftest import Caller

pytestmark = pytest.mark.django_db
ACTOR = "test"
Callers = Callable[[str], Caller]


def _after(monkeypatch: pytest.MonkeyPatch, find: str, change: Any) -> None:
    """Make another change right after the request has read its row."""
    original = getattr(lookup, find)

    def find_and_change(slug: str) -> Any:
        row = original(slug)
        change(original(slug))
        return row

    monkeypatch.setattr(lookup, find, find_and_change)


def test_server_that_is_disabled_during_a_patch_stays_disabled(
    caller: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    lifecycle.save_server(server=Server(slug="git", command=["true"]), actor=ACTOR)
    _after(
        monkeypatch, "find_server", lambda row: lifecycle.disable_server(server=row, actor=ACTOR)
    )
    answer = caller("admin").patch("/servers/git", {"description": "mine"})
    assert answer.status_code == 200
    assert (answer.json()["description"], answer.json()["lifecycle"]) == ("mine", "disabled")
    assert Server.objects.get().lifecycle == "disabled"


def test_agent_that_is_disabled_during_a_patch_stays_disabled(
    caller: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents.save_agent(agent=Agent(slug="ann"), actor=ACTOR)
    _after(
        monkeypatch,
        "find_agent",
        lambda row: agents.save_agent(agent=row.change(enabled=False), actor=ACTOR),
    )
    answer = caller("admin").patch("/agents/ann", {"description": "mine"})
    assert answer.status_code == 200
    assert (answer.json()["description"], answer.json()["enabled"]) == ("mine", False)
    assert not Agent.objects.get().enabled


def test_key_that_was_sent_is_written_whatever_others_did(
    caller: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents.save_agent(agent=Agent(slug="ann", enabled=False), actor=ACTOR)
    _after(
        monkeypatch,
        "find_agent",
        lambda row: agents.save_agent(agent=row.change(enabled=True), actor=ACTOR),
    )
    assert caller("admin").patch("/agents/ann", {"enabled": False}).json()["enabled"] is False
    assert not Agent.objects.get().enabled
