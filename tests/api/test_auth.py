"""Sessions need their CSRF token, bearer tokens stand alone, and doubt means no."""

from __future__ import annotations

import json
from datetime import timedelta
from unittest import mock

import pytest
from django.db import OperationalError
from django.test import Client
from django.utils import timezone

from mcpregistry.api import token_guesses
from mcpregistry.domain.addresses import mask_client_address
from mcpregistry.models import AuditEntry, Server, Token
from mcpregistry.services.access import tokens
from tests.api.conftest import ROOT, Caller, new_agent, new_user

NEW = {"slug": "made", "command": ["made"]}


@pytest.fixture
def browser(db) -> Client:
    """A logged-in browser that checks CSRF, as real ones must."""
    client = Client(enforce_csrf_checks=True)
    client.force_login(new_user("operator"))
    return client


def post(client: Client, **headers: str):
    return client.post(
        f"{ROOT}/servers", json.dumps(NEW), content_type="application/json", headers=headers
    )


def test_a_session_reads_without_and_changes_only_with_its_csrf_token(browser):
    assert browser.get(f"{ROOT}/servers").status_code == 200
    assert post(browser).status_code == 403
    assert not Server.objects.exists()
    browser.cookies["csrftoken"] = "a" * 32
    assert post(browser, **{"X-CSRFToken": "a" * 32}).status_code == 201


@pytest.mark.attack
@pytest.mark.parametrize("origin", ["https://evil.example", "null"])
def test_another_sites_page_cannot_use_the_session(browser, origin):
    browser.cookies["csrftoken"] = "a" * 32
    assert post(browser, **{"X-CSRFToken": "a" * 32, "Origin": origin}).status_code == 403
    plain = browser.post(
        f"{ROOT}/servers", json.dumps(NEW), content_type="text/plain", headers={"Origin": origin}
    )
    assert plain.status_code == 403
    assert not Server.objects.exists()


@pytest.mark.attack
def test_a_foreign_host_name_is_refused(db, caller):
    response = caller("viewer").client.get(f"{ROOT}/servers", headers={"Host": "evil.example:8000"})
    assert response.status_code == 400


def test_a_token_acts_with_its_owners_permissions_and_is_named_in_the_log(db, caller):
    assert caller("viewer").post("/servers", NEW).status_code == 403
    assert caller("operator").post("/servers", NEW).status_code == 201
    assert AuditEntry.objects.get(kind="server.created").actor.startswith("user:operator")
    assert Server.history.get().history_user.username.startswith("operator")


def test_a_wrong_token_is_not_rescued_by_a_session(browser):
    assert (
        browser.get(f"{ROOT}/servers", headers={"Authorization": "Bearer wrong"}).status_code == 401
    )


@pytest.mark.parametrize(
    "header", ["Bearer", "Bearer ", "Basic dTpw", "Bearer \xff", "bearer x y", "x" * 5000]
)
def test_odd_authorization_headers_are_no_credentials(db, header):
    assert Client().get(f"{ROOT}/servers", headers={"Authorization": header}).status_code == 401


def test_expired_revoked_and_orphaned_tokens_are_refused(db, caller):
    viewer = caller("viewer")
    token = Token.objects.get()
    assert viewer.get("/servers").status_code == 200
    Token.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert viewer.get("/servers").status_code == 401
    Token.objects.update(expires_at=None, revoked_at=timezone.now())
    assert viewer.get("/servers").status_code == 401
    Token.objects.update(revoked_at=None)
    token.user.is_active = False
    token.user.save()
    assert viewer.get("/servers").status_code == 401


def test_the_use_of_a_token_is_noted_once_a_minute(db, caller, django_assert_max_num_queries):
    viewer = caller("viewer")
    viewer.get("/servers")
    used = Token.objects.get().last_used_at
    assert used is not None
    viewer.get("/servers")
    assert Token.objects.get().last_used_at == used


@pytest.mark.fault
@pytest.mark.parametrize("path", ["/servers", "/invocations", "/status"])
def test_when_the_database_is_away_nobody_is_let_in(db, caller, path):
    viewer = caller("viewer")
    with mock.patch(
        "mcpregistry.api.auth.find_token", side_effect=OperationalError("password=hunter2")
    ):
        response = viewer.get(path)
    assert response.status_code == 503
    assert response.headers["Retry-After"]
    assert "hunter2" not in response.content.decode()


@pytest.mark.fault
def test_an_unexpected_failure_tells_nothing_but_that_it_happened(db, caller):
    viewer = caller("viewer")
    with mock.patch(
        "mcpregistry.api.servers.read_page", side_effect=ZeroDivisionError("token=hunter2")
    ):
        response = viewer.get("/servers")
    assert response.status_code == 500
    assert response.json() == {
        "code": "ERROR",
        "message": "The request failed because of an internal error.",
        "remedy": "Ask the operator to look for the cause in the log.",
    }


@pytest.mark.attack
def test_guessing_is_slowed_down_and_says_until_when(db, caller):
    for number in range(token_guesses.LIMIT):
        assert Caller(f"guess-{number}").get("/servers").status_code == 401
    response = Caller("guess-more").get("/servers")
    assert response.status_code == 429
    assert 1 <= int(response.headers["Retry-After"]) <= token_guesses.PERIOD
    assert response.json()["code"] == "TOO_MANY_REQUESTS"


@pytest.mark.attack
def test_a_valid_token_is_heard_whoever_guesses_beside_it(db, caller):
    for number in range(2 * token_guesses.LIMIT):
        Caller(f"guess-{number}").get("/servers")
    assert Caller("guess-more").get("/servers").status_code == 429
    for kind in ("viewer", "operator"):
        assert caller(kind).get("/servers").status_code == 200


def test_a_program_that_repeats_one_old_token_locks_nobody_out(db, caller):
    program = Caller("expired")
    for _ in range(3 * token_guesses.LIMIT):
        assert program.get("/servers").status_code == 401
    assert caller("viewer").get("/servers").status_code == 200


def test_guesses_are_forgotten_after_a_while_and_memory_is_bounded(monkeypatch):
    guesses = token_guesses.Guesses()
    for number in range(token_guesses.LIMIT):
        guesses.remember_failure("10.0.0.1", str(number), 100.0 + number / 10)
    assert guesses.wait("10.0.0.1", 105.0) == pytest.approx(55.0)
    assert guesses.wait("10.0.0.2", 105.0) == 0
    assert guesses.wait("10.0.0.1", 100.0 + token_guesses.PERIOD + 0.05) == 0
    monkeypatch.setattr(token_guesses, "MAX_ADDRESSES", 3)
    for number in range(10):
        guesses.remember_failure(f"10.0.1.{number}", "x", 200.0)
    assert len(guesses._seen) == 3


def test_one_ipv6_network_counts_as_one_address():
    assert mask_client_address("2001:db8::1") == mask_client_address("2001:db8::ffff:1")
    assert mask_client_address("2001:db8:0:ff::1") == mask_client_address("2001:db8::1")
    assert mask_client_address("2001:db8:0:100::1") != mask_client_address("2001:db8::1")
    assert mask_client_address("127.0.0.1") != mask_client_address("127.0.0.2")
    assert mask_client_address("") == mask_client_address("unix") == "unknown"


def test_a_disabled_agents_token_is_refused(live_db):
    agent = new_agent("robot")
    robot = Caller(tokens.issue_token(agent=agent, name="t", actor="test")[1])
    assert robot.get("/endpoints/default/tools").status_code != 401
    agent.enabled = False
    agent.save()
    assert robot.get("/endpoints/default/tools").status_code == 401


@pytest.mark.parametrize(
    "path",
    [
        "/api",
        "/api/v1",
        "/api/v1/nothing",
        "/api/v1/servers/a/b/c",
        "/api/v2/servers",
        "/api/v1/servers/",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_unknown_address_is_refused_in_the_form_of_every_refusal(
    db, method: str, path: str
) -> None:
    answer = Client(enforce_csrf_checks=True).generic(method, path)
    assert answer.status_code == 404
    assert answer["Content-Type"].startswith("application/json")
    assert answer.json() == {
        "code": "NOT_FOUND",
        "message": "The API does not have this address.",
        "remedy": "See /api/v1/docs for all addresses.",
    }
