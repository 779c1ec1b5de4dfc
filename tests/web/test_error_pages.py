"""Addresses that are not there, or not for this person: a page of the site for people, for programs
what it was."""

from __future__ import annotations

import pytest
from django.test import Client

from tests.fakes.seed import Site
from tests.web.conftest import ClientOf

pytestmark = pytest.mark.one_database


def test_unknown_address_is_a_page_with_a_way_on(people: Site, client_of: ClientOf) -> None:
    for address in ("/nowhere/", "/admin/nowhere/"):
        answer = client_of("viewer").get(address)
        assert answer.status_code == 404
        assert "This page does not exist" in answer.content.decode()
        assert 'href="/admin/"' in answer.content.decode()
        assert "script-src 'self'" in answer["Content-Security-Policy"]


def test_denied_page_says_whom_to_ask(people: Site, client_of: ClientOf) -> None:
    answer = client_of("viewer").get("/admin/mcpregistry/server/add/")
    assert answer.status_code == 403
    assert "Ask an administrator for a role that includes this page" in answer.content.decode()


def test_stale_form_says_that_nothing_was_changed(people: Site) -> None:
    answer = Client(enforce_csrf_checks=True).post("/admin/login/", {"username": "root"})
    assert answer.status_code == 403
    assert "Nothing was changed" in answer.content.decode()


def test_programs_get_no_page(people: Site, client_of: ClientOf) -> None:
    answer = client_of("viewer").get("/api/v1/nowhere")
    assert answer.status_code == 404
    assert "<nav" not in answer.content.decode()
