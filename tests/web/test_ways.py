"""Where one is, and how far away everything is: headings follow the navigation, two links lead from
the overview to each page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from html import unescape
from urllib.parse import urljoin, urlsplit

import pytest
from django.contrib import admin
from django.test import Client
from django.urls import NoReverseMatch, Resolver404, resolve, reverse

from controlplane.navigation import AREAS
from mcpregistry.models import Configuration, Server
from mcpregistry.web.docs.page_documents import _of_admin
from tests.fakes.held import hold
from tests.fakes.seed import Site, govern
from tests.web.conftest import ClientOf

pytestmark = pytest.mark.one_database

# Parts of pages, and addresses that only take what is sent to them.
_NO_PAGES = {
    "mcpregistry_invocation_tail",
    "mcpregistry_invocation_filters",
    "mcpregistry_policyrule_starter",
}
# There is one configuration, and its list is its page.
_ONE_RECORD = {"mcpregistry_configuration"}


def heading(client: Client, address: str) -> list[str]:
    text = client.get(address).content.decode()
    found = re.search(r"<h1.*?</h1>", text, re.S)
    assert found is not None, address
    return [
        unescape(part).strip()
        for part in re.findall(r'class="sn-crumb(?:-last)?"[^>]*>([^<]*)<', found[0])
    ]


def title(client: Client, address: str) -> str:
    found = re.search(r"<title>(.*?)</title>", client.get(address).content.decode(), re.S)
    assert found is not None, address
    return " ".join(unescape(found[1]).split())


@pytest.mark.exhaustive
def test_heading_names_area_list_record_and_action(people: Site, client_of: ClientOf) -> None:
    client = client_of("admin")
    row = Server.objects.get(slug="browser")
    page = reverse("admin:mcpregistry_server_change", args=[row.pk])
    assert heading(client, reverse("admin:index")) == ["Overview"]
    assert heading(client, reverse("admin:auth_user_changelist")) == ["Site", "Users"]
    assert heading(client, page) == ["Servers", "browser"]
    assert heading(client, f"{page.removesuffix('change/')}confirm/")[1:] == [
        "browser",
        "Confirm the launch of browser",
    ]
    assert heading(client, f"{page.removesuffix('change/')}history/")[1:] == [
        "browser",
        "History of server browser",
    ]
    history = reverse(
        "admin:mcpregistry_configuration_history", args=[Configuration.objects.get().pk]
    )
    assert heading(client, history)[-1] == "History of configuration of the site"
    assert heading(client, reverse("admin:mcpregistry_agent_add"))[1:] == ["Add agent"]
    assert heading(client, reverse("admin:mcpregistry_policyrule_why")) == [
        "Rules and limits",
        "Explain a decision",
    ]
    assert heading(client, reverse("admin:password_change")) == ["Password change"]
    assert heading(client, reverse("usage:failures")) == ["Record", "Failures"]
    assert title(client, page) == "browser - Servers | Slipsnisse"
    assert (
        title(client, f"{page.removesuffix('change/')}confirm/")
        == "Confirm the launch of browser - Servers | Slipsnisse"
    )


def test_indexes_of_django_apps_lead_to_the_overview(people: Site, client_of: ClientOf) -> None:
    client = client_of("admin")
    for app in ("auth", "mcpregistry", "subagents"):
        assert client.get(f"/admin/{app}/")["Location"] == reverse("admin:index")


def test_records_without_versions_offer_no_history(people: Site, client_of: ClientOf) -> None:
    client = client_of("admin")
    call = hold().call_id
    server = Server.objects.earliest("pk").pk
    shown = client.get(reverse("admin:mcpregistry_invocation_change", args=[call])).content.decode()
    assert reverse("admin:mcpregistry_invocation_history", args=[call]) not in shown
    shown = client.get(reverse("admin:mcpregistry_server_change", args=[server])).content.decode()
    assert reverse("admin:mcpregistry_server_history", args=[server]) in shown


def test_each_page_of_the_admin_has_its_page_of_the_docs() -> None:
    """Not only their contents."""
    urls = [url for model in admin.site._registry.values() for url in model.urls]
    names = {url.name for url in urls if url.name}
    entries = {page.url.removeprefix("admin:") for area in AREAS for page in area.pages}
    names |= {name for name in entries if ":" not in name} | {
        "password_change",
        "history-version",
        "analyzer-apply",
    }
    assert {name for name in names if not _of_admin(name)} == set()


@pytest.mark.exhaustive
def test_no_page_is_further_than_two_links_from_the_overview(
    people: Site, client_of: ClientOf
) -> None:
    """Lists, forms and the pages of records; what is done with a record is linked from its page."""
    govern(people)
    client = client_of("root")
    first = _links(client, reverse("admin:index"))
    second = {name for address in sorted(first) for name in _names(_links(client, address))}
    assert _expected() - _names(first) - second == set()


def _expected() -> set[str]:
    found = {page.url.rpartition(":")[2] for area in AREAS for page in area.pages}
    for model, shown in admin.site._registry.items():
        name = f"{model._meta.app_label}_{model._meta.model_name}"
        rows = model._default_manager.exists() and name not in _ONE_RECORD
        found |= {f"{name}_change"} if rows else set()
        found |= {url.name for url in shown.urls if url.name and _takes_nothing(url.name)}
    read_only = {f"{model._meta.app_label}_{model._meta.model_name}_add" for model in _not_added()}
    return found - _NO_PAGES - read_only


def _not_added() -> Iterator[type]:
    from django.contrib.auth.models import User
    from django.test import RequestFactory

    request = RequestFactory().get("/")
    request.user = User.objects.get(username="root")
    yield from (
        model
        for model, shown in admin.site._registry.items()
        if not shown.has_add_permission(request)
    )


def _takes_nothing(name: str) -> bool:
    with suppress(NoReverseMatch):
        return bool(reverse(f"admin:{name}"))
    return False


def _links(client: Client, address: str) -> set[str]:
    answer = client.get(address, follow=True)
    if "text/html" not in answer.headers.get("Content-Type", ""):
        return set()
    found = re.findall(r'<a\b[^>]*?href="([^"#][^"]*)"', answer.content.decode())
    there = (urlsplit(urljoin(address, unescape(each))) for each in found)
    return {
        each.path
        for each in there
        if not each.netloc and not each.path.startswith(("/docs/", "/static/"))
    }


def _names(addresses: set[str]) -> set[str]:
    found = set()
    for address in addresses:
        with suppress(Resolver404):
            found.add(resolve(address).url_name or "")
    return found


def test_page_that_asks_before_a_deletion_lists_no_nameless_rows(
    people: Site, client_of: ClientOf
) -> None:
    client = client_of("root")
    user = people.people["approver"]
    shown = client.get(reverse("admin:auth_user_delete", args=[user.pk])).content.decode()
    assert "User_groups object" not in shown
    assert "relationship" not in shown
    group = user.groups.earliest("pk")
    shown = client.get(reverse("admin:auth_group_delete", args=[group.pk])).content.decode()
    assert "Group_permissions object" not in shown
