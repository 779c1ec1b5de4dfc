"""People at the pages of held calls: logged-in clients, and windows of a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.conf import settings as site_settings
from django.test import Client
from pytest_django import Settings
from pytest_django.live_server_helper import LiveServer

from tests.fakes.lived import populated
from tests.fakes.seed import Site
from tests.fakes.woken import Sent, listened_to

ClientOf = Callable[[str], Client]


def answered(window: Any, text: str) -> None:
    """Wait for the page that says so, with its scripts: a key that is pressed before they have
    begun does nothing."""
    window.get_by_text(text).wait_for()
    window.wait_for_load_state()


@pytest.fixture(autouse=True)
def woken(monkeypatch: pytest.MonkeyPatch) -> Sent:
    return listened_to(monkeypatch)


@pytest.fixture
def people(db: None, settings: Settings) -> Site:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    return populated(calls=0)


@pytest.fixture
def client_of(people: Site) -> ClientOf:
    def logged_in(who: str) -> Client:
        client = Client(enforce_csrf_checks=False)
        client.force_login(people.people[who])
        return client

    return logged_in


@pytest.fixture
def crowd(live_db: None, settings: Settings) -> Site:
    """The same people and servers, in rows that the server's threads see."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    return populated(calls=0)


@pytest.fixture
def window_of(browser: Any, live_server: LiveServer, crowd: Site) -> Iterator[Callable[..., Any]]:
    """``window_of("approver")``: a browser window of its own in which that person is logged in.

    At the end no window may have asked another host for anything, opened a dialog, or met a script
    error.
    """
    windows: list[Any] = []

    def opened(who: str, **options: Any) -> Any:
        client = Client()
        client.force_login(crowd.people[who])
        context = browser.new_context(base_url=live_server.url, **options)
        cookie = client.cookies[site_settings.SESSION_COOKIE_NAME].value
        context.add_cookies(
            [{"name": site_settings.SESSION_COOKIE_NAME, "value": cookie, "url": live_server.url}]
        )
        window = context.new_page()
        window.strays = []
        window.alarms = []
        window.on(
            "request",
            lambda r: (
                None
                if r.url.startswith((live_server.url, "data:"))
                else window.strays.append(r.url)
            ),
        )
        window.on("dialog", lambda dialog: (window.alarms.append(dialog.message), dialog.dismiss()))
        window.on("pageerror", lambda error: window.alarms.append(str(error)))
        windows.append(window)
        return window

    yield opened
    for window in windows:
        window.context.close()
    assert [window.strays for window in windows if window.strays] == []
    assert [window.alarms for window in windows if window.alarms] == []
