"""What files approve ahead becomes rules, and comes back as it was."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.utils import timezone

from mcpregistry.models import Configuration, PolicyRule, Server, Tool
from mcpregistry.services.exchange.exporting import export_config
from mcpregistry.services.exchange.importing import ImportOutcome, import_file
from mcpregistry.services.exchange.policy import DISCOVERY_WAITS, FLAG_WAITS, SWITCH_WAITS, WAITS
from mcpregistry.services.policy import rules

pytestmark = pytest.mark.django_db


def bring(
    auto: Any = None, *, flag: bool | None = None, may_rule: bool = True, **options: Any
) -> ImportOutcome:
    entry: dict[str, Any] = {
        "id": "echo",
        "name": "echo",
        "command": "echo",
        "args": [],
        "enabled": True,
    }
    if auto is not None:
        entry["autoApprove"] = auto
    data: dict[str, Any] = {"servers": [entry]} | (
        {} if flag is None else {"toolApprovalRequired": flag}
    )
    raw = json.dumps(data).encode()
    found = import_file(
        raw=raw, path="mcp-servers.json", actor="test", may_rule=may_rule, **options
    )
    assert found.saved, found.refused
    return found


def taken() -> Any:
    data = export_config(format_name="mcp-servers", actor="test").data
    return data["servers"][0].get("autoApprove")


def tool(name: str) -> Tool:
    now = timezone.now()
    return Tool.objects.create(
        server=Server.objects.get(), name=name, first_seen_at=now, last_seen_at=now
    )


@pytest.mark.parametrize(
    ("auto", "condition"),
    [
        (True, ""),
        (["b", "a"], 'tool.name in ["b", "a"]'),
        (['q"\n\\ 🙂'], 'tool.name in ["q\\"\\n\\\\ 🙂"]'),
    ],
)
def test_a_file_makes_a_rule_and_gets_it_back(auto: Any, condition: str):
    bring(auto)
    rule = PolicyRule.objects.get()
    assert (rule.condition, rule.outcome, rule.enabled, rule.server.slug) == (
        condition,
        "allow",
        True,
        "echo",
    )
    assert taken() == auto
    assert {change.action for change in bring(auto).changes} == {"unchanged"}
    assert PolicyRule.objects.get() == rule


def test_whoever_may_not_rule_makes_a_rule_that_waits():
    found = bring(["a"], may_rule=False)
    assert not PolicyRule.objects.get().enabled
    assert WAITS in [note.sentence for note in found.notes]
    assert taken() == ["a"]
    bring(["a"], may_rule=True, on_conflict="replace")
    assert {change.action for change in bring(["a"]).changes} == {"unchanged"}


def test_whoever_may_not_rule_changes_no_rule_that_is_there():
    bring(["a"])
    before = PolicyRule.objects.get()
    for _ in range(2):
        found = bring(["a", "b"], may_rule=False, on_conflict="replace")
        assert WAITS in [note.sentence for note in found.notes]
    after = PolicyRule.objects.get(pk=before.pk)
    assert (after.enabled, after.condition) == (True, before.condition)
    (waiting,) = PolicyRule.objects.exclude(pk=before.pk)
    assert (waiting.enabled, waiting.condition) == (False, 'tool.name in ["a", "b"]')


def test_what_was_clicked_is_exported():
    bring()
    rules.auto_approve(tool=tool("b"), actor="test")
    rules.auto_approve(tool=tool("a"), actor="test")
    assert taken() == ["a", "b"]
    rules.auto_approve(server=Server.objects.get(), actor="test")
    assert taken() is True


def test_silence_leaves_it_and_an_empty_list_takes_it_back():
    bring(["a"])
    rules.auto_approve(tool=tool("b"), actor="test")
    assert {change.action for change in bring().changes} == {"unchanged"}
    assert taken() == ["a", "b"]
    bring([], on_conflict="replace")
    assert not PolicyRule.objects.exists()
    assert not taken()


def test_a_file_that_approves_otherwise_is_a_difference():
    bring(["a"])
    raw = json.dumps(
        {
            "servers": [
                {
                    "id": "echo",
                    "name": "echo",
                    "command": "echo",
                    "args": [],
                    "enabled": True,
                    "autoApprove": ["a", "b"],
                }
            ]
        }
    )
    found = import_file(raw=raw.encode(), path="mcp-servers.json", actor="test", may_rule=True)
    assert not found.saved
    assert "its settings differ" in found.refused[0].sentence
    assert taken() == ["a"]


@pytest.mark.parametrize(
    ("before", "flag", "may", "after"),
    [
        ("ask", False, True, "allow"),
        ("ask", False, False, "ask"),
        ("allow", True, True, "ask"),
        ("ask", True, True, "ask"),
        ("deny", False, True, "deny"),
        ("deny", True, True, "deny"),
    ],
)
def test_the_flag_is_what_happens_when_no_rule_fits(before: str, flag: bool, may: bool, after: str):
    Configuration.objects.update(default_outcome=before)
    found = bring(flag=flag, may_rule=may)
    assert Configuration.load().default_outcome == after
    assert (FLAG_WAITS in [note.sentence for note in found.notes]) is (not may)
    data = export_config(format_name="mcp-servers", actor="test").data
    assert data["toolApprovalRequired"] is (after != "allow")


def test_a_file_says_whether_registries_are_searched_unasked():
    raw = {"servers": [], "autoDiscoveryEnabled": True}

    def take(wanted: bool, may_rule: bool) -> list[str]:
        data = json.dumps(raw | {"autoDiscoveryEnabled": wanted}).encode()
        found = import_file(raw=data, path="mcp-servers.json", actor="test", may_rule=may_rule)
        return [note.sentence for note in found.notes]

    assert DISCOVERY_WAITS in take(True, may_rule=False)
    assert not Configuration.load().discovers
    take(True, may_rule=True)
    assert Configuration.load().discovers
    assert (
        export_config(format_name="mcp-servers", actor="test").data["autoDiscoveryEnabled"] is True
    )
    assert DISCOVERY_WAITS in take(False, may_rule=False)
    assert Configuration.load().discovers
    take(False, may_rule=True)
    assert not Configuration.load().discovers


def test_a_dry_run_changes_no_rule():
    entry = {
        "id": "echo",
        "name": "echo",
        "command": "echo",
        "args": [],
        "enabled": True,
        "autoApprove": True,
    }
    raw = json.dumps({"servers": [entry], "toolApprovalRequired": False}).encode()
    found = import_file(raw=raw, path="mcp-servers.json", actor="test", may_rule=True, save=False)
    assert not found.refused
    assert not PolicyRule.objects.exists()
    assert Configuration.load().default_outcome == "ask"


@pytest.mark.parametrize("may", [True, False])
def test_a_file_switches_the_sub_agent_where_whoever_imports_it_may(may: bool):
    for on in (False, True):
        entry = {"id": "echo", "name": "echo", "command": "echo", "args": [], "enabled": True}
        raw = json.dumps({"servers": [entry], "subAgentEnabled": on}).encode()
        found = import_file(raw=raw, path="mcp-servers.json", actor="test", may_rule=may)
        assert found.saved
        now = Configuration.load().sub_agent_enabled
        assert now is (on or not may)
        assert export_config(format_name="mcp-servers", actor="test").data["subAgentEnabled"] is now
        told = [note.sentence for note in found.notes]
        assert (SWITCH_WAITS in told) is (not may and not on)
