"""The pages of hosts' sessions: found, read, and ended with one click."""

from __future__ import annotations

import pytest
from django.urls import reverse

from mcpregistry.models import HostSession, Server
from mcpregistry.services import host_sessions
from tests.admin.conftest import ClientOf
from tests.fakes.seed import Site

pytestmark = [pytest.mark.usefixtures("contexts"), pytest.mark.one_database]
CLIENT = (
    '{"capabilities": {"elicitation": {}}, "clientInfo": {"name": "<b>Code</b>", "version": "9"}}'
)


def test_sessions_are_found_shown_and_ended(client_of: ClientOf, site: Site) -> None:
    for name in ("first", "second"):
        host_sessions.begin_session(
            session_id=name,
            agent="ci",
            endpoint="default",
            version="2025-11-25",
            client=CLIENT,
            name="<b>Code</b>",
            said_version="9",
        )
    server = Server.objects.order_by("slug")[0]
    host_sessions.note_connections("web@box:1", [("first", server.pk)])
    operator = client_of("operator")
    viewer = client_of("viewer")
    listed = viewer.get(reverse("admin:mcpregistry_hostsession_changelist") + "?q=fir")
    assert [row.pk for row in listed.context["cl"].result_list] == ["first"]
    address = reverse("admin:mcpregistry_hostsession_change", args=["first"])
    html = viewer.get(address).content.decode()
    for told in (
        "&lt;b&gt;Code&lt;/b&gt; 9",
        server.slug,
        "web@box:1",
        "elicitation",
        "2025-11-25",
    ):
        assert told in html, told
    assert "End session" not in html
    assert "End session" in operator.get(address).content.decode()
    verb = reverse("admin:mcpregistry_hostsession_verb", args=["first", "end"])
    assert viewer.post(verb).status_code == 403
    assert "have ended" in operator.post(verb, follow=True).content.decode()
    assert HostSession.objects.get(pk="first").ended_at is not None
    assert "End session" not in operator.get(address).content.decode()
