"""Channels are made, tried and mended on their pages; what opens them is never shown."""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import reverse

from mcpregistry.models import AuditEntry, Channel, Delivery, SlackIdentity
from tests.admin.conftest import ClientOf
from tests.fakes.seed import Site
from tests.services.telling import SIGNING

pytestmark = pytest.mark.one_database

URL = "https://hooks.example.org/path-canary"


def form(**fields: Any) -> dict[str, Any]:
    return {
        "name": "Chat",
        "kind": "webhook",
        "enabled": "on",
        "url": URL,
        "signing": SIGNING,
        "minimum_risk": "1",
    } | fields


def add(client: Any, **fields: Any) -> Any:
    return client.post(reverse("admin:mcpregistry_channel_add"), form(**fields), follow=True)


def test_a_channel_is_added_shown_and_changed_without_showing_its_secrets(
    site: Site, client_of: ClientOf
) -> None:
    admin = client_of("admin")
    answer = add(
        admin,
        servers=[site.servers["git"].pk],
        events=["asked", "expired"],
        token="xoxb-not-of-a-webhook",
    )
    assert answer.status_code == 200
    channel = Channel.objects.get(name="Chat")
    assert channel.access == {"url": URL, "signing": SIGNING}
    assert (channel.events, [server.slug for server in channel.servers.all()]) == (
        ["asked", "expired"],
        ["git"],
    )
    change = reverse("admin:mcpregistry_channel_change", args=[channel.pk])
    page = admin.get(change).content.decode()
    assert URL in page, "who may change it may see where it goes"
    assert SIGNING not in page
    admin.post(change, form(name="Renamed", signing="", url=URL + "2"))
    channel = Channel.objects.get(pk=channel.pk)
    assert (channel.name, channel.access) == ("Renamed", {"url": URL + "2", "signing": SIGNING})
    viewer = client_of("viewer")
    for what in ("change", "history"):
        page = viewer.get(
            reverse(f"admin:mcpregistry_channel_{what}", args=[channel.pk])
        ).content.decode()
        assert "canary" not in page
    assert "https://hooks.example.org" in viewer.get(change).content.decode()
    assert (
        "canary" not in viewer.get(reverse("admin:mcpregistry_channel_changelist")).content.decode()
    )


def test_a_refusal_names_the_remedy_stores_nothing_and_keeps_what_was_typed(
    site: Site, client_of: ClientOf
) -> None:
    page = add(client_of("admin"), signing="whsec_short", name="Night watch").content.decode()
    assert "24 to 64 bytes" in page
    assert "openssl rand" in page
    assert 'value="Night watch"' in page
    assert URL in page
    assert not Channel.objects.filter(name="Night watch").exists()


def test_a_test_message_is_owed_and_the_worker_woken(
    site: Site, client_of: ClientOf, woken: list[Any], django_capture_on_commit_callbacks: Any
) -> None:
    channel = Channel.objects.get(name="On call")
    with django_capture_on_commit_callbacks(execute=True):
        client_of("admin").post(
            reverse("admin:mcpregistry_channel_verb", args=[channel.pk, "test"])
        )
    assert Delivery.objects.filter(channel=channel, event="test", state="waiting").count() == 1
    assert ("deliver_notifications", ()) in woken
    channel.enabled = False
    channel.save()
    client_of("admin").post(reverse("admin:mcpregistry_channel_verb", args=[channel.pk, "test"]))
    assert Delivery.objects.filter(channel=channel, event="test", state="waiting").count() == 1


def test_what_ended_can_be_sent_again_one_by_one_and_together(
    site: Site, client_of: ClientOf
) -> None:
    admin = client_of("admin")
    sent = Delivery.objects.get(state="sent")
    admin.post(reverse("admin:mcpregistry_delivery_verb", args=[sent.pk, "redeliver"]))
    sent.refresh_from_db()
    assert sent.state == "waiting"
    Delivery.objects.update(state="given up", next_at=None)
    chosen = {
        "action": "redeliver_selected",
        "_selected_action": [row.pk for row in Delivery.objects.all()],
    }
    page = admin.post(
        reverse("admin:mcpregistry_delivery_changelist"), chosen, follow=True
    ).content.decode()
    assert "2 messages are sent again" in page
    assert set(Delivery.objects.values_list("state", flat=True)) == {"waiting"}
    assert AuditEntry.objects.filter(kind="delivery.repeated").count() == 3


@pytest.mark.both_databases
def test_deliveries_can_be_filtered_and_searched(site: Site, client_of: ClientOf) -> None:
    viewer = client_of("viewer")
    address = reverse("admin:mcpregistry_delivery_changelist")
    assert "HTTP 500" in viewer.get(address).content.decode()
    assert "HTTP 500" not in viewer.get(address, {"state__exact": "sent"}).content.decode()
    assert "HTTP 500" in viewer.get(address, {"q": "Incidents"}).content.decode()


def test_slack_people_are_added_by_admins_and_recorded(site: Site, client_of: ClientOf) -> None:
    fields = {"user": site.people["viewer"].pk, "team": "T1", "member": "U1"}
    address = reverse("admin:mcpregistry_slackidentity_add")
    assert client_of("approver").post(address, fields).status_code == 403
    assert client_of("admin").post(address, fields).status_code == 302
    identity = SlackIdentity.objects.get(member="U1")
    assert AuditEntry.objects.filter(kind="slack_person.created").count() == 1
    client_of("admin").post(
        reverse("admin:mcpregistry_slackidentity_delete", args=[identity.pk]), {"post": "yes"}
    )
    assert not SlackIdentity.objects.filter(member="U1").exists()
