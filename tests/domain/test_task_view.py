"""A task's status follows from the call alone, and its result from what belongs inside."""

from __future__ import annotations

import pytest

from mcpregistry.domain.calls.forwarding import (
    NOTHING,
    TASKS,
    Forwarding,
    attributed,
    passed,
    unbearable,
)
from mcpregistry.domain.calls.task_view import DONE, inlined, own_words, status_of
from mcpregistry.domain.lifecycle import TERMINAL, State


@pytest.mark.parametrize("state", [State.PENDING, State.READY, State.DISPATCHED])
def test_what_is_open_works_whatever_the_client_has_withdrawn(state):
    assert status_of(state, withdrawn=True, error=False, asking=False) == "working"


def test_only_a_call_that_is_out_can_ask():
    asking = {state: status_of(state, withdrawn=False, error=False, asking=True) for state in State}
    assert [state for state, status in asking.items() if status == "input_required"] == [
        State.DISPATCHED
    ]


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_every_end_is_done_and_refusals_are_results(state):
    assert status_of(state, withdrawn=False, error=False, asking=False) == "completed"
    assert status_of(state, withdrawn=False, error=True, asking=False) == "failed"
    assert status_of(state, withdrawn=True, error=False, asking=False) == "cancelled"
    assert {"completed", "failed", "cancelled"} == DONE


def test_inside_a_task_there_is_neither_a_type_nor_a_name_tag_nor_the_old_hint():
    meta = {
        "io.modelcontextprotocol/related-task": {"taskId": "x"},
        "io.modelcontextprotocol/serverInfo": {"name": "x"},
        "vendor/key": 1,
    }
    assert inlined({"resultType": "complete", "content": [], "_meta": meta}) == {
        "content": [],
        "_meta": {"vendor/key": 1},
    }
    assert inlined({"content": [], "_meta": "odd"}) == {"content": []}


def test_our_own_words_are_whole_in_the_text_and_in_the_structure():
    said = own_words(code="REJECTED", text="Bob: not on Friday.", state=State.REJECTED, call="c1")
    assert said["isError"] is True
    assert said["content"][0]["text"] == "REJECTED: Bob: not on Friday. (call c1)"
    assert said["structuredContent"] == {
        "error": "REJECTED",
        "message": "Bob: not on Friday.",
        "state": "rejected",
        "call": "c1",
    }


def test_of_a_hosts_capabilities_only_those_that_servers_may_use_go_on():
    declared = {
        "elicitation": {"form": {}},
        "sampling": {},
        "roots": {"listChanged": True},
        "experimental": {"x": {}},
        "extensions": {TASKS: {"more": 1}, "other/extension": {}},
    }
    assert passed(declared) == {
        "elicitation": {"form": {}},
        "sampling": {},
        "roots": {"listChanged": True},
        "extensions": {TASKS: {}},
    }
    assert passed({"elicitation": "odd", "extensions": []}) == {}


def test_what_people_approved_goes_without_questions_and_answers():
    forwarding = Forwarding(
        passed({"elicitation": {}, "extensions": {TASKS: {}}}), {"inputResponses": {"a": {}}}
    )
    assert forwarding.tasks
    assert forwarding.without_questions() == Forwarding({"extensions": {TASKS: {}}})
    assert NOTHING.without_questions() == NOTHING


def test_a_question_that_the_host_cannot_answer_is_named():
    requests = {
        "a": {"method": "elicitation/create"},
        "b": {"method": "sampling/createMessage"},
        "c": "odd",
    }
    assert unbearable(requests, {"elicitation": {}}) == ["", "sampling/createMessage"]
    assert unbearable({"a": {"method": "elicitation/create"}}, {"elicitation": {}}) == []
    assert unbearable({"a": {"method": "tools/call"}}, {"elicitation": {}}) == ["tools/call"]
    by_url = {
        "a": {
            "method": "elicitation/create",
            "params": {"mode": "url", "url": "https://h.example/"},
        }
    }
    assert unbearable(by_url, {"elicitation": {}}) == unbearable(
        by_url, {"elicitation": {"form": {}}}
    )
    assert unbearable(by_url, {"elicitation": {"form": {}}}) == ["elicitation/create"]
    assert unbearable(by_url, {"elicitation": {"form": {}, "url": {}}}) == []
    assert unbearable({"a": {"method": "elicitation/create"}}, {"elicitation": {"url": {}}}) == [
        "elicitation/create"
    ]
    for odd in (
        "javascript:alert(1)",
        "file:///etc/passwd",
        "data:text/html,x",
        "https://h\nx",
        "",
        None,
    ):
        by_url["a"]["params"]["url"] = odd
        assert unbearable(by_url, {"elicitation": {"url": {}}}) == ["elicitation/create"], odd
    assert (
        unbearable(
            {"a": {"method": "elicitation/create", "params": {"mode": []}}}, {"elicitation": {}}
        )
        != []
    )


def test_who_asks_is_said_and_hidden_characters_are_shown():
    request = {
        "method": "elicitation/create",
        "params": {"message": "your\u202epassword", "requestedSchema": {}},
    }
    shown = attributed(request, "forge")
    assert shown["params"]["message"] == "The server forge asks: your⟦U+202E⟧password"
    assert shown["params"]["requestedSchema"] == {}
    for odd in (
        "text",
        {"method": "roots/list"},
        {"method": "elicitation/create", "params": {"message": 1}},
    ):
        assert attributed(odd, "forge") == odd


def test_each_field_of_a_form_names_the_server() -> None:
    fields = {
        "pin": {"type": "string", "title": "Admin password of Slipsnisse"},
        "user": {"type": "string"},
        "odd": 7,
    }
    schema = {"type": "object", "properties": fields, "required": ["pin"]}
    asked = {
        "method": "elicitation/create",
        "params": {"message": "Log in", "requestedSchema": schema},
    }
    shown = attributed(asked, "forge")["params"]["requestedSchema"]
    assert shown == schema | {
        "properties": {
            "pin": {"type": "string", "title": "forge: Admin password of Slipsnisse"},
            "user": {"type": "string", "title": "forge: user"},
            "odd": 7,
        }
    }
    assert fields["pin"]["title"] == "Admin password of Slipsnisse"
    for schema in (None, {}, {"properties": []}, 7):
        params = {"message": "Log in", "requestedSchema": schema}
        shown = attributed({"method": "elicitation/create", "params": params}, "forge")["params"]
        assert shown["requestedSchema"] == schema
