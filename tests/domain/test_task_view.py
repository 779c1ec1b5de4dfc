"""A task's status follows from the call alone, and its result from what belongs inside."""

from __future__ import annotations

import pytest

from mcpregistry.domain.calls.forwarding import (
    NOTHING,
    TASKS,
    Forwarding,
    attribute_question,
    list_unsupported_questions,
    select_forwardable_capabilities,
)
from mcpregistry.domain.calls.task_view import (
    DONE,
    compose_tool_error,
    embed_result,
    map_task_status,
)
from mcpregistry.domain.lifecycle import TERMINAL, InvocationState


@pytest.mark.parametrize(
    "state", [InvocationState.PENDING, InvocationState.READY, InvocationState.DISPATCHED]
)
def test_what_is_open_works_whatever_the_client_has_withdrawn(state):
    assert map_task_status(state, withdrawn=True, error=False, asking=False) == "working"


def test_only_a_call_that_is_out_can_ask():
    asking = {
        state: map_task_status(state, withdrawn=False, error=False, asking=True)
        for state in InvocationState
    }
    assert [state for state, status in asking.items() if status == "input_required"] == [
        InvocationState.DISPATCHED
    ]


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_every_end_is_done_and_refusals_are_results(state):
    assert map_task_status(state, withdrawn=False, error=False, asking=False) == "completed"
    assert map_task_status(state, withdrawn=False, error=True, asking=False) == "failed"
    assert map_task_status(state, withdrawn=True, error=False, asking=False) == "cancelled"
    assert {"completed", "failed", "cancelled"} == DONE


def test_inside_a_task_there_is_neither_a_type_nor_a_name_tag_nor_the_old_hint():
    meta = {
        "io.modelcontextprotocol/related-task": {"taskId": "x"},
        "io.modelcontextprotocol/serverInfo": {"name": "x"},
        "vendor/key": 1,
    }
    assert embed_result({"resultType": "complete", "content": [], "_meta": meta}) == {
        "content": [],
        "_meta": {"vendor/key": 1},
    }
    assert embed_result({"content": [], "_meta": "odd"}) == {"content": []}


def test_our_own_words_are_whole_in_the_text_and_in_the_structure():
    said = compose_tool_error(
        code="REJECTED", text="Bob: not on Friday.", state=InvocationState.REJECTED, call="c1"
    )
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
    assert select_forwardable_capabilities(declared) == {
        "elicitation": {"form": {}},
        "sampling": {},
        "roots": {"listChanged": True},
        "extensions": {TASKS: {}},
    }
    assert select_forwardable_capabilities({"elicitation": "odd", "extensions": []}) == {}


def test_what_people_approved_goes_without_questions_and_answers():
    forwarding = Forwarding(
        select_forwardable_capabilities({"elicitation": {}, "extensions": {TASKS: {}}}),
        {"inputResponses": {"a": {}}},
    )
    assert forwarding.tasks
    assert forwarding.drop_questions() == Forwarding({"extensions": {TASKS: {}}})
    assert NOTHING.drop_questions() == NOTHING


def test_a_question_that_the_host_cannot_answer_is_named():
    requests = {
        "a": {"method": "elicitation/create"},
        "b": {"method": "sampling/createMessage"},
        "c": "odd",
    }
    assert list_unsupported_questions(requests, {"elicitation": {}}) == [
        "",
        "sampling/createMessage",
    ]
    assert (
        list_unsupported_questions({"a": {"method": "elicitation/create"}}, {"elicitation": {}})
        == []
    )
    assert list_unsupported_questions({"a": {"method": "tools/call"}}, {"elicitation": {}}) == [
        "tools/call"
    ]
    by_url = {
        "a": {
            "method": "elicitation/create",
            "params": {"mode": "url", "url": "https://h.example/"},
        }
    }
    assert list_unsupported_questions(by_url, {"elicitation": {}}) == list_unsupported_questions(
        by_url, {"elicitation": {"form": {}}}
    )
    assert list_unsupported_questions(by_url, {"elicitation": {"form": {}}}) == [
        "elicitation/create"
    ]
    assert list_unsupported_questions(by_url, {"elicitation": {"form": {}, "url": {}}}) == []
    assert list_unsupported_questions(
        {"a": {"method": "elicitation/create"}}, {"elicitation": {"url": {}}}
    ) == ["elicitation/create"]
    for odd in (
        "javascript:alert(1)",
        "file:///etc/passwd",
        "data:text/html,x",
        "https://h\nx",
        "",
        None,
    ):
        by_url["a"]["params"]["url"] = odd
        assert list_unsupported_questions(by_url, {"elicitation": {"url": {}}}) == [
            "elicitation/create"
        ], odd
    assert (
        list_unsupported_questions(
            {"a": {"method": "elicitation/create", "params": {"mode": []}}}, {"elicitation": {}}
        )
        != []
    )


def test_who_asks_is_said_and_hidden_characters_are_shown():
    request = {
        "method": "elicitation/create",
        "params": {"message": "your\u202epassword", "requestedSchema": {}},
    }
    shown = attribute_question(request, "forge")
    assert shown["params"]["message"] == "The server forge asks: your⟦U+202E⟧password"
    assert shown["params"]["requestedSchema"] == {}
    for odd in (
        "text",
        {"method": "roots/list"},
        {"method": "elicitation/create", "params": {"message": 1}},
    ):
        assert attribute_question(odd, "forge") == odd


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
    shown = attribute_question(asked, "forge")["params"]["requestedSchema"]
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
        shown = attribute_question({"method": "elicitation/create", "params": params}, "forge")[
            "params"
        ]
        assert shown["requestedSchema"] == schema
