"""Idempotency-Key: whatever makes or starts something does so once, however often the request
comes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from django.db import connections
from django.utils import timezone

from mcpregistry.api.v1 import api
from mcpregistry.models import (
    Agent,
    Budget,
    Channel,
    Conversation,
    Delivery,
    Endpoint,
    EnergyPool,
    Grant,
    Install,
    KeptAnswer,
    PolicyRule,
    RegistryEntry,
    RegistrySource,
    Server,
    ServerTest,
    Token,
)
from mcpregistry.services.notifications import outbox
from tests.api.conftest import ROOT, new_agent, new_server, new_tool
from tests.services.telling import SIGNING
from tests.waiting import HANG_LIMIT

pytestmark = pytest.mark.exhaustive(on="postgresql")

KEYED = {"Idempotency-Key": "k-1"}
HOOK = {"name": "hook", "kind": "webhook", "url": "https://hooks.example.org/x", "signing": SIGNING}
GRANT = {"agent": "robot", "server": "echo"}


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch):
    monkeypatch.setattr(outbox, "wake_worker", lambda *_: True)


def furnish() -> None:
    new_agent("robot")
    server = new_server()
    new_tool(server)
    Server.objects.filter(pk=server.pk).update(
        lifecycle="active", confirmed_launch=server.launch_hash()
    )
    RegistryEntry.objects.create(
        pk=7,
        source=RegistrySource.objects.create(slug="public", base_url="https://public.example"),
        name="a/b",
        version="1.0.0",
        status="active",
        sha256="a" * 64,
        seen_at=timezone.now(),
        document='{"remotes": [{"type": "sse", "url": "https://there.example/sse"}]}',
    )


WRITES = [
    ("/agents", {"slug": "ann"}, Agent),
    ("/endpoints", {"slug": "lab"}, Endpoint),
    ("/servers", {"slug": "git", "command": ["x"], "env": {"TOKEN": "s3cret"}}, Server),
    ("/servers/echo/tests", {}, ServerTest),
    ("/grants", GRANT, Grant),
    ("/installs", {"ecosystem": "npm", "package": "a"}, Install),
    ("/rules", {"name": "no", "outcome": "deny"}, PolicyRule),
    ("/conversations", {"agent": "robot"}, Conversation),
    ("/energy", {"slug": "pool"}, EnergyPool),
    ("/budgets", {"slug": "daily", "agent": "robot", "unit": "calls", "hard": 5}, Budget),
    ("/registries", {"slug": "official", "base_url": "https://registry.example"}, RegistrySource),
    ("/registry-entries/7/add", {"slug": "there", "sha256": "a" * 64}, Server),
    ("/channels", HOOK, Channel),
]


@pytest.mark.exhaustive(one_in=9)
@pytest.mark.exhaustive(on="postgresql")
@pytest.mark.parametrize(("path", "body", "model"), WRITES, ids=[path for path, _, _ in WRITES])
def test_a_repeated_request_gets_the_first_answer_and_makes_nothing(
    db, caller, path: str, body: Any, model: Any
):
    furnish()
    admin = caller("admin")
    before = model.objects.count()
    first = admin.post(path, body, **KEYED)
    again = admin.post(path, body, **KEYED)
    assert first.status_code in (201, 202), first.content
    assert (again.status_code, again.content) == (first.status_code, first.content)
    assert model.objects.count() == before + 1
    assert "s3cret" not in KeptAnswer.objects.get().body


@pytest.mark.both_databases
def test_a_key_belongs_to_one_request_and_one_caller(db, caller):
    furnish()
    admin = caller("admin")
    admin.post("/grants", GRANT, **KEYED)
    for path, body in (("/grants", GRANT | {"note": "x"}), ("/agents", {"slug": "ann"})):
        refused = admin.post(path, body, **KEYED)
        assert (refused.status_code, refused.json()["code"]) == (409, "CONFLICT")
        assert "another request" in refused.json()["message"]
    assert caller("admin").post("/grants", GRANT, **KEYED).status_code == 201
    assert Grant.objects.count() == 2


@pytest.mark.both_databases
def test_a_refused_request_gives_its_key_back_and_without_a_key_nothing_is_kept(db, caller):
    furnish()
    admin = caller("admin")
    assert admin.post("/grants", GRANT | {"server": "nowhere"}, **KEYED).status_code == 404
    assert admin.post("/grants", GRANT, **KEYED).status_code == 201
    for _ in range(2):
        assert admin.post("/grants", GRANT).status_code == 201
    assert (Grant.objects.count(), KeptAnswer.objects.count()) == (3, 1)


def test_a_token_is_made_once_and_its_text_is_kept_nowhere(db, caller):
    furnish()
    admin = caller("admin")
    first = admin.post("/agents/robot/tokens", {"name": "ci"}, **KEYED).json()
    again = admin.post("/agents/robot/tokens", {"name": "ci"}, **KEYED)
    assert (again.status_code, again.json()["code"]) == (409, "CONFLICT")
    assert f"token {first['id']} ({first['prefix']}" in again.json()["message"]
    assert Token.objects.filter(agent__slug="robot").count() == 1
    assert first["token"] not in KeptAnswer.objects.get().body + again.content.decode()


def test_a_message_is_sent_once_and_once_more_only_with_another_key(db, caller):
    admin = caller("admin")
    channel = admin.post("/channels", HOOK).json()["id"]
    sent = [
        admin.post(f"/channels/{channel}/test", **{"Idempotency-Key": key}).json()["id"]
        for key in ("a", "a", "b")
    ]
    assert (sent[0] == sent[1], Delivery.objects.count()) == (True, 2)


@pytest.mark.both_databases
def test_of_two_at_once_both_get_the_answer_and_one_has_the_effect(live_db, caller):
    furnish()
    admin = caller("admin")
    ready = Barrier(4)

    def post(_: int) -> tuple[int, bytes]:
        try:
            ready.wait(HANG_LIMIT)
            answer = type(admin)(admin.token).post("/grants", GRANT, **KEYED)
            return answer.status_code, answer.content
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as threads:
        answers = set(threads.map(post, range(4)))
    assert [status for status, _ in answers] == [201]
    assert Grant.objects.count() == 1


def test_the_document_says_which_requests_take_a_key(db):
    paths = api.get_openapi_schema(path_prefix="")["paths"]
    operations = [
        (path, operation) for path, methods in paths.items() for operation in methods.values()
    ]
    taking = {
        path
        for path, operation in operations
        if "Idempotency-Key" in {parameter["name"] for parameter in operation.get("parameters", ())}
    }
    made = {
        path.partition("?")[0] for path, _, _ in WRITES if "echo" not in path and "7" not in path
    }
    assert taking == made | {
        "/servers/{slug}/tests",
        "/agents/{slug}/tokens",
        "/conversations/{conversation_id}/messages",
        "/channels/{channel_id}/test",
        "/config/import",
        "/config/as-of",
        "/history/{kind}/{version_id}/restore",
        "/deliveries/{delivery_id}/redeliver",
        "/registry-entries/{entry_id}/add",
        "/tools/{name}/call",
        "/experts/{name}/runs",
        "/runs/{run_id}/replay",
        "/access/proposals/{grant_id}",
        "/context-bill/hide",
        "/maintenance/requests",
        "/maintenance/energy/poll",
        "/maintenance/messages/poll",
        "/energy/{slug}/grant",
    }


NAMED = [
    ("/agents", {"slug": "robot"}, 'agent named "robot"', "/agents/robot"),
    ("/servers", {"slug": "echo", "command": ["x"]}, 'server named "echo"', "/servers/echo"),
    ("/endpoints", {"slug": "lab"}, 'endpoint named "lab"', "/endpoints/lab"),
    ("/rules", {"name": "no", "outcome": "deny"}, 'rule named "no"', "/rules/"),
    ("/channels", HOOK, 'channel named "hook"', "/channels/"),
]


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize(("path", "body", "what", "where"), NAMED, ids=[path for path, *_ in NAMED])
def test_a_name_that_is_taken_is_a_conflict_that_says_where_the_other_is(
    db, caller, path, body, what, where
):
    furnish()
    admin = caller("admin")
    admin.post(path, body)
    refused = admin.post(path, body)
    assert (refused.status_code, refused.json()["code"]) == (409, "ALREADY_EXISTS")
    assert what in refused.json()["message"]
    place = next(
        word for word in refused.json()["remedy"].split() if word.startswith("/")
    ).removesuffix(".")
    assert place.startswith(ROOT + where)
    assert admin.get(place.removeprefix(ROOT)).status_code == 200


def test_a_new_name_that_is_taken_is_a_conflict_and_other_faults_are_told_first(db, caller):
    furnish()
    new_agent("ann")
    admin = caller("admin")
    refused = admin.patch("/agents/ann", {"slug": "robot"})
    assert (refused.status_code, f"{ROOT}/agents/robot" in refused.json()["remedy"]) == (409, True)
    both = admin.post("/servers", {"slug": "echo", "command": ["x"], "connect_timeout": 0.01})
    assert both.status_code == 422


@pytest.mark.both_databases
def test_of_two_makers_of_one_name_at_once_the_second_is_told_that_it_is_taken(live_db, caller):
    admin = caller("admin")
    ready = Barrier(2)

    def post(_: int) -> int:
        try:
            ready.wait(HANG_LIMIT)
            return type(admin)(admin.token).post("/agents", {"slug": "ann"}).status_code
        finally:
            connections.close_all()

    with ThreadPoolExecutor(2) as threads:
        assert sorted(threads.map(post, range(2))) == [201, 409]
