"""Pages of registries: found, looked at, added by a form."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.urls import reverse

from mcpregistry.models import Install, RegistryEntry, RegistrySource, Server
from tests.admin.conftest import ClientOf
from tests.fakes.seed import Site

pytestmark = pytest.mark.one_database


def page(what: str, *args: Any) -> str:
    return reverse(f"admin:mcpregistry_registryentry_{what}", args=args)


def text(answer: Any) -> str:
    found: str = answer.content.decode()
    return found


def test_a_package_is_found_and_asked_for_by_a_form(client_of: ClientOf, site: Site) -> None:
    client = client_of("operator")
    entry = RegistryEntry.objects.get(name="io.example/time", is_latest=True)
    found = text(client.get(page("changelist"), {"q": "tells time"}))
    assert page("change", entry.pk) in found
    assert "io.example/weather" not in found
    assert page("add_way", entry.pk, 0) in text(client.get(page("change", entry.pk)))
    form = text(client.get(page("add_way", entry.pk, 0)))
    for told in ("--local-timezone", 'value="UTC"', entry.sha256, "Request package"):
        assert told in form
    entered = {"slug": "clock2", "input-0": "CET", "shown": entry.sha256}
    answer = client.post(page("add_way", entry.pk, 0), entered, follow=True)
    made = Install.objects.get(slug="clock2")
    assert (made.package, made.wanted, made.arguments) == (
        "mcp-server-time",
        "2026.10.19",
        ["--local-timezone", "CET"],
    )
    assert "is waiting for a worker" in text(answer)


def test_what_was_entered_stays_where_it_is_refused_but_for_secrets(
    client_of: ClientOf, site: Site
) -> None:
    client = client_of("admin")
    entry = RegistryEntry.objects.get(name="io.example/weather")
    way = page("add_way", entry.pk, 1)
    refused = text(client.post(way, {"slug": "time", "input-0": "s3cret", "shown": entry.sha256}))
    assert "already exists" in refused
    assert "s3cret" not in refused
    missing = text(client.post(way, {"slug": "weather", "shown": entry.sha256}))
    assert "This field is required" in missing
    client.post(way, {"slug": "weather", "input-0": "s3cret", "shown": entry.sha256})
    assert Server.objects.get(slug="weather").headers == {"X-API-Key": "${cred:weather-X-API-Key}"}


def test_who_may_not_add_sees_no_form(client_of: ClientOf, site: Site) -> None:
    entry = RegistryEntry.objects.get(name="io.example/weather")
    client = client_of("viewer")
    assert page("add_way", entry.pk, 1) not in text(client.get(page("change", entry.pk)))
    assert client.get(page("add_way", entry.pk, 1)).status_code == 403
    answer = client_of("admin").get(page("add_way", entry.pk, 0), follow=True)
    assert "does not install packages of the kind" in text(answer)


def test_the_list_says_where_nothing_was_read(client_of: ClientOf, site: Site) -> None:
    client = client_of("viewer")
    assert "has not read a registry yet" not in text(client.get(page("changelist")))
    RegistrySource.objects.all().delete()
    assert "has not read a registry yet" in text(client.get(page("changelist")))


@pytest.mark.attack
def test_what_a_stranger_wrote_is_text_on_the_form(client_of: ClientOf, site: Site) -> None:
    mark = "<img src=x onerror=alert(1)>"
    asked = {"name": mark, "description": mark, "choices": [mark, "b"], "default": mark}
    document = {
        "remotes": [
            {
                "type": "sse",
                "url": "https://x.example/sse",
                "headers": [asked, asked | {"name": "Y", "choices": []}],
            }
        ]
    }
    entry = RegistryEntry.objects.get(name="io.example/weather")
    RegistryEntry.objects.filter(pk=entry.pk).update(
        document=json.dumps(document), title=mark, description=mark
    )
    client = client_of("admin")
    for address in (page("change", entry.pk), page("add_way", entry.pk, 0), page("changelist")):
        shown = text(client.get(address))
        assert mark not in shown
        assert "&lt;img src=x" in shown


def test_a_token_is_entered_kept_and_removed_and_never_shown(
    client_of: ClientOf, site: Site
) -> None:
    source = RegistrySource.objects.get()
    address = reverse("admin:mcpregistry_registrysource_change", args=[source.pk])
    client = client_of("admin")
    entered = {
        "slug": source.slug,
        "base_url": "https://registry.example",
        "token": "s3cret",
        "allowed_networks": "[]",
    }
    client.post(address, entered)
    source.refresh_from_db()
    assert source.token == "s3cret"
    shown = text(client.get(address))
    assert "Remove the stored token" in shown
    assert "s3cret" not in shown
    moved = text(client.post(address, entered | {"token": "", "base_url": "https://evil.example"}))
    assert "you cannot keep the stored token" in moved
    assert 'name="token"' not in text(client_of("operator").get(address))
    client.post(address, entered | {"token": "", "remove_token": "on"})
    source.refresh_from_db()
    assert source.sealed_token == ""
