"""Channels and deliveries over REST: the same rules as on the pages, and no secret comes out."""

from __future__ import annotations

import pytest

from mcpregistry.models import Channel, Delivery, PolicyRule
from mcpregistry.services.notifications import outbox
from tests.api.conftest import new_server
from tests.api.test_metrics import scrape
from tests.services.telling import SIGNING, email, held, tell

URL = "https://hooks.example.org/path-canary"
NEW = {"name": "Chat", "kind": "webhook", "url": URL, "signing": SIGNING}


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch):
    monkeypatch.setattr(outbox, "wake_worker", lambda *_: True)


def test_a_channel_from_beginning_to_end(live_db, caller):
    admin = caller("admin")
    new_server("echo")
    PolicyRule.objects.create(name="writes")
    more = {"servers": ["echo"], "rules": ["writes"], "minimum_risk": "medium", "events": ["asked"]}
    made = admin.post("/channels", NEW | more)
    assert made.status_code == 201
    shown = made.json()
    assert (shown["origin"], shown["secrets"]) == ("https://hooks.example.org", ["signing", "url"])
    assert {name: shown[name] for name in more} == more
    assert "canary" not in made.content.decode()
    assert SIGNING not in made.content.decode()
    path = f"/channels/{shown['id']}"
    changed = admin.patch(path, {"enabled": False, "servers": [], "url": URL + "2"}).json()
    assert (changed["enabled"], changed["servers"], changed["rules"]) == (False, [], ["writes"])
    assert Channel.objects.get().access == {"url": URL + "2", "signing": SIGNING}
    assert admin.post(f"{path}/test").status_code == 409
    admin.patch(path, {"enabled": True})
    tried = admin.post(f"{path}/test")
    assert (tried.status_code, tried.json()["state"]) == (201, "waiting")
    assert [item["name"] for item in admin.get("/channels").json()["items"]] == ["Chat"]
    assert admin.delete(path).status_code == 204
    assert not Delivery.objects.exists()


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"signing": "short"}, 422),
        ({"kind": "pigeon"}, 422),
        ({"events": ["test"]}, 422),
        ({"servers": ["absent"]}, 404),
        ({"rules": ["absent"]}, 404),
        ({"url": "file:///etc/passwd"}, 422),
        ({"unknown": 1}, 422),
    ],
)
def test_bad_input_is_refused_and_stores_nothing(live_db, caller, change, status):
    answer = caller("admin").post("/channels", NEW | change)
    assert answer.status_code == status
    assert answer.json()["remedy"]
    assert "canary" not in answer.content.decode()
    assert not Channel.objects.exists()


def test_deliveries_are_listed_filtered_and_repeated(live_db, caller):
    email(), email(name="second")
    request = held()
    tell("asked", request), tell("expired", request)
    Delivery.objects.filter(event="asked").update(
        state="given up", next_at=None, last_error="HTTP 500"
    )
    viewer = caller("viewer")
    assert len(viewer.get("/deliveries").json()["items"]) == 4
    for query, count in (
        (f"approval={request.pk}", 4),
        ("channel=second", 2),
        ("event=asked", 2),
        ("state=given%20up&channel=mail", 1),
        ("approval=other", 0),
    ):
        assert len(viewer.get(f"/deliveries?{query}").json()["items"]) == count, query
    first = viewer.get("/deliveries?limit=1&state=given%20up").json()
    row = viewer.get(f"/deliveries/{first['items'][0]['id']}").json()
    assert (row["body"]["type"], row["last_error"]) == ("approval.asked", "HTTP 500")
    assert (
        len(viewer.get(f"/deliveries?state=given%20up&cursor={first['next']}").json()["items"]) == 1
    )
    again = caller("admin").post(f"/deliveries/{row['id']}/redeliver")
    assert (again.status_code, again.json()["state"], again.json()["uid"]) == (
        200,
        "waiting",
        row["uid"],
    )
    assert caller("admin").post(f"/deliveries/{row['id']}/redeliver").status_code == 409


def test_the_metrics_tell_what_waits_and_what_failed(live_db, settings):
    settings.METRICS_LOCAL = True
    email()
    tell("asked", held())
    tell("expired", held())
    Delivery.objects.filter(event="expired").update(state="failed")
    seen = scrape()
    for state in ("waiting", "failed"):
        assert seen["slipsnisse_notifications", (("channel", "mail"), ("state", state))] == 1
