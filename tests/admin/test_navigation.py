"""The navigation: few areas, every list within two clicks, nothing that a person may not open, and
where they are."""

from __future__ import annotations

import re

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.urls import get_script_prefix, reverse, set_script_prefix

from controlplane.navigation import AREAS, navigation
from mcpregistry.admin import access_table, analyzer, context_bill
from tests.admin.conftest import ClientOf
from tests.fakes.held import hold
from tests.fakes.seed import Site

# Lists that are read at the record that they are about.
_OF_RECORDS = {"mcpregistry_definition", "mcpregistry_connection"}


def areas(client_of: ClientOf, who: str, path: str) -> list[dict[str, object]]:
    return navigation(client_of(who).get(path).wsgi_request)


def test_there_are_at_most_eight_areas_and_each_list_is_in_one() -> None:
    assert len(AREAS) <= 8
    urls = [page.url for area in AREAS for page in area.pages]
    lists = {
        f"{model._meta.app_label}_{model._meta.model_name}" for model in admin.site._registry
    } - _OF_RECORDS
    assert {f"admin:{name}_changelist" for name in lists} <= {*urls}
    assert len(urls) == len({*urls})
    pages = [page for area in AREAS for page in area.pages]
    keys = [page.key for page in pages if page.key]
    assert len(keys) == len({*keys})


@pytest.mark.exhaustive
@pytest.mark.parametrize("who", ["viewer", "root"])
def test_every_page_of_it_opens(client_of: ClientOf, site: Site, who: str) -> None:
    client = client_of(who)
    found = [page["link"] for area in areas(client_of, who, "/admin/") for page in area["items"]]  # type: ignore[attr-defined]
    assert {
        link: status
        for link in found
        if (status := client.get(link, follow=True).status_code) != 200
    } == {}
    assert (reverse("admin:auth_user_changelist") in found) == (who == "root")


@pytest.mark.exhaustive(one_in=6)
@pytest.mark.parametrize(
    ("path", "title"),
    [
        ("/admin/", "Overview"),
        ("/admin/mcpregistry/policyrule/why/", "Explain a decision"),
        ("/admin/mcpregistry/policyrule/add/", "Rules"),
        ("/approvals/history/", "History"),
        ("/approvals/", "Held calls"),
    ],
)
def test_it_says_where_one_is(client_of: ClientOf, site: Site, path: str, title: str) -> None:
    shown = areas(client_of, "root", path)
    pages = [(area["here"], page) for area in shown for page in area["items"]]  # type: ignore[attr-defined]
    here = [(is_here, page["title"]) for is_here, page in pages if page["active"]]
    assert here == [(True, title)]
    html = client_of("root").get(path).content.decode()
    assert re.findall(
        r'aria-current="page"[^>]*>(?:<span class="material[^<]*</span>)?<span>([^<]*)', html
    )[:1] == [title]


@pytest.mark.both_databases
def test_both_shells_count_what_waits(client_of: ClientOf, site: Site) -> None:
    hold()
    for path in ("/admin/mcpregistry/server/", "/definitions/"):
        html = client_of("viewer").get(path).content.decode()
        assert re.findall(r'sn-badge">(\d+)<', html) == ["3", "1", "2"]


def test_who_lacks_one_of_a_pages_permissions_is_not_led_there(
    client_of: ClientOf, site: Site
) -> None:
    needs = {
        "who": access_table._MAY_SEE,
        "analyzer": analyzer._MAY_SEE,
        "context-bill": context_bill._MAY_SEE,
    }
    pages = {page.url: page for area in AREAS for page in area.pages}
    assert {url: {pages[url].permission, *pages[url].also} for url in needs} == {
        url: {*names} for url, names in needs.items()
    }
    request = client_of("viewer").get("/admin/").wsgi_request
    assert pages["who"].opens(request)
    request.user.groups.clear()
    request.user.user_permissions.add(Permission.objects.get(codename="view_grant"))
    request.user = User.objects.get(pk=request.user.pk)
    assert not any(pages[url].opens(request) for url in needs)


def test_its_addresses_begin_with_the_prefix_of_the_server_in_front(
    client_of: ClientOf, site: Site
) -> None:
    request = client_of("root").get("/admin/").wsgi_request
    before = get_script_prefix()
    try:
        set_script_prefix("/tools/")
        links = [item["link"] for area in navigation(request) for item in area["items"]]
    finally:
        set_script_prefix(before)
    assert {link for link in links if not link.startswith("/tools/")} == set()
    assert navigation(request)[0]["items"][0]["link"] == "/admin/"
