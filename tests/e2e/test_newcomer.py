"""A newcomer in a real browser: from the line of a server's README to the first call of its tool,
counted in clicks.

``pytest -rP`` shows the clicks and seconds of each path.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import expect

from tests.controlplane.test_up import NO_MODELS, running
from tests.fakes.targets import SERVERS
from tests.waiting import HANG_LIMIT, eventually

pytestmark = [pytest.mark.web, pytest.mark.e2e, pytest.mark.one_database]

MOST_CLICKS = 12
LISTED = [
    {
        "name": "echo",
        "description": "Says it again.",
        "inputSchema": {"type": "object"},
        "annotations": {"readOnlyHint": True},
    }
]


CHANGES = [LISTED[0] | {"annotations": {"readOnlyHint": False}}]


def line(name: str, listed: list[dict[str, Any]] = LISTED) -> str:
    """As a README has it, with a secret still to be filled in and one that stands there."""
    words = [
        "claude",
        "mcp",
        "add",
        name,
        "-e",
        f"FAKE_LISTED={json.dumps(listed)}",
        "-e",
        "ECHO_TOKEN=ghp_abcdefghijklmnop1234",
    ]
    return shlex.join([*words, "--", sys.executable, "-S", str(SERVERS / "echo.py")])


class Newcomer:
    """One person at one window; every click is counted, typing is not."""

    def __init__(self, browser: Any, url: str, password: str, width: int) -> None:
        self.browser = browser
        self.url = url
        self.size = {"width": width, "height": 900}
        self.alarms: list[str] = []
        self.page = self.window()
        self.clicks = 0
        self.since = time.monotonic()
        self.page.goto("/admin/login/?next=/admin/mcpregistry/server/")
        self.page.fill("#id_username", "admin")
        self.page.fill("#id_password", password)
        self.page.click("#login-form button[type=submit]")

    def window(self) -> Any:
        """A new window, in which nobody is logged in."""
        page = self.browser.new_context(base_url=self.url, viewport=self.size).new_page()
        page.on("pageerror", lambda error: self.alarms.append(str(error)))
        return page

    def ended(self, path: str) -> int:
        """Return how many clicks the path took, print that with its seconds, and count from 0
        again."""
        clicks = self.clicks
        self.clicks = 0
        print(
            f"{path} at {self.size['width']} px: {clicks} clicks, {time.monotonic() - self.since:.1f} s"
        )
        self.since = time.monotonic()
        return clicks

    def click(self, role: str, name: str) -> None:
        self.page.get_by_role(role, name=name, exact=True).first.click()
        self.clicks += 1

    def fits(self) -> None:
        """Nothing of the page lies beyond the window's edge."""
        wide = self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert wide <= 0, self.page.url

    def adds(self, name: str, listed: list[dict[str, Any]] = LISTED) -> None:
        """From the list of servers to the server's last step."""
        self.click("link", "Add a server")
        self.page.fill("#id_paste", line(name, listed))
        self.click("button", "Continue")
        expect(self.page.locator("#id_slug")).to_have_value(name)
        assert "ghp_abcdefghijklmnop1234" not in self.page.content()
        self.fits()
        self.click("button", "Save draft and continue")
        expect(self.page.locator("#words")).to_contain_text("echo.py")
        self.fits()
        self.click("button", "Confirm launch")
        expect(self.page.get_by_role("heading", name="1 waiting definition")).to_be_visible()
        if listed is LISTED:  # it claims to change nothing
            self.page.get_by_text("I confirm what the server claims").click()
            self.clicks += 1
        self.fits()
        self.click("button", "Approve selected and continue")
        expect(self.page.get_by_label("local")).to_be_checked()
        self.fits()
        self.click("button", "Grant access")
        expect(
            self.page.get_by_role("heading", name=f"Setup of {name} is complete")
        ).to_be_visible()


def called(url: str, token: str, tool: str) -> str:
    """What a tool answers to the agent of this token."""
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
    answer = httpx2.post(
        f"{url}/api/v1/tools/{tool}/call",
        json={"params": {"text": "hello"}},
        headers=headers,
        timeout=HANG_LIMIT,
    )
    return f"{answer.status_code} {answer.text}"


def granted(answer: str) -> str:
    """The answer, unless it says that there is no such tool."""
    return "" if answer.startswith("404 ") else answer


def answered(answer: str) -> str:
    """The answer, unless the call is still held."""
    return "" if answer.startswith("202 ") else answer


@pytest.mark.exhaustive
def test_a_newcomers_own_server_answers_within_few_clicks_on_a_desktop_and_a_phone(
    tmp_path: Path, browser: Any
) -> None:
    with running(tmp_path / "var", **NO_MODELS) as up:
        url = up.says(r"the site answers at (http://127\.0\.0\.1:\d+)/")[1]
        token = up.says(r"Bearer token, shown only once:  (\S+)")[1]
        password = up.says(r"Password, shown only once:  (\S+)")[1]
        for name, width in (("desk", 1440), ("phone", 390)):
            newcomer = Newcomer(browser, url, password, width)
            newcomer.adds(name)
            # The gateway has heard of the grant a moment after the page.
            answer = eventually(lambda tool=f"{name}__echo": granted(called(url, token, tool)))
            assert re.match(r"200 .*hello", answer, re.DOTALL), answer
            assert newcomer.ended("own server, to its first call") <= MOST_CLICKS
            assert newcomer.alarms == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("width", [1440, 390])
def test_newcomer_calls_decides_invites_and_undoes_within_few_clicks(
    tmp_path: Path, browser: Any, width: int
) -> None:
    with running(tmp_path / "var", **NO_MODELS) as up:
        url = up.says(r"the site answers at (http://127\.0\.0\.1:\d+)/")[1]
        token = up.says(r"Bearer token, shown only once:  (\S+)")[1]
        newcomer = Newcomer(browser, url, up.says(r"Password, shown only once:  (\S+)")[1], width)
        page = newcomer.page

        page.goto("/admin/")  # the first call
        newcomer.click("link", "See the first call")
        newcomer.click("link", "get_current_time")
        newcomer.click("link", "Try tool")
        page.get_by_label("timezone").fill("Asia/Tokyo")
        newcomer.click("button", "Call tool")
        expect(page.get_by_text("day_of_week").first).to_be_visible()
        newcomer.fits()
        assert newcomer.ended("log-in and first call") <= 6

        page.goto("/admin/mcpregistry/server/")  # the first call that a person approves
        newcomer.adds("writer", CHANGES)
        newcomer.ended("own server")
        held = eventually(lambda: granted(called(url, token, "writer__echo")))
        assert held.startswith("202 "), held
        page.goto("/admin/")
        page.get_by_role("link", name=re.compile("1 call is held for a decision")).click()
        page.get_by_role("link", name=re.compile("echo")).first.click()
        newcomer.clicks += 2
        newcomer.fits()
        page.click("#approve")
        newcomer.clicks += 1
        assert newcomer.ended("first approved call") <= 4
        done = eventually(lambda: answered(called(url, token, "writer__echo")))
        assert re.match(r"200 .*hello", done, re.DOTALL), done

        page.goto("/admin/mcpregistry/invitation/add/")  # an approver is invited, and joins
        page.fill("#id_name", "Bob")
        page.select_option("#id_role", "approver")
        newcomer.click("button", "Create link")
        link = page.get_by_text("/join/#").inner_text()
        newcomer.fits()
        bob = newcomer.window()
        bob.goto(link)
        bob.fill("#id_username", "bob")
        for field in ("#id_password", "#id_again"):
            bob.fill(field, "correct horse battery 7")
        bob.get_by_role("button", name="Create account", exact=True).click()
        bob.goto("/approvals/")
        expect(bob.get_by_role("heading", name="Held calls").first).to_be_visible()

        newcomer.ended("approver invited, and in")
        page.goto("/admin/mcpregistry/server/")  # a mistake is undone
        newcomer.click("link", "writer")
        newcomer.click("button", "Disable server")
        newcomer.click("button", "Disable server")  # what it would do was said first
        newcomer.click("button", "Undo")
        expect(page.get_by_role("button", name="Disable server", exact=True)).to_be_visible()
        assert newcomer.ended("mistake made and undone") <= 4
        again = eventually(lambda: granted(called(url, token, "writer__echo")))
        assert again.startswith("202 "), again
        assert newcomer.alarms == []
