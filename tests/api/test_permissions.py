"""Every operation of the OpenAPI document against every kind of caller."""

from __future__ import annotations

import functools
import re
from functools import cache

import pytest
from django.core.exceptions import ImproperlyConfigured

import controlplane.history.api  # noqa: F401 - its operations belong to the document
import subagents.api  # noqa: F401 - its operations belong to the document
from mcpregistry.api.auth import Bearer, Session
from mcpregistry.api.permission_router import PermissionRouter
from mcpregistry.api.permissions import TABLE
from mcpregistry.api.v1 import api

pytestmark = pytest.mark.one_database

ROLES = ("viewer", "operator", "approver", "admin")

# The lowest role that may; written out a second time on purpose, so that a slip in the table shows.
LOWEST = {
    "viewer": """
        GET /installs | GET /installs/{install_id} | GET /servers | GET /servers/{slug} | GET /servers/{slug}/tests | GET /servers/{slug}/tests/{test_id}
        GET /servers/{slug}/events | GET /servers/{slug}/status | GET /tools | GET /tools/{name}
        GET /tools/{name}/definitions | GET /definitions | GET /definitions/{definition_id} | GET /endpoints
        GET /endpoints/{slug} | GET /endpoints/{slug}/tools | GET /agents | GET /agents/{slug}
        GET /usage | GET /usage/failures | GET /agents/{slug}/tokens | GET /grants | GET /grants/{grant_id} | GET /invocations
        GET /invocations/{invocation_id} | GET /audit | GET /audit/verification | GET /status | GET /status/servers
        GET /channels | GET /channels/{channel_id} | GET /deliveries | GET /deliveries/{delivery_id}
        GET /approvals | GET /approvals/{approval_id} | GET /approvals/{approval_id}/result
        | GET /rules | POST /rules/test | GET /rules/{rule_id} | GET /tools/{name}/annotations | GET /permits
        | GET /access | GET /access/proposals | GET /context-bill | GET /why | POST /why | GET /drift | GET /config/schema
        GET /experts | GET /experts/{name} | GET /runs | GET /runs/{run_id} | GET /runs/{run_id}/events
        GET /runs/{run_id}/accounting | GET /savings
        GET /maintenance/requests | GET /maintenance/requests/{request_id} | GET /maintenance/active
        GET /maintenance/messages
        GET /maintenance/proposals | GET /maintenance/trials | GET /maintenance/trials/{trial_id}
        GET /conversations | GET /conversations/{conversation_id} | GET /conversations/{conversation_id}/messages
        GET /host-sessions | GET /host-sessions/{session_id}
        GET /budgets | GET /budgets/{slug} | GET /budgets/{slug}/entries
        GET /energy | GET /energy/{slug} | GET /energy/{slug}/entries
        GET /registries | GET /registries/{slug} | GET /registry-entries | GET /registry-entries/{entry_id}
        GET /history | GET /history/{kind}/{version_id}
        POST /history/{kind}/{version_id}/restore
        """,  # restoring needs the right to change that kind besides: tests/api/test_history.py
    "operator": """
        POST /registries/{slug}/sync | POST /registry-entries/{entry_id}/add | GET /registry-entries/{entry_id}/digest
        POST /installs | POST /installs/{install_id}/use | DELETE /installs/{install_id}
        POST /servers/{slug}/roll-back | POST /servers/read | POST /servers | PATCH /servers/{slug} | DELETE /servers/{slug} | POST /servers/{slug}/enable
        POST /servers/{slug}/disable | POST /servers/{slug}/refresh | POST /servers/{slug}/reconnect
        POST /servers/{slug}/connect | POST /servers/{slug}/disconnect
        POST /servers/{slug}/tests | PATCH /tools/{name} | POST /tools/{name}/call | POST /endpoints
        PATCH /endpoints/{slug} | DELETE /endpoints/{slug} | GET /config/export | POST /config/import
        POST /approvals/{approval_id}/withdraw
        POST /conversations | PATCH /conversations/{conversation_id} | POST /conversations/{conversation_id}/end
        POST /conversations/{conversation_id}/messages
        POST /host-sessions/{session_id}/end
        POST /experts/{name}/runs | POST /runs/{run_id}/cancel | POST /runs/{run_id}/resume
        POST /runs/{run_id}/replay | POST /runs/{run_id}/calls/{call_id}/settle
        POST /maintenance/requests | POST /maintenance/requests/{request_id}/cancel
        POST /maintenance/requests/{request_id}/pause | POST /maintenance/requests/{request_id}/resume
        POST /maintenance/messages/poll | POST /maintenance/energy/poll
        POST /maintenance/proposals/{proposal_id}/apply | POST /maintenance/proposals/{proposal_id}/decline
        """,
    "approver": """
        POST /definitions/{definition_id}/approve | POST /definitions/{definition_id}/reject
        POST /definitions/{definition_id}/revert
        POST /approvals/{approval_id}/approve | POST /approvals/{approval_id}/reject
        | POST /approvals/{approval_id}/lift-refusal
        | PUT /tools/{name}/annotations | DELETE /permits/{permit_id}
        """,
    "admin": """
        POST /installs/{install_id}/approve | POST /maintenance/start | POST /maintenance/stop
        GET /servers/{slug}/launch | POST /servers/{slug}/confirm | POST /servers/{slug}/keep-secrets | POST /agents | PATCH /agents/{slug}
        POST /registries | PATCH /registries/{slug} | DELETE /registries/{slug}
        POST /budgets | PATCH /budgets/{slug} | DELETE /budgets/{slug}
        POST /energy | PATCH /energy/{slug} | DELETE /energy/{slug} | POST /energy/{slug}/grant
        DELETE /agents/{slug} | POST /agents/{slug}/tokens | DELETE /agents/{slug}/tokens/{token_id}
        POST /grants | DELETE /grants/{grant_id} | POST /access/proposals/{grant_id} | POST /context-bill/hide
        POST /channels | PATCH /channels/{channel_id} | DELETE /channels/{channel_id}
        POST /channels/{channel_id}/test | POST /deliveries/{delivery_id}/redeliver
        | POST /rules | POST /rules/starter | PATCH /rules/{rule_id} | DELETE /rules/{rule_id}
        | POST /rules/{rule_id}/live
        | POST /tools/{name}/auto-approval | DELETE /tools/{name}/auto-approval
        | POST /servers/{slug}/auto-approval | DELETE /servers/{slug}/auto-approval
        GET /config/as-of | POST /config/as-of
        """,
}
AGENT = {
    "POST /tools/{name}/call",
    "GET /endpoints/{slug}/tools",
    "GET /approvals/{approval_id}",
    "GET /approvals/{approval_id}/result",
    "POST /approvals/{approval_id}/withdraw",
    "GET /conversations",
    "POST /conversations",
    "GET /conversations/{conversation_id}",
    "POST /conversations/{conversation_id}/end",
    "GET /conversations/{conversation_id}/messages",
    "POST /conversations/{conversation_id}/messages",
    "GET /budgets",
    "GET /budgets/{slug}",
    "GET /budgets/{slug}/entries",
    "GET /energy",
    "GET /energy/{slug}",
    "GET /energy/{slug}/entries",
    "POST /experts/{name}/runs",
    "GET /runs",
    "GET /runs/{run_id}",
    "GET /runs/{run_id}/events",
    "GET /runs/{run_id}/accounting",
    "POST /runs/{run_id}/cancel",
    "GET /maintenance/requests",
    "POST /maintenance/requests",
    "GET /maintenance/requests/{request_id}",
    "POST /maintenance/requests/{request_id}/cancel",
    "POST /maintenance/requests/{request_id}/pause",
    "POST /maintenance/requests/{request_id}/resume",
    "GET /maintenance/messages",
    "POST /maintenance/messages/poll",
    "GET /maintenance/active",
    "POST /maintenance/energy/poll",
}


def lowest_roles() -> dict[str, str]:
    pairs = [
        (operation.strip(), role)
        for role, text in LOWEST.items()
        for operation in re.split(r"[|\n]", text)
    ]
    return {operation: role for operation, role in pairs if operation}


@functools.cache  # the document takes two seconds
def operations() -> list[str]:
    paths = api.get_openapi_schema(path_prefix="")["paths"]
    return [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]


@cache
def take_a_body() -> set[str]:
    paths = api.get_openapi_schema(path_prefix="")["paths"].items()
    operations = [
        (f"{method.upper()} {path}", one) for path, of in paths for method, one in of.items()
    ]
    return {name for name, one in operations if "requestBody" in one}


def answer(caller, operation: str):
    method, path = operation.split(" ")
    numbered = re.sub(r"{\w+_id}", "987654", path)
    return caller.call(
        method, re.sub(r"{\w+}", "nobody", numbered), None if method in ("GET", "DELETE") else {}
    )


def test_the_document_the_table_and_this_test_name_the_same_operations():
    assert set(operations()) == set(TABLE) == set(lowest_roles())


def test_every_operation_is_behind_both_gates_and_nothing_else():
    for bound in api._get_bound_routers():
        for view in bound.path_operations.values():
            for operation in view.operations:
                assert [type(gate) for gate in operation.auth_callbacks] == [Bearer, Session]
                rule = TABLE[f"{operation.methods[0]} {operation.path}"]
                assert all(gate.rule is rule for gate in operation.auth_callbacks)


def test_an_operation_that_is_not_in_the_table_cannot_be_made():
    with pytest.raises(ImproperlyConfigured, match="GET /secrets is not in the permission table"):
        PermissionRouter().get("/secrets", response=dict)(lambda request: {})


@pytest.mark.exhaustive
def test_a_nameless_caller_gets_nothing(live_db, caller):
    nobody = caller("anonymous")
    for operation in operations():
        response = answer(nobody, operation)
        assert response.status_code == 401, operation
        assert response.json()["code"] == "UNAUTHORIZED"
        assert response.headers["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.exhaustive(but=("every fourth operation for an operator",))
@pytest.mark.parametrize(
    ("role", "step"),
    [*((role, 1) for role in ROLES), ("operator", 4)],
    ids=[*ROLES, "every fourth operation for an operator"],
)
def test_a_role_may_do_what_it_and_lower_roles_may(live_db, caller, role, step):
    somebody = caller(role)
    lowest = lowest_roles()
    for operation in operations()[::step]:
        response = answer(somebody, operation)
        if ROLES.index(role) >= ROLES.index(lowest[operation]):
            assert response.status_code not in (401, 403), operation
        else:
            assert (response.status_code, response.json()["code"]) == (403, "DENIED"), operation


def test_the_token_of_an_agent_only_calls_tools_and_lists_its_own(live_db, caller):
    robot = caller("agent")
    for operation in operations():
        refused = answer(robot, operation).status_code == 403
        assert refused is (operation not in AGENT), operation


@pytest.mark.exhaustive(but=("every sixth operation",))
@pytest.mark.parametrize("step", [1, 6], ids=["every operation", "every sixth operation"])
def test_a_site_without_roles_shows_nothing_to_a_mere_account(live_db, caller, step):
    somebody = caller("viewer")
    from django.contrib.auth.models import User

    User.objects.get().groups.clear()
    assert {answer(somebody, operation).status_code for operation in operations()[::step]} == {403}
