"""Lists with nothing in them say what would be here and what to do."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse
from django.utils.html import escape
from pytest_django import Settings

from controlplane.empty_lists import LISTS
from controlplane.navigation import AREAS
from mcpregistry.models import Configuration
from mcpregistry.services.access import roles

pytestmark = pytest.mark.usefixtures("contexts")
_FORMS = {
    "admin:index",
    "admin:mcpregistry_server_set_up",
    "connect",
    "who",
    "analyzer",
    "context-bill",
    "admin:mcpregistry_policyrule_why",
    "docs:index",
}


@pytest.fixture
def root(db: None, settings: Settings) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root", password=None))
    return client


def lists() -> list[Any]:
    # which is one page, no list
    return [model for model in admin.site._registry if model is not Configuration]


def address(model: Any) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")


def test_every_list_and_page_has_its_words() -> None:
    own = {page.url for area in AREAS for page in area.pages} - _FORMS
    own -= {url for url in own if url.endswith("_changelist")}
    assert {model._meta.label_lower for model in admin.site._registry} | own == {
        key.partition("#")[0] for key in LISTS
    }
    for key, said in LISTS.items():
        assert said.would, key
        assert said.do, key
        assert bool(said.url) == bool(said.label), key
        assert not said.url or reverse(said.url), key


def test_an_empty_list_says_what_would_be_here_and_what_to_do(root: Client) -> None:
    Group.objects.all().delete()
    for model in lists():
        page = root.get(address(model))
        if page.context["cl"].result_count:  # whoever looks is there, and their login is in the log
            assert model._meta.label_lower in {"auth.user", "mcpregistry.auditentry"}
            continue
        said = LISTS[model._meta.label_lower]
        text = page.content.decode()
        assert escape(str(said.would)) in text, model
        assert escape(str(said.do)) in text, model
        adds = (
            model._meta.label_lower != "mcpregistry.server" and page.context["has_add_permission"]
        )
        assert not said.url or reverse(said.url) in text
        assert said.url or not adds or f'href="{address(model)}add/"' in text, model


@pytest.mark.exhaustive
def test_a_filter_that_finds_nothing_leads_back_to_everything(root: Client) -> None:
    for model in lists():
        if not admin.site._registry[model].search_fields:
            continue
        text = root.get(f"{address(model)}?q=nobody-is-called-so").content.decode()
        assert "No matches" in text, model
        assert "Clear filters" in text, model
        assert escape(str(LISTS[model._meta.label_lower].would)) in text, model


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize(
    "key",
    [
        "approvals:queue",
        "approvals:history",
        "approvals:figures",
        "definitions:inbox",
        "usage:index",
        "usage:failures",
    ],
)
def test_a_page_of_its_own_says_it_in_the_same_way(root: Client, key: str) -> None:
    text = root.get(reverse(key)).content.decode()
    assert escape(str(LISTS[key].would)) in text
    assert escape(str(LISTS[key].do)) in text


def test_nobody_is_sent_to_a_page_that_they_may_not_open(root: Client) -> None:
    viewer = User.objects.create_user("viewer", is_staff=True)
    client = Client()
    roles.assign_role(user=viewer, role="viewer")
    client.force_login(viewer)
    text = client.get(reverse("admin:mcpregistry_server_changelist")).content.decode()
    assert escape(str(LISTS["mcpregistry.server"].would)) in text
    assert reverse("admin:mcpregistry_server_set_up") not in text
