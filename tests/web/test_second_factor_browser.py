"""The second factor by keyboard alone, on a phone and on a screen."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
from playwright.sync_api import expect
from pytest_django.live_server_helper import LiveServer

from tests.fakes.seed import PASSWORD, Site
from tests.web.test_second_factor import clock, code_of, require

__all__ = ["clock"]  # a fixture: codes' half minutes stand still

T = TypeVar("T")


def elsewhere(work: Callable[[], T]) -> T:
    """Playwright's own thread may ask the database nothing."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


@pytest.mark.exhaustive
@pytest.mark.web
@pytest.mark.one_database
@pytest.mark.parametrize("width", [390, 1280])
def test_it_is_set_up_and_used_by_keyboard(
    browser: Any, live_server: LiveServer, crowd: Site, width: int
) -> None:
    elsewhere(lambda: require("admin"))
    user = crowd.people["admin"]
    said = []
    window = browser.new_context(
        base_url=live_server.url, viewport={"width": width, "height": 844}
    ).new_page()
    window.on("console", lambda m: said.append(m.text) if m.type in {"error", "warning"} else None)
    window.on("pageerror", lambda error: said.append(str(error)))
    _type_password(window)
    window.wait_for_url("**/account/second-factor/")
    expect(window.locator("img.sn-qr")).to_have_js_property("complete", True)
    assert window.locator("img.sn-qr").bounding_box()["width"] > 150
    _fits(window)
    window.locator("#code").focus()
    window.keyboard.type(elsewhere(lambda: code_of(user, -1)))
    window.keyboard.press("Enter")
    expect(window.locator("#codes li")).to_have_count(10)
    _fits(window)
    window.get_by_role("link", name="I have stored the codes").focus()
    window.keyboard.press("Enter")
    window.wait_for_url("**/admin/")

    window.context.clear_cookies()
    _type_password(window)
    window.wait_for_url("**/login/code/**")
    expect(window.locator("#code")).to_be_focused()
    window.keyboard.type("000000")
    window.keyboard.press("Enter")
    expect(window.locator("#problem")).to_contain_text("This code is wrong")
    _fits(window)
    expect(window.locator("#code")).to_be_focused()
    window.keyboard.type(elsewhere(lambda: code_of(user)))
    window.keyboard.press("Enter")
    window.wait_for_url("**/admin/")
    assert said == []
    window.context.close()


def _type_password(window: Any) -> None:
    window.goto("/admin/login/")
    window.locator("#id_username").focus()
    window.keyboard.type("admin")
    window.keyboard.press("Tab")
    window.keyboard.type(PASSWORD)
    window.keyboard.press("Enter")


def _fits(window: Any) -> None:
    assert window.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
