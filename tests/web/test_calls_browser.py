"""The list of calls and the form of a call in a real browser: what their scripts do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.urls import reverse
from playwright.sync_api import expect

from mcpregistry.models import Tool
from tests.fakes.seed import Site
from tests.services.test_call_search import made

pytestmark = [pytest.mark.web, pytest.mark.one_database]
Windows = Callable[..., Any]


@pytest.mark.exhaustive
def test_following_from_a_later_page_goes_to_the_first(window_of: Windows, crowd: Site) -> None:
    for _ in range(52):
        made()
    window = window_of("viewer")
    window.goto("/admin/mcpregistry/invocation/?p=2&server=git")
    window.locator("#tail").click()
    window.wait_for_url("**/invocation/?server=git")
    expect(window.locator("#tail")).to_have_attribute("aria-pressed", "true")


@pytest.mark.exhaustive
def test_a_form_that_is_come_back_to_can_be_sent(window_of: Windows, crowd: Site) -> None:
    window = window_of("operator")
    window.goto(reverse("admin:mcpregistry_tool_try", args=[Tool.objects.all()[0].pk]))
    button = window.locator("#try button[type=submit]")
    window.evaluate(
        "document.getElementById('try').dispatchEvent(new Event('submit', { bubbles: true, cancelable: true }))"
    )
    expect(button).to_contain_text("Calling…")
    window.evaluate("dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true }))")
    expect(button).to_contain_text("Call tool")
    assert button.get_attribute("aria-busy") is None


@pytest.mark.exhaustive
def test_a_form_says_at_once_that_it_works_and_is_sent_once(
    window_of: Windows, crowd: Site
) -> None:
    window = window_of("operator")
    held = []
    page = reverse("admin:mcpregistry_server_change", args=[crowd.servers["git"].pk])
    window.route("**/do/test/", lambda route: held.append(route))  # no answer comes
    window.goto(page)
    with window.expect_request("**/do/test/"):
        said = window.evaluate(
            """async () => {
                const button = document.querySelector("form[action$='/do/test/'] button");
                const sent = [];
                addEventListener("submit", (event) => sent.push(!event.defaultPrevented));
                button.click();
                await new Promise((next) => setTimeout(next));
                button.click();
                return [button.ariaBusy, button.ariaDisabled, button.textContent, sent];
            }"""
        )
    assert said[:2] == ["true", "true"]
    assert "Working…" in said[2]
    assert said[3] == [True, False]
    while not held:
        window.wait_for_timeout(10)  # lets it be told
    held.pop().fulfill(body="<p>An answer</p>", content_type="text/html")
    window.get_by_text("An answer").wait_for()
    window.go_back()
    button = window.locator("form[action$='/do/test/'] button")
    expect(button).to_be_enabled()
    expect(button).to_contain_text("Test server")


@pytest.mark.exhaustive
def test_rows_are_cards_on_a_phone_and_stay_rows_elsewhere(window_of: Windows, crowd: Site) -> None:
    window = window_of("operator", viewport={"width": 390, "height": 844})
    window.goto("/admin/mcpregistry/server/")
    card = window.locator("#result_list tr[data-card]").first
    expect(card).to_have_css("display", "grid")
    assert card.locator("td.field-calls_today, td[data-label^='Calls']").count() == 1
    card.locator("input.action-select").check()
    expect(window.locator("#changelist-actions-wrapper")).to_be_visible()
    window.set_viewport_size({"width": 1440, "height": 900})
    expect(card).to_have_css("display", "table-row")
    window.set_viewport_size({"width": 390, "height": 844})
    window.goto(f"/admin/mcpregistry/server/{crowd.servers['git'].pk}/history/")
    heading = window.locator("h1.sn-crumbs")
    expect(heading.get_by_text("History of server git")).to_be_visible()
    expect(heading.get_by_role("link", name="git", exact=True)).to_be_visible()
    expect(heading.get_by_text("Servers")).to_be_hidden()


@pytest.mark.exhaustive
def test_long_word_has_the_whole_width_of_a_card(window_of: Windows, crowd: Site) -> None:
    window = window_of("admin", viewport={"width": 390, "height": 844})
    window.goto("/admin/auth/user/")
    address = window.locator("#result_list td", has_text="approver@example.org")
    expect(address).to_have_css("grid-column-end", "-1")
    assert address.bounding_box()["height"] < 45  # its label and one line


@pytest.mark.exhaustive
def test_a_link_says_at_once_that_it_works_and_rests_when_the_page_is_come_back_to(
    window_of: Windows, crowd: Site
) -> None:
    window = window_of("operator")
    held = []
    # no answer comes
    window.route("**/admin/mcpregistry/server/add/", lambda route: held.append(route))
    window.goto("/admin/mcpregistry/server/")
    address = window.url
    link = window.get_by_role("link", name="Add a server").first
    link.evaluate("(link) => { link.href = '/admin/mcpregistry/server/add/'; }")
    busy = link.evaluate("(link) => { link.click(); return link.ariaBusy; }")
    assert busy == "true"
    while not held:
        window.wait_for_timeout(10)  # lets it be told
    held.pop().fulfill(body="<p>An answer</p>", content_type="text/html")
    window.get_by_text("An answer").wait_for()
    window.go_back()
    assert window.url == address
    expect(window.locator("a[aria-busy]")).to_have_count(0)


@pytest.mark.exhaustive
def test_links_that_leave_the_page_as_it_is_say_nothing(window_of: Windows, crowd: Site) -> None:
    window = window_of("operator")
    window.goto("/admin/mcpregistry/server/")
    busy = window.evaluate(
        """() => ["#rows", "https://elsewhere.example/", "vscode:x"].map((href) => {
            const link = document.body.appendChild(document.createElement("a"));
            link.href = href;
            if (href[0] !== "#") link.target = "_blank";
            const click = new MouseEvent("click", { bubbles: true, cancelable: true });
            addEventListener("click", (event) => event.preventDefault(), { once: true }); // behind ours
            link.dispatchEvent(click);
            return link.ariaBusy;
        })"""
    )
    assert busy == [None, None, None]


@pytest.mark.exhaustive
@pytest.mark.parametrize("page", ["/approvals/history/", "/approvals/figures/", "/usage/"])
def test_a_file_is_waited_for_and_the_page_stays_usable(
    window_of: Windows, crowd: Site, page: str
) -> None:
    window = window_of("operator")
    held = []
    window.route("**/*.csv*", lambda route: held.append(route))
    window.goto(page)
    link = window.locator("a[data-download]")
    busy = link.evaluate(
        """(link) => {
            link.click();
            const again = new MouseEvent("click", { bubbles: true, cancelable: true });
            link.dispatchEvent(again); // a second one asks nothing
            return [link.ariaBusy, again.defaultPrevented];
        }"""
    )
    assert busy == ["true", True]
    while not held:
        window.wait_for_timeout(10)  # lets it be told
    with window.expect_download() as file:
        held.pop().continue_()
    assert file.value.suggested_filename.endswith(".csv")
    expect(link).not_to_have_attribute("aria-busy", "true")
    assert window.url.endswith(page)
