"""Putting a version back never needs less than the same change on the record's page or over
REST."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group, Permission, User
from django.test import Client, RequestFactory
from django.urls import reverse

from controlplane.configuration.document_import import DocumentItem
from controlplane.configuration.document_values import Secrets
from controlplane.configuration.record_kinds import KINDS, RecordKind
from controlplane.history import past_versions
from controlplane.history.proposals import propose
from controlplane.history.restore_rights import BEYOND_PAGE, check, requirements
from mcpregistry.domain.errors import ConfigInvalid, Denied
from mcpregistry.models import Agent, Endpoint, PolicyRule, Tool, Workspace
from mcpregistry.services.access import agents
from mcpregistry.services.definitions import behaviour
from mcpregistry.services.policy import rules
from tests.fakes.lived import populated
from tests.fakes.seed import ACTOR, Site, govern

pytestmark = [pytest.mark.django_db, pytest.mark.one_database]


@pytest.fixture
def site() -> Site:
    return govern(populated(calls=40))


def person(*permissions: str) -> User:
    """Somebody with exactly these rights."""
    user = User.objects.create(
        username=f"person-{User.objects.count()}", password="!", is_staff=True
    )
    for name in permissions:
        app, _, code = name.partition(".")
        user.user_permissions.add(
            Permission.objects.get(codename=code, content_type__app_label=app)
        )
    return User.objects.get(pk=user.pk)


def right(verb: str, kind: RecordKind) -> str:
    return f"{kind.model._meta.app_label}.{verb}_{kind.model._meta.model_name}"


def a_row_of(kind: RecordKind) -> tuple[str, Any]:
    if kind.section == "roles":
        Group.objects.get_or_create(name="night shift")
    rows = kind.all()
    assert rows, f"the seed makes none of {kind.section}"
    return rows[0]


def differing(kind: RecordKind, name: str, row: Any, word: str) -> DocumentItem:
    """What puts a version back that differs in this word alone."""
    entry = kind.entry(name, row, Secrets())
    return DocumentItem(kind, name, row, {**entry, word: "as it was before"})


def lets(user: User, item: DocumentItem) -> bool:
    try:
        check(user, requirements([item]))
    except Denied:
        return False
    return True


def words_on_page(kind: RecordKind, row: Any, user: User) -> set[str]:
    """The words that this person can change on the record's page."""
    page: Any = admin.site._registry[kind.model]
    request = RequestFactory().get("/admin/")
    request.user = user
    if not page.has_change_permission(request, row):
        return set()
    return {*page.get_form(request, row, change=True).base_fields}


def test_no_kind_is_put_back_with_less_than_its_page_needs(site: Site) -> None:
    """Of each kind each word: who may only change the record puts back what its page lets that
    person change."""
    wider: list[str] = []
    for kind in past_versions.VERSIONED.values():
        name, row = a_row_of(kind)
        editor = person(right("view", kind), right("change", kind))
        on_page = words_on_page(kind, row, editor)
        enough = {word for word, needed in BEYOND_PAGE.get(kind.model, {}).items() if not needed}
        for word in sorted(kind.list_keys() - on_page - enough):
            if lets(editor, differing(kind, name, row, word)):
                wider.append(f"{kind.section}: {word}")
    assert not wider, "\n".join(wider)


def test_rights_beyond_a_page_are_about_words_that_exist(site: Site) -> None:
    kinds = {kind.model: kind for kind in KINDS}
    for model, words in BEYOND_PAGE.items():
        assert {*words} <= kinds[model].list_keys()


def test_nothing_is_put_back_made_or_removed_without_its_right(site: Site) -> None:
    for kind in past_versions.VERSIONED.values():
        name, row = a_row_of(kind)
        onlooker = person(right("view", kind))
        entry = kind.entry(name, row, Secrets())
        for item in (
            DocumentItem(kind, name, row, entry),
            DocumentItem(kind, name, None, entry),
            DocumentItem(kind, name, row, None),
        ):
            assert not lets(onlooker, item), kind.section


def flags_taken_back(site: Site) -> tuple[Tool, Any]:
    """A tool of which somebody had confirmed that it only reads, and has taken that back; and the
    version of before."""
    tool = Tool.objects.filter_approved().first()
    assert tool is not None
    tool = behaviour.confirm_annotations(
        tool=tool, actor=ACTOR, read_only=True, destructive=False, open_world=False
    )
    version = Tool.history.filter(id=tool.pk).first()
    tool = behaviour.confirm_annotations(
        tool=tool, actor=ACTOR, read_only=False, destructive=True, open_world=True
    )
    return tool, version


@pytest.mark.exhaustive
@pytest.mark.attack
def test_an_operator_does_not_put_back_what_a_tool_was_said_to_do(site: Site) -> None:
    tool, version = flags_taken_back(site)
    client = Client()
    client.force_login(site.people["operator"])
    url = reverse("history-version", args=["mcpregistry.tool", version.history_id])
    page = client.get(url)
    assert page.status_code == 403
    assert "Can approve and reject tool definitions" in page.content.decode()
    assert client.post(url, {"shown": "x"}).status_code == 403
    path = f"/api/v1/history/tools/{version.history_id}"
    assert client.get(path).json()["proposal"] is None
    tool.refresh_from_db()
    assert (tool.read_only, tool.destructive) == (False, True)
    seen = propose(
        lambda: [past_versions.item_of(version)], actor=ACTOR, user=site.people["approver"]
    )
    assert any("read_only" in line for line in seen.lines)


def test_an_operator_puts_back_what_the_page_of_a_tool_changes(site: Site) -> None:
    tool = Tool.objects.filter_approved().first()
    assert tool is not None
    before = Tool.history.filter(id=tool.pk).first()
    tool.call_energy = 7.5
    tool.save()
    seen = propose(
        lambda: [past_versions.item_of(before)], actor=ACTOR, user=site.people["operator"]
    )
    assert not seen.empty


@pytest.mark.attack
def test_a_version_of_a_workspace_needs_the_right_to_grant(site: Site) -> None:
    row = Workspace.objects.first()
    assert row is not None
    version = Workspace.history.filter(id=row.pk).first()
    row.agent = Agent.objects.exclude(pk=row.agent_id)[0]
    agents.save_workspace(workspace=row, actor=ACTOR)
    clerk = person("mcpregistry.view_workspace", "mcpregistry.change_workspace")
    with pytest.raises(Denied):
        propose(lambda: [past_versions.item_of(version)], actor=ACTOR, user=clerk)
    governor = person(
        "mcpregistry.view_workspace", "mcpregistry.change_workspace", "mcpregistry.add_grant"
    )
    assert not propose(lambda: [past_versions.item_of(version)], actor=ACTOR, user=governor).empty


@pytest.mark.attack
def test_an_earlier_name_comes_back_only_with_the_right_to_change_rules(site: Site) -> None:
    row = agents.save_endpoint(endpoint=Endpoint(slug="lab"), actor=ACTOR)
    version = Endpoint.history.filter(id=row.pk).first()
    row.slug = "prod"
    agents.save_endpoint(endpoint=row, actor=ACTOR)
    rules.save_rule(
        rule=PolicyRule(
            name="prod stays shut", outcome="deny", condition='call.endpoint == "prod"'
        ),
        actor=ACTOR,
    )
    with pytest.raises(ConfigInvalid, match="prod stays shut"):
        propose(lambda: [past_versions.item_of(version)], actor=ACTOR, user=site.people["operator"])
    assert not propose(
        lambda: [past_versions.item_of(version)], actor=ACTOR, user=site.people["admin"]
    ).empty
