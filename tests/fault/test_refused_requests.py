"""What REST and the admin answer while the database refuses to write: reading works, and changes
say what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from mcpregistry.api import auth
from mcpregistry.models import Agent, Token
from tests.api.conftest import Caller, caller

__all__ = ["caller"]  # fixture

pytestmark = pytest.mark.fault


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


@pytest.fixture
def reader(
    live_db: None, caller: Callable[[str], Caller], monkeypatch: pytest.MonkeyPatch
) -> Caller:
    """A program whose token was last used long ago, so its use would be noted now."""
    monkeypatch.setattr(auth, "_touch_again", 0.0)
    made = caller("admin")
    Token.objects.update(last_used_at=timezone.now() - timedelta(hours=1))
    return made


@pytest.fixture
def person(live_db: None) -> Client:
    """Somebody who may do anything, already logged in."""
    client = Client(raise_request_exception=False)
    Agent.objects.create(slug="old", name="Old")
    client.force_login(
        User.objects.create(username="ann", is_staff=True, is_superuser=True, password="!")
    )
    return client


@pytest.fixture
def read_only(reader: Caller, person: Client) -> Iterator[None]:
    """The session of this thread may read only, as any new one after a failover."""
    postgres = connection.vendor == "postgresql"
    execute("SET default_transaction_read_only = on" if postgres else "PRAGMA query_only = 1")
    yield
    execute("SET default_transaction_read_only = off" if postgres else "PRAGMA query_only = 0")


@pytest.mark.usefixtures("read_only")
def test_reading_over_rest_works_though_the_use_of_the_token_cannot_be_noted(
    reader: Caller,
) -> None:
    for _ in range(2):
        answer = reader.get("/agents")
        assert answer.status_code == 200, answer.content


@pytest.mark.usefixtures("read_only")
def test_noting_the_use_of_a_token_is_not_tried_with_each_request(
    reader: Caller,
) -> None:
    reader.get("/agents")
    with CaptureQueriesContext(connection) as asked:
        assert reader.get("/agents").status_code == 200
    assert not [each["sql"] for each in asked if each["sql"].startswith("UPDATE")]


@pytest.mark.usefixtures("read_only")
def test_a_change_over_rest_is_refused_and_may_be_tried_again(reader: Caller) -> None:
    answer = reader.post("/agents", {"slug": "new", "name": "New"})
    assert (answer.status_code, answer.json()["code"]) == (503, "UNAVAILABLE")
    assert "does not accept changes at the moment" in answer.json()["message"]
    assert answer["Retry-After"] == "1"
    assert not Agent.objects.filter(slug="new").exists()


@pytest.mark.usefixtures("read_only")
def test_a_change_in_the_admin_gets_a_page_that_says_what_to_do(person: Client) -> None:
    answer = person.post(
        f"/admin/mcpregistry/agent/{Agent.objects.get(slug='old').pk}/delete/", {"post": "yes"}
    )
    assert answer.status_code == 503
    assert answer["Retry-After"] == "1"
    assert "does not accept changes at the moment" in answer.content.decode()
    assert "Try again in a moment" in answer.content.decode()


def test_a_fault_of_ours_is_not_taken_for_one_of_the_database(
    person: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("ours")

    monkeypatch.setattr("mcpregistry.admin.access.AgentAdmin.get_queryset", broken)
    answer = person.get("/admin/mcpregistry/agent/")
    assert answer.status_code == 500
    assert "database" not in answer.content.decode()
