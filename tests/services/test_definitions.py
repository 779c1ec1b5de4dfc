"""What a server lists waits for approval; what was approved keeps serving; nothing slips in."""

from __future__ import annotations

from typing import Any

import pytest

from mcpregistry.models import AuditEntry, Definition, Server, ServerEvent, Tool
from mcpregistry.services import definitions
from mcpregistry.services.definitions import Changes
from mcpregistry.services.snapshots import load_snapshot

pytestmark = pytest.mark.django_db
ACTOR = "test"


@pytest.fixture
def server() -> Server:
    return Server.objects.create(slug="s", command=["x"], lifecycle="active")


def listed(text: str = "", *more: str) -> list[dict[str, Any]]:
    return [{"name": "t", "description": text}, *({"name": name} for name in more)]


def served() -> dict[str, str]:
    return {tool.name: tool.data.get("description", "") for tool in load_snapshot().tools.values()}


def observe(server: Server, *args: str) -> Changes:
    return definitions.observe(server=server, listed=listed(*args))


@pytest.mark.attack
def test_nothing_serves_before_it_is_approved(server: Server):
    assert observe(server, "one", "b").added == ["t", "b"]
    assert served() == {}
    assert definitions.approve_waiting(server=server, actor=ACTOR) == 2
    assert served() == {"t": "one", "b": ""}


@pytest.mark.attack
def test_a_changed_tool_serves_its_old_text_until_approved_and_heals_when_it_changes_back(server: Server):
    observe(server, "one")
    definitions.approve_waiting(server=server, actor=ACTOR)
    assert observe(server, "two").changed == ["t"]
    assert served() == {"t": "one"}
    assert Tool.objects.get().status == "changed"
    assert observe(server, "one").changed == ["t"]
    assert Tool.objects.get().status == "approved"
    observe(server, "two")
    definitions.approve(definition=Tool.objects.get().latest, actor=ACTOR)  # type: ignore[arg-type]
    assert served() == {"t": "two"}
    observe(server, "one")
    assert served() == {"t": "one"}  # approved earlier: back to a text that a person has seen
    assert Definition.objects.count() == 2


@pytest.mark.attack
def test_a_rejected_definition_never_serves_and_one_in_use_is_withdrawn(server: Server):
    observe(server, "one")
    definitions.approve_waiting(server=server, actor=ACTOR)
    definitions.reject(definition=Tool.objects.get().pinned, actor=ACTOR)  # type: ignore[arg-type]
    assert served() == {}
    observe(server, "two")
    observe(server, "one")
    assert served() == {}
    assert Tool.objects.get().status == "rejected"
    assert definitions.approve_waiting(server=server, actor=ACTOR) == 0


def test_a_tool_that_is_gone_is_not_served_and_returns_as_it_was(server: Server):
    observe(server, "one", "b")
    definitions.approve_waiting(server=server, actor=ACTOR)
    assert observe(server, "one").removed == ["b"]
    assert served() == {"t": "one"}
    assert observe(server, "one", "b").returned == ["b"]
    assert served() == {"t": "one", "b": ""}


def test_looking_again_at_the_same_changes_nothing(server: Server):
    observe(server, "one")
    definitions.approve_waiting(server=server, actor=ACTOR)
    before = load_snapshot().revision, AuditEntry.objects.count(), ServerEvent.objects.count(), Tool.history.count()
    assert not observe(server, "one")
    assert not definitions.observe(server=server, listed=[{"description": "one", "vendor": 1, "name": "t"}])
    assert (
        load_snapshot().revision, AuditEntry.objects.count(), ServerEvent.objects.count(), Tool.history.count()
    ) == before  # fmt: skip


@pytest.mark.attack
def test_of_two_tools_with_one_name_the_first_counts(server: Server):
    definitions.observe(server=server, listed=[*listed("first"), *listed("second")])
    assert Tool.objects.get().latest.description == "first"  # type: ignore[union-attr]


@pytest.mark.attack
@pytest.mark.parametrize("name", ["a\x00b", "\ud800", "x" * 600, "\u202eevil", "", " "], ids=range(6))
def test_odd_names_are_stored_and_hide_no_other_tool(server: Server, name: str):
    changes = definitions.observe(server=server, listed=[{"name": name}, {"name": "good"}])
    assert "good" in changes.added
    assert Tool.objects.count() == 2
    assert not definitions.observe(server=server, listed=[{"name": name}, {"name": "good"}])


def test_decisions_are_audited_with_what_had_changed(server: Server):
    observe(server, "one")
    definitions.approve_waiting(server=server, actor=ACTOR)
    observe(server, "two")
    definitions.approve_waiting(server=server, actor=ACTOR)
    last = AuditEntry.objects.order_by("seq").last()
    assert last is not None
    assert (last.kind, last.actor) == ("definition.approved", ACTOR)
    assert '"fields":["description"]' in last.body


def test_switching_a_tool_off_hides_it_and_vouching_is_told(server: Server):
    observe(server, "one")
    definitions.approve_waiting(server=server, actor=ACTOR)
    tool = Tool.objects.get()
    tool.enabled, tool.idempotent = False, True
    definitions.save_tool(tool=tool, actor=ACTOR)
    assert served() == {}
    assert '"idempotent":true' in AuditEntry.objects.order_by("seq").last().body  # type: ignore[union-attr]
