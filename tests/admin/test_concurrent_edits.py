"""Two users have the form of one record open. The second save does not undo the changes of the
first."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse

from mcpregistry.models import (
    Agent,
    Budget,
    Channel,
    Configuration,
    Conversation,
    Credential,
    Endpoint,
    EnergyPool,
    Grant,
    PolicyRule,
    RegistrySource,
    Server,
    SlackIdentity,
    Tool,
    Workspace,
)
from mcpregistry.services.access import credentials
from mcpregistry.services.servers import lifecycle
from subagents.models import EffortAgent, ExpertTool, Headend, LanguageModel, Provider
from tests.admin.conftest import ClientOf
from tests.admin.typed import form_of
from tests.fakes.seed import PASSWORD, Site, govern

pytestmark = [pytest.mark.one_database, pytest.mark.usefixtures("contexts")]
ACTOR = "test"
SOON = datetime(2038, 1, 2, 3, 4, tzinfo=UTC)


@dataclass(frozen=True)
class Case:
    """What one user enters into the form of a record, and what another user has saved since the
    form was opened."""

    model: type[Any]
    mine: dict[str, Any]
    others: dict[str, Any]
    find: dict[str, Any] | None = None


CASES = [
    Case(
        Server, {"description": "mine"}, {"max_tools": 17, "lifecycle": "disabled"}, {"slug": "git"}
    ),
    Case(
        Agent,
        {"description": "mine"},
        {"enabled": False, "capabilities": ["mcp_git::*"]},
        {"slug": "ci"},
    ),
    Case(Endpoint, {"name": "mine"}, {"enabled": False, "naming_style": "single"}),
    Case(Workspace, {"directory": "/srv/mine"}, {"agent": "ci"}),
    Case(
        Grant,
        {"note": "mine"},
        {"argument_pins": {"a": 1}, "expires_at": SOON},
        {"expires_at__isnull": False},
    ),
    Case(
        Configuration,
        {"keep_calls_days": "7"},
        {"sub_agent_enabled": False, "second_factor_roles": ["viewer"]},
    ),
    Case(Credential, {"description": "mine"}, {"scope": ["server:git", "server:time"]}),
    Case(EnergyPool, {"description": "mine"}, {"capacity": 5.0}),
    Case(Budget, {"hard": "900"}, {"enabled": False}, {"slug": "ci-calls"}),
    Case(
        Tool,
        {"idempotent": "on"},
        {"enabled": False, "own_description": "Theirs."},
        {"name": "git_log"},
    ),
    Case(RegistrySource, {"by_clock": "on"}, {"propose_versions": True}),
    Case(PolicyRule, {"note": "mine"}, {"priority": 7, "enabled": False}, {"name": "Pushes ask"}),
    Case(
        Channel,
        {"minimum_risk": "2"},
        {"enabled": False, "events": ["asked"]},
        {"name": "Incidents"},
    ),
    Case(SlackIdentity, {"member": "U0MINE"}, {"team": "T0OTHER"}),
    Case(Conversation, {"title": "mine"}, {"servers": ["git"]}),
    Case(Provider, {"timeout": "30"}, {"enabled": False}),
    Case(LanguageModel, {"max_output": "100"}, {"enabled": False}),
    Case(Headend, {"concurrency": "3"}, {"enabled": False}),
    Case(ExpertTool, {"description": "mine"}, {"enabled": False, "max_steps": 3}),
    Case(EffortAgent, {"cycle_seconds": "5"}, {"supervises": True}),
    Case(User, {"email": "mine@example.org"}, {"is_active": False}, {"username": "viewer"}),
    Case(Group, {"name": "mine"}, {}, {"name": "Team"}),
]


@pytest.fixture
def client(client_of: ClientOf, site: Site) -> Client:
    govern(site)
    Group.objects.create(name="Team")
    return client_of("root")


def page(row: Any) -> str:
    return reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_change", args=[row.pk])


def opened(client: Client, row: Any) -> dict[str, Any]:
    """The form of the page as it would be sent."""
    return {**form_of(client.get(page(row)), row._meta.model_name)}


def errors(answer: Any) -> dict[str, str]:
    assert answer.status_code == 200, "the form was saved"
    return {
        name: " ".join(texts) for name, texts in answer.context["adminform"].form.errors.items()
    }


def find(case: Case) -> Any:
    manager = Tool.offers if case.model is Tool else case.model._base_manager
    return manager.filter(**(case.find or {})).order_by("pk")[0]


@pytest.mark.both_databases
@pytest.mark.exhaustive(but=("Server",))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.model.__name__)
def test_form_keeps_what_others_have_saved_since_it_was_opened(client: Client, case: Case) -> None:
    row = find(case)
    form = opened(client, row)
    others = {
        name: Agent.objects.get(slug=value) if name == "agent" else value
        for name, value in case.others.items()
    }
    if others:
        case.model._base_manager.filter(pk=row.pk).update(**others)
    answer = client.post(page(row), form | case.mine)
    assert answer.status_code == 302, errors(answer)
    stored = case.model._base_manager.get(pk=row.pk)
    assert {name: getattr(stored, name) for name in others} == others
    for name, value in case.mine.items():
        now = getattr(stored, name)
        assert now is True if value == "on" else str(now) == value or float(now) == float(value)


def test_field_that_both_have_changed_is_refused_once(client: Client, site: Site) -> None:
    agent = site.agents["ci"]
    form = opened(client, agent)
    Agent.objects.filter(pk=agent.pk).update(description="theirs", calls_per_minute=9)
    answer = client.post(page(agent), form | {"description": "mine"})
    assert 'changed this to "theirs"' in errors(answer)["description"]
    assert "Nothing was saved." in answer.content.decode(), (
        "the form stands far below the top of the page"
    )
    assert [*errors(answer)] == ["description"]
    again = form_of(answer, "agent")
    assert again["description"] == ["mine"]
    assert again["calls_per_minute"] == ["9"]
    assert client.post(page(agent), again).status_code == 302
    agent.refresh_from_db()
    assert (agent.description, agent.calls_per_minute) == ("mine", 9)


@pytest.mark.exhaustive
def test_same_change_by_both_is_no_conflict(client: Client, site: Site) -> None:
    agent = site.agents["ci"]
    form = opened(client, agent)
    Agent.objects.filter(pk=agent.pk).update(description="the same")
    assert client.post(page(agent), form | {"description": "the same"}).status_code == 302


@pytest.mark.exhaustive
def test_switch_that_both_have_moved_shows_what_it_is_now(client: Client) -> None:
    row = Conversation.objects.get()
    form = opened(client, row)
    Conversation.objects.update(servers=["github"])
    answer = client.post(page(row), form | {"servers": "git"})
    assert '"github"' in errors(answer)["servers"]


@pytest.mark.exhaustive
def test_relation_that_both_have_changed_is_shown_by_name(client: Client, site: Site) -> None:
    row = Workspace.objects.get()
    form = opened(client, row)
    Workspace.objects.update(agent=site.agents["ci"])
    answer = client.post(page(row), form | {"agent": str(site.agents["research"].pk)})
    assert 'to "ci"' in errors(answer)["agent"]


def test_secret_that_both_have_changed_is_refused_without_showing_it(client: Client) -> None:
    row = Credential.objects.get(name="github")
    form = opened(client, row)
    credentials.save_credential(
        credential=Credential.objects.get(pk=row.pk), value="their-secret", actor=ACTOR
    )
    answer = client.post(page(row), form | {"value": "my-secret"})
    assert "Another user changed this" in errors(answer)["value"]
    shown = html.unescape(answer.content.decode())
    assert "their-secret" not in shown
    assert "my-secret" not in shown
    row.refresh_from_db()
    assert row.value == "their-secret"


def test_environment_that_somebody_else_has_changed_is_kept(client: Client) -> None:
    server = Server.objects.get(slug="git")
    form = opened(client, server)
    theirs = Server.objects.get(pk=server.pk)
    theirs.env = {"GIT_AUTHOR_NAME": "theirs", "NEW": "x"}
    lifecycle.save_server(server=theirs, actor=ACTOR)
    assert client.post(page(server), form | {"description": "mine"}).status_code == 302
    server.refresh_from_db()
    assert server.env == {"GIT_AUTHOR_NAME": "theirs", "NEW": "x"}
    assert server.description == "mine"


@pytest.mark.exhaustive
def test_members_of_a_list_that_somebody_else_has_changed_are_kept(
    client: Client, site: Site
) -> None:
    channel = Channel.objects.get(name="Incidents")
    form = opened(client, channel)
    channel.servers.set([site.servers["git"], site.servers["time"]])
    assert client.post(page(channel), form | {"minimum_risk": "2"}).status_code == 302
    assert {server.slug for server in channel.servers.all()} == {"git", "time"}


@pytest.mark.exhaustive
def test_list_that_was_empty_when_the_form_was_opened_is_kept(client: Client, site: Site) -> None:
    channel = Channel.objects.get(name="On call")
    form = opened(client, channel)
    channel.servers.set([site.servers["git"]])
    assert client.post(page(channel), form | {"minimum_risk": "2"}).status_code == 302
    assert [server.slug for server in channel.servers.all()] == ["git"]


@pytest.mark.exhaustive
def test_made_up_fingerprints_are_ignored(client: Client, site: Site) -> None:
    agent = site.agents["ci"]
    form = opened(client, agent)
    for text in ("{", "[]", '{"description": 1}', "[" * 100_000):
        assert (
            client.post(page(agent), form | {"_opened": text, "description": "mine"}).status_code
            == 302
        )


@pytest.mark.parametrize("whose", ["own", "another person's"])
def test_account_that_is_disabled_while_a_password_is_hashed_stays_disabled(
    client_of: ClientOf, site: Site, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    person = site.people["viewer"]
    text = "a much longer password"
    set_password = User.set_password

    def set_and_disable(user: User, raw: str | None) -> None:
        set_password(user, raw)
        User.objects.filter(pk=person.pk).update(is_active=False)

    monkeypatch.setattr(User, "set_password", set_and_disable)
    if whose == "own":
        form = {"old_password": PASSWORD, "new_password1": text, "new_password2": text}
        answer = client_of("viewer").post(reverse("admin:password_change"), form)
    else:
        form = {"password1": text, "password2": text, "usable_password": "true"}
        answer = client_of("root").post(
            reverse("admin:auth_user_password_change", args=[person.pk]), form
        )
    assert answer.status_code == 302
    person.refresh_from_db()
    assert person.check_password(text)
    assert not person.is_active


def test_hash_of_a_password_is_neither_fingerprinted_nor_shown(client: Client, site: Site) -> None:
    person = site.people["viewer"]
    form = opened(client, person)
    assert '"password"' not in form["_opened"][0]
    made_up = form | {"_opened": json.dumps({"password": "0.0"}), "email": "x@example.org"}
    answer = client.post(page(person), made_up, follow=True)
    assert person.password not in answer.content.decode()
