"""Every page that can be opened by its address: under a policy without inline scripts, and for
everybody.

Each is opened once, and looked at for all of it: its console is silent, nothing breaks the policy,
axe-core finds nothing severe in light and dark, it is no wider than a phone, and its lists are
cards there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.apps import apps
from django.contrib import admin
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from playwright.sync_api import Error as BrowserError
from playwright.sync_api import expect

from controlplane.navigation import AREAS
from mcpregistry.services.records import call_hours
from tests.externals import npm_module
from tests.fakes.held import hold
from tests.fakes.lived import populated
from tests.fakes.seed import Site, govern
from tests.web.test_script_policy import complaints, overheard
from tests.web.test_set_up_pages import SEVERE, WindowOf

pytestmark = [pytest.mark.web, pytest.mark.node, pytest.mark.one_database]

AXE = Path(npm_module("axe-core/axe.min.js"))
# Without "preload" it does not fetch each stylesheet again: that is for rules about audio and about
# turned screens.
_LIGHT = "() => axe.run(document, {resultTypes: ['violations'], preload: false})"
_DARK = "() => axe.run(document, {runOnly: ['color-contrast'], resultTypes: ['violations'], preload: false})"
_WHOLE = "() => document.doctype !== null"  # and no part of a page, which that asks for later
_WIDE = "() => document.documentElement.scrollWidth > document.documentElement.clientWidth"
# Once the rows are cards: which lists still have to be moved sideways, or name a value by no
# column.
_LISTS = """() => new Promise((told) => {
  const look = () => told([
    ...[...document.querySelectorAll(".sn-scroll, [data-simplebar]")].filter((box) => box.scrollWidth > box.clientWidth + 1),
    ...document.querySelectorAll("tr[data-card] > :not([data-label])"),
  ].map((box) => "a list on a phone: " + box.outerHTML.slice(0, 200)));
  const narrow = () => requestAnimationFrame(innerWidth > 400 ? narrow : () => requestAnimationFrame(look));
  narrow();
})"""

# What the gate opens: a page of each kind. All others are opened in `make test-all`.
_KINDS = (
    "admin:index",  # an overview with figures
    "admin:mcpregistry_tool_changelist",  # a list with filters
    "admin:mcpregistry_server_change",  # a form with parts
    "admin:mcpregistry_server_confirm",  # a page that asks for a decision
    "admin:mcpregistry_invocation_change",  # a record that nobody edits
    "admin:auth_user_add",  # a form of Django
    "admin:subagents_run_changelist",
)

# Of each part, some that must have been seen, with every number written N, and how many kinds there
# are at least.
_SEEN = {
    "one of each kind": (
        {"/admin/", "/admin/mcpregistry/tool/", "/approvals/", "/approvals/N/", "/definitions/"},
        10,
    ),
    "beside": (
        {
            "/admin/",
            "/admin/password_change/",
            "/approvals/N/",
            "/definitions/",
            "/usage/",
            "/docs/",
        },
        15,
    ),
    "auth": ({"/admin/auth/user/add/", "/admin/auth/group/N/change/"}, 9),
    "mcpregistry": ({"/admin/mcpregistry/server/N/confirm/", "/admin/mcpregistry/tool/"}, 80),
    "subagents": ({"/admin/subagents/run/"}, 8),
}


@pytest.fixture
def crowd(live_db: None) -> Site:
    """A site with something in every list, whose hours are counted: what is shown depends on no
    minute of the hour."""
    site = govern(populated(calls=60))
    assert call_hours.count_due(timezone.now() + timedelta(hours=1)) > 0
    return site


def addresses(part: str) -> list[str]:
    """Those of every model of one app in the admin, or of all pages that belong to no model. Not
    all answer a GET."""
    if part == "one of each kind":
        return [*_of_each_kind()]
    models = [model for model in admin.site._registry if model._meta.app_label == part]
    found = _beside() if part == "beside" else (url for model in models for url in _of_model(model))
    return [url for url in dict.fromkeys(found) if url]


def _of_each_kind() -> Iterator[str]:
    for name in _KINDS:
        app, _, model = name.removeprefix("admin:").rpartition("_")[0].partition("_")
        row = (
            apps.get_model(app, model)._default_manager.values_list("pk", flat=True).first()
            if model
            else None
        )
        yield _reversed(name, [row])
    yield from ("/approvals/", f"/approvals/{hold().pk}/", "/definitions/", "/usage/")


def _of_model(model: Any) -> Iterator[str]:
    """All its pages, those of a record for the first one; the form of the second, too."""
    names = sorted({url.name for url in admin.site._registry[model].urls if url.name})
    rows = list(islice(model._default_manager.values_list("pk", flat=True), 2))
    yield from (_reversed(f"admin:{name}", rows[:1]) for name in names)
    yield from (
        _reversed(f"admin:{name}", rows[1:])
        for name in names
        if name.endswith("_change") and rows[1:]
    )


def _reversed(name: str, key: list[Any]) -> str:
    for arguments in [[], *([key] if key else [])]:
        with suppress(NoReverseMatch):
            return reverse(name, args=arguments)
    return ""


def _beside() -> Iterator[str]:
    of_models = {url for model in admin.site._registry for url in _of_model(model)}
    yield from {reverse(page.url) for area in AREAS for page in area.pages} - of_models
    yield from (
        reverse(f"admin:{name}") for name in ("index", "password_change", "password_change_done")
    )
    yield from (
        "/approvals/",
        "/approvals/history/",
        "/approvals/figures/",
        f"/approvals/{hold().pk}/",
        "/definitions/",
    )


def opened(window: Any, path: str) -> bool:
    """Whether it is a page of its own: no download, no redirect, nothing that is only posted to.
    Then it is silent, too."""
    try:
        answer = window.goto(path)
    except BrowserError as error:
        if "Download is starting" in str(error):
            return False
        raise
    if (
        answer.status != 200
        or urlsplit(answer.url).path != path
        or "text/html" not in answer.headers["content-type"]
    ):
        assert answer.status in {200, 286, 302, 403, 405}, path  # 286 tells htmx to ask no more
        window.evaluate("0")  # asked after what it complains of, so answered after that, too
        assert [each for each in window.said if "Failed to load resource" not in each] == [], path
        window.said.clear()  # that it is no page, the browser complains of
        return False
    assert "script-src 'self'" in answer.headers["content-security-policy"], path
    expect(window.locator("html")).not_to_have_attribute("x-cloak", "")
    assert complaints(window) == [], path
    return True


def severe(window: Any, question: str) -> list[str]:
    """What axe-core finds that keeps somebody from using the page, each with the element."""
    found = [each for each in window.evaluate(question)["violations"] if each["impact"] in SEVERE]
    return [f"{each['id']}: {node['html'][:200]}" for each in found for node in each["nodes"]]


def looked_at(window: Any) -> list[str]:
    """All rules in light and wide, then contrast in dark, and the width and lists of a phone."""
    window.evaluate(AXE.read_text())
    found = severe(window, _LIGHT)
    window.evaluate("document.documentElement.classList.add('dark')")  # as the theme does it
    found += [f"dark, {each}" for each in severe(window, _DARK)]
    window.set_viewport_size({"width": 390, "height": 844})
    found += window.evaluate(_LISTS)
    return found + (["it is wider than a phone"] if window.evaluate(_WIDE) else [])


@pytest.mark.exhaustive(but=("one of each kind",))
@pytest.mark.parametrize("part", _SEEN)
def test_every_page_keeps_the_policy_and_can_be_used_by_everybody(
    window_of: WindowOf, crowd: Site, part: str
) -> None:
    window = overheard(window_of("admin", reduced_motion="reduce"))
    kinds = set()
    found = []
    for address in addresses(part):
        window.set_viewport_size({"width": 1440, "height": 900})
        kind = re.sub(r"[^/]*[0-9][^/]*", "N", address)
        kind = "delete" if kind.endswith("/delete/") else kind  # it is one page, whatever the model
        # Of a second record, and of parts of pages, the policy alone is of interest.
        if opened(window, address) and kind not in kinds and window.evaluate(_WHOLE):
            kinds.add(kind)
            found += [f"{address}: {said}" for said in looked_at(window)]
    assert not found, "\n".join(found)
    assert complaints(window) == []
    some, at_least = _SEEN[part]
    assert some <= kinds
    assert len(kinds) >= at_least
