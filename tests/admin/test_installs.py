"""Pages of packages: asked for, looked at, approved as shown, used; and what they say while a
worker is at it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.urls import reverse

from mcpregistry.domain.installs.lock import hash_lock
from mcpregistry.models import Install, Server
from mcpregistry.models.server import Transport
from tests.admin.conftest import ClientOf
from tests.fakes.seed import Site

pytestmark = pytest.mark.one_database


def page(what: str, *args: Any) -> str:
    return reverse(f"admin:mcpregistry_install_{what}", args=args)


def test_a_package_is_asked_for_and_watched(client_of: ClientOf, site: Site) -> None:
    client = client_of("operator")
    refused = client.post(page("add"), {"ecosystem": "npm", "package": "--registry=x"})
    assert "is not a valid npm package name" in refused.content.decode()
    answer = client.post(
        page("add"),
        {"ecosystem": "pypi", "package": "mcp-server-time", "slug": "clock2"},
        follow=True,
    )
    row = Install.objects.get(package="mcp-server-time")
    html = answer.content.decode()
    assert (row.state, row.slug, row.requested_by) == (
        "requested",
        "clock2",
        f"user:{site.people['operator'].username}",
    )
    assert "is waiting for a worker" in html
    assert page("live", row.pk) in html
    assert client.get(page("live", row.pk)).status_code == 200
    Install.objects.filter(pk=row.pk).update(
        state="failed", reason="There is no version 9. Check it."
    )
    live = client.get(page("live", row.pk))
    assert (live.status_code, "There is no version 9" in live.content.decode()) == (286, True)
    assert "Show next actions" in live.content.decode()


def test_a_lock_is_approved_exactly_as_it_was_shown(client_of: ClientOf, site: Site) -> None:
    row = Install.objects.get(state="waiting")
    html = client_of("viewer").get(page("change", row.pk)).content.decode()
    assert "git-server 1.0.0 → 1.1.0" in html
    assert row.lock_sha256 in html
    assert "Approve and install" not in html
    assert "Licences: MIT 1" in html
    assert "1 package, with its hash; 0 new to this site" in html
    client = client_of("admin")
    shown = client.get(page("approve", row.pk)).content.decode()
    for told in (
        "git-server",
        "1.1.0",
        "MIT",
        row.lock_sha256[:16],
        "This downloads the code of 1 package",
    ):
        assert told in shown
    old = row.lock_sha256
    lock = json.dumps(json.loads(row.lock) | {"requires": True})
    Install.objects.filter(pk=row.pk).update(lock=lock, lock_sha256=hash_lock(lock))
    assert client.post(page("approve", row.pk), {"shown": old}).status_code == 409
    assert client.post(page("approve", row.pk), {"shown": hash_lock(lock)}).status_code == 302
    row.refresh_from_db()
    assert (row.state, row.approved_by) == ("approved", site.people["admin"])


def test_a_server_is_set_to_it_rolled_back_and_then_a_draft(
    client_of: ClientOf, site: Site
) -> None:
    client = client_of("operator")
    old = Install.objects.get(version="1.0.0", ecosystem="npm")
    new = Install.objects.get(version="1.1.0")
    for row in (old, new):
        Install.objects.filter(pk=row.pk).update(
            state="installed", command=["node", f"{row.folder}/cli.js"]
        )
        assert client.post(page("verb", row.pk, "use")).status_code == 302
    server = Server.objects.get(slug="git")
    assert (server.lifecycle, server.command) == ("draft", ["node", f"{new.folder}/cli.js"])
    html = client.get(page("change", new.pk)).content.decode()
    assert "Restore previous package" in html
    assert "Used by git." in html
    client.post(page("verb", new.pk, "roll-back"))
    server.refresh_from_db()
    assert server.command == ["node", f"{old.folder}/cli.js"]
    client.post(page("verb", new.pk, "remove"))
    new.refresh_from_db()
    assert new.state == "removed"


def test_lists_are_searched_and_filtered(client_of: ClientOf, site: Site) -> None:
    html = (
        client_of("viewer")
        .get(page("changelist"), {"q": "git-server", "state": "waiting"})
        .content.decode()
    )
    assert "1.1.0" in html
    assert "1.0.0" not in html
    assert Server.objects.filter(transport=Transport.STDIO).exists()
