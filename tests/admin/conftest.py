from __future__ import annotations

from collections.abc import Callable

import pytest
from django.test import Client

from tests.fakes.lived import populated
from tests.fakes.seed import Site
from tests.fakes.woken import Sent, listened_to

ClientOf = Callable[[str], Client]


@pytest.fixture
def site(db: None) -> Site:
    return populated(calls=40)


@pytest.fixture
def client_of(site: Site) -> ClientOf:
    """A browser that is logged in as somebody of this role, or as the superuser ``root``."""

    def logged_in(who: str) -> Client:
        client = Client()
        client.force_login(site.people[who])
        return client

    return logged_in


@pytest.fixture(autouse=True)
def woken(monkeypatch: pytest.MonkeyPatch) -> Sent:
    return listened_to(monkeypatch)
