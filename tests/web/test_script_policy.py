"""The admin under a policy without inline scripts and eval: it works, and an injected script does
not run.

That no page breaks the policy is seen in ``test_every_page``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import unfold
from django.contrib.staticfiles import finders
from django.urls import reverse
from playwright.sync_api import expect
from pytest_django.live_server_helper import LiveServer

from tests.fakes.lived import populated
from tests.fakes.seed import PASSWORD, Site
from tests.waiting import eventually

WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (e) => window.violations.push(`${e.violatedDirective} ${e.blockedURI} ${e.sample}`));
"""


@pytest.fixture
def site(live_db: None) -> Site:
    return populated(calls=60)


@pytest.fixture
def bare(browser: Any, live_server: LiveServer) -> Iterator[Any]:
    """A window whose ``said`` is all that its console and its scripts complain of."""
    window = overheard(browser.new_context(base_url=live_server.url).new_page())
    window.set_viewport_size({"width": 1440, "height": 900})
    yield window
    window.context.close()


def overheard(window: Any) -> Any:
    """The window, whose complaints are kept from now on."""
    window.said = []
    window.add_init_script(WATCH)
    window.on(
        "console",
        lambda message: (
            window.said.append(message.text) if message.type in {"error", "warning"} else None
        ),
    )
    window.on("pageerror", lambda error: window.said.append(str(error)))
    return window


@pytest.fixture
def page(bare: Any, site: Site) -> Iterator[Any]:
    """The same, logged in; at the end nothing may have complained."""
    log_in(bare, site)
    assert complaints(bare) == []
    yield bare
    assert complaints(bare) == []


def log_in(window: Any, site: Site) -> None:
    window.goto(reverse("admin:login"))
    assert complaints(window) == []
    window.fill("#id_username", "root")
    window.fill("#id_password", PASSWORD)
    window.click("#login-form button[type=submit]")
    window.wait_for_url("**/admin/")


def complaints(window: Any) -> list[str]:
    return [*window.said, *window.evaluate("window.violations")]


@pytest.mark.exhaustive(but=("/approvals/",))
@pytest.mark.attack
@pytest.mark.web
@pytest.mark.one_database
@pytest.mark.parametrize(
    "path", ["/admin/login/", "/admin/", "/admin/mcpregistry/server/", "/approvals/"]
)
def test_an_injected_script_does_not_run(bare: Any, site: Site, path: str) -> None:
    """As an escaping bug would let it: in the page's own bytes, every way in which text becomes a
    script."""

    def injected(route: Any) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, body=answer.text().replace("</body>", f"{INJECTED}</body>"))

    log_in(bare, site)
    bare.route(f"**{path}", injected)
    bare.goto(path)
    bare.locator("#injected").wait_for()
    eventually(lambda: len(bare.evaluate("window.violations")) >= 4)
    bare.locator("#click").dispatch_event("click")
    bare.evaluate("""() => {
        const late = document.createElement("div");
        late.innerHTML = "<img src=x onerror='window.__x = 9'>";
        document.body.append(late);
        location.href = "javascript:window.__x = 10";
    }""")
    blocked = bare.evaluate("window.violations")
    assert bare.evaluate("window.__x") is None
    assert [
        each for each in blocked if not each.startswith(("script-src", "img-src", "base-uri"))
    ] == []
    assert bare.evaluate(EVAL) == "EvalError"
    assert bare.url.endswith(path)


# Later, because what is asked for through the debugger may always use eval.
EVAL = """new Promise((done) => setTimeout(() => {
    try { done(Function("return 1")()) } catch (error) { done(error.name) }
}))"""
INJECTED = """<div id="injected">here</div>
<script>window.__x = 1</script>
<script src="https://evil.example/x.js"></script>
<script src="data:text/javascript,window.__x=2"></script>
<img src="x" onerror="window.__x = 3">
<svg onload="window.__x = 4"></svg>
<iframe srcdoc="<script>parent.__x = 5</script>"></iframe>
<base href="https://evil.example/">
<a id="click" onclick="window.__x = 6">.</a>
<div x-data x-init="window.__x = 7"></div>
<div x-data x-init="$el.ownerDocument.defaultView.__x = 8"></div>
<div x-data x-init="'a'.constructor.constructor('window.__x = 8')()"></div>
<div hx-get="/" hx-trigger="load[window.__x = 11]" hx-on:click="window.__x = 12" hx-vals="js:{x: window.__x = 13}"></div>"""


@pytest.mark.attack
@pytest.mark.parametrize(
    "name", ["layouts/skeleton", "helpers/search", "helpers/welcomemsg", "helpers/messages"]
)
def test_the_themes_templates_that_ours_replace_are_as_they_were(name: str) -> None:
    """When one has changed: take over what is new in it, then write its digest here."""
    theirs = Path(unfold.__file__).parent / "templates" / "unfold" / f"{name}.html"
    assert (
        hashlib.sha256(theirs.read_bytes()).hexdigest()
        == {
            "layouts/skeleton": "66af9f0bb45f98ba4e16ba5e5a11f36d87b8e07430d19066d088b29548491c2e",
            "helpers/search": "91996c27181d14ade8b4cbf84d90a4b0d293fdd92ae4325cda0f6889c29e28fb",
            "helpers/messages": "9e37d808b5122af1bfcd97130465a1fd212904073787230cd67d584873560e79",
            "helpers/welcomemsg": "e8eab02522ba2319b937086bbcb6bf2a2bbe1489d236ad90ff23edbe070a7d6b",
        }[name]
    )


def test_files_of_others_are_the_ones_that_are_noted() -> None:
    folder = Path(finders.find("mcpregistry/vendor/README.md")).parent
    noted = dict(
        re.findall(r"^\| `(\S+)` .*`([0-9a-f]{64})` \|$", (folder / "README.md").read_text(), re.M)
    )
    scripts = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.glob("*.js")
    }
    assert noted == scripts
    assert scripts
    assert all((folder / f"{name.split('.')[0]}.LICENSE").is_file() for name in scripts)


@pytest.mark.exhaustive
@pytest.mark.web
@pytest.mark.one_database
def test_the_sidebar_folds_and_stays_folded(page: Any) -> None:
    bar = page.locator("#nav-sidebar-apps")
    expect(bar).to_be_visible()
    page.get_by_text("dock_to_right").first.click()
    expect(bar).to_be_hidden()
    page.reload()
    expect(page.locator("html")).not_to_have_attribute("x-cloak", "")
    expect(bar).to_be_hidden()
    page.get_by_text("dock_to_right").first.click()
    expect(bar).to_be_visible()
    page.set_viewport_size({"width": 390, "height": 844})
    expect(bar).to_be_hidden()
    page.get_by_text("dock_to_right").last.click()
    expect(bar).to_be_visible()


@pytest.mark.exhaustive
@pytest.mark.web
@pytest.mark.one_database
def test_the_theme_is_chosen_and_kept(page: Any) -> None:
    menu = page.locator("[x-data='{ openUserLinks: false }']")
    for label, dark in (("Dark", True), ("Light", False)):
        menu.locator("> div").click()
        menu.get_by_text(label, exact=True).click()
        eventually(
            lambda dark=dark: (
                page.evaluate("document.documentElement.classList.contains('dark')") == dark
            )
        )
        page.reload()
        eventually(
            lambda dark=dark: (
                page.evaluate("document.documentElement.classList.contains('dark')") == dark
            )
        )
        page.goto("/approvals/")
        assert page.evaluate("document.documentElement.classList.contains('dark')") is dark
        page.goto("/admin/")


def searched(page: Any, word: str) -> None:
    """Type it and wait for what is found by the whole of it: what was found by half of it, or
    before, is no answer."""
    with page.expect_response(f"**s={word}"):
        page.keyboard.type(word)
    expect(page.locator("#search-results a").first).to_have_attribute(
        "href", re.compile(f"/{word}/$")
    )
    expect(page.locator("#search-results a").first).to_be_visible()


@pytest.mark.exhaustive
@pytest.mark.web
@pytest.mark.one_database
def test_people_search_for_pages_by_keyboard(page: Any) -> None:
    page.keyboard.press("t")
    field = page.locator("#nav-filter")
    expect(field).to_be_focused()
    searched(page, "credential")
    page.keyboard.press("Escape")
    expect(field).to_have_value("")
    expect(page.locator("#search-results")).to_be_hidden()
    searched(page, "credential")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url("**/credential/")


@pytest.mark.exhaustive
@pytest.mark.web
@pytest.mark.one_database
def test_lists_are_searched_filtered_turned_and_acted_on(page: Any, site: Site) -> None:
    page.goto("/admin/mcpregistry/server/")
    page.keyboard.press("/")
    expect(
        page.locator("#changelist-search input[name=q], #changelist-search input[type=text]").first
    ).to_be_focused()
    page.get_by_text("Filters", exact=False).first.click()
    expect(page.locator("#changelist-filter")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#changelist-filter")).to_be_hidden()
    page.locator("#result_list input.action-select").first.check()
    run = page.locator("#changelist-actions button[type=submit]")
    expect(run).to_be_hidden()
    page.select_option("#changelist-actions select[name=action]", index=1)
    expect(run).to_be_visible()
    run.click()
    expect(page.locator("body")).to_contain_text("Are you sure")
    page.goto("/admin/mcpregistry/invocation/")
    page.locator("a", has_text=re.compile("^2$")).first.click()
    page.wait_for_url("**p=2**")


@pytest.mark.web
@pytest.mark.one_database
def test_forms_choose_dates_and_go_where_they_are(page: Any, site: Site) -> None:
    page.goto(reverse("admin:mcpregistry_grant_add"))
    expect(page.locator("#grant_form")).to_have_attribute("action", re.compile("/add/$"))
    page.locator(".datetimeshortcuts a:visible").first.click()
    page.locator(".calendarbox").first.get_by_text("Today").click()
    expect(page.locator("#id_expires_at_0")).to_have_value(re.compile("20"))


@pytest.mark.exhaustive
@pytest.mark.web
@pytest.mark.one_database
def test_the_persons_menu_opens_and_logs_out(page: Any) -> None:
    menu = page.locator("[x-data='{ openUserLinks: false }']")
    expect(menu.get_by_text("Log out")).to_be_hidden()
    menu.locator("> div").click()
    menu.get_by_text("Log out").click()
    expect(page.locator("body")).to_contain_text("Log in")
