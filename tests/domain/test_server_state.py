"""Which servers seem to remember between calls what was done with them."""

from __future__ import annotations

import pytest

from mcpregistry.domain.servers.state import list_acting_names
from mcpregistry.domain.trials import verdict
from mcpregistry.domain.trials.report import Called, ToolSeen

STATEFUL = {
    "playwright": [
        "browser_navigate",
        "browser_click",
        "browser_type",
        "browser_snapshot",
        "browser_close",
    ],
    "puppeteer": ["puppeteer_navigate", "puppeteer_click", "puppeteer_screenshot"],
    "shell": ["start_process", "send_input", "terminal_write", "attachSession"],
    "sql": ["begin_transaction", "commit", "rollback", "query"],
    "notebook": ["kernel_start", "executeInKernel"],
}
STATELESS = {
    "time": ["get_current_time", "convert_time"],
    "fetch": ["fetch"],
    "filesystem": ["read_file", "write_file", "edit_file", "list_directory", "move_file"],
    "github": [
        "create_issue",
        "create_branch",
        "push_files",
        "merge_pull_request",
        "create_commit_comment",
    ],
    "memory": ["create_entities", "add_observations", "open_nodes", "search_nodes"],
    "slack": ["slack_post_message", "slack_list_channels"],
}


@pytest.mark.parametrize("name", STATEFUL)
def test_what_acts_on_what_was_opened_is_seen(name):
    assert list_acting_names((tool, False) for tool in STATEFUL[name])
    assert not list_acting_names(
        (tool, True) for tool in STATEFUL[name]
    )  # by its own word it only reads


@pytest.mark.parametrize("name", STATELESS)
def test_what_stands_for_itself_is_not(name):
    assert list_acting_names((tool, False) for tool in STATELESS[name]) == []


def test_a_trial_says_and_proposes_it_where_the_server_can_have_sessions():
    tools = [
        ToolSeen(
            name=name,
            hash=name,
            reads=False,
            destroys=False,
            closed_world=False,
            tokens=1,
            severity=0,
            found=[],
            schema="",
            call=Called(outcome="skipped"),
        )
        for name in STATEFUL["playwright"]
    ]
    now = {"shared_by": "everybody", "connect_mode": "lazy"}
    assert verdict.propose_sharing_fields(tools, now) == {"shared_by": "session"}
    assert verdict.propose_sharing_fields(tools, now | {"shared_by": "agent"}) == {}
    assert verdict.propose_sharing_fields(tools, now | {"connect_mode": "eager"}) == {}
    assert verdict.propose_sharing_fields(tools[:1], now) == {}
    (said,) = [each for each in verdict.collect_findings([], tools) if each["kind"] == "state"]
    assert "browser_click" in said["text"]
