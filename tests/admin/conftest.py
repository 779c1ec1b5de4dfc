from __future__ import annotations

from collections.abc import Callable

import pytest
from django.test import Client
from pytest_django import Settings

from mcpregistry.services import wakeups
from tests.fakes.lived import populated
from tests.fakes.seed import Site

ClientOf = Callable[[str], Client]


@pytest.fixture
def site(db: None, settings: Settings) -> Site:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
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
def woken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[int, ...]]]:
    """What workers were asked to do; no broker is needed to see that they were asked."""
    sent: list[tuple[str, tuple[int, ...]]] = []

    def wake(task: str, *ids: int) -> bool:
        sent.append((task, ids))
        return True

    for module in ("mcpregistry.services.wakeups", "mcpregistry.services.health", "mcpregistry.services.notifications"):
        monkeypatch.setattr(f"{module}.wake", wake)
    assert wakeups.wake is wake
    return sent
