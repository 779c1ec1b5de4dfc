"""Every page and every button of the admin, tried by every role."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission
from django.db.models import Model
from django.test import Client
from django.urls import reverse

from mcpregistry.admin.base import RecordAdmin, Verb
from mcpregistry.models import (
    Agent,
    AuditEntry,
    AuditVerification,
    Delivery,
    Permit,
    PolicyRule,
    Server,
    Token,
    Tool,
    Workspace,
)
from mcpregistry.services.access.roles import ADMIN, APPROVER, OPERATOR, ROLES, VIEWER
from mcpregistry.services.servers import lifecycle
from subagents.models import ExpertTool, LanguageModel
from subagents.services import experts, providers
from tests.admin.conftest import ClientOf
from tests.admin.pressing import asks, chosen
from tests.fakes.seed import ACTOR, Site, govern

# roles are asked in Python; the pages' queries have tests of their own
pytestmark = pytest.mark.one_database

OURS = [model for model, page in admin.site._registry.items() if isinstance(page, RecordAdmin)]
LADDER = {role: place for place, role in enumerate(ROLES)}

# The least role that may add, change or delete; nobody may where nothing is said.
ADDS = {
    "server": OPERATOR,
    "endpoint": OPERATOR,
    "credential": OPERATOR,
    "agent": ADMIN,
    "workspace": ADMIN,
    "grant": ADMIN,
    "policyrule": ADMIN,
    "channel": ADMIN,
    "slackidentity": ADMIN,
    "energypool": ADMIN,
    "budget": ADMIN,
    "registrysource": ADMIN,
    "experttool": ADMIN,
    "provider": OPERATOR,
    "languagemodel": OPERATOR,
    "effortagent": ADMIN,
    "headend": ADMIN,
}
CHANGES = ADDS | {"tool": OPERATOR, "conversation": OPERATOR, "configuration": ADMIN}
# Others lose something with these: their calls' secrets, their experts' models.
DELETES = ADDS | {
    "credential": ADMIN,
    "provider": ADMIN,
    "languagemodel": ADMIN,
    "projectfile": ADMIN,
}
ADDS |= {
    "maintenancerequest": OPERATOR,
    "install": OPERATOR,
    "conversation": OPERATOR,
    "invitation": ADMIN,
    "token": VIEWER,  # of their own
}  # asked, and then only stopped
VERBS = {
    ("server", "confirm"): ADMIN,
    ("server", "test"): OPERATOR,
    ("server", "refresh"): OPERATOR,
    ("server", "reconnect"): OPERATOR,
    ("server", "connect"): OPERATOR,
    ("server", "disconnect"): OPERATOR,
    ("server", "approve"): APPROVER,
    ("server", "enable"): OPERATOR,
    ("server", "disable"): OPERATOR,
    ("server", "try-sandbox"): OPERATOR,
    ("server", "enforce-sandbox"): OPERATOR,
    ("server", "auto-approve"): ADMIN,
    ("server", "ask-again"): ADMIN,
    ("server", "keep-secrets"): ADMIN,
    ("tool", "try"): OPERATOR,
    ("tool", "enable"): OPERATOR,
    ("tool", "disable"): OPERATOR,
    ("tool", "approve"): APPROVER,
    ("tool", "reject"): APPROVER,
    ("tool", "revert"): APPROVER,
    ("tool", "confirm-claims"): APPROVER,
    ("tool", "behaviour"): APPROVER,
    ("tool", "auto-approve"): ADMIN,
    ("tool", "ask-again"): ADMIN,
    ("policyrule", "try"): VIEWER,
    ("policyrule", "enable"): ADMIN,
    ("policyrule", "disable"): ADMIN,
    ("permit", "revoke"): APPROVER,
    ("agent", "token"): ADMIN,
    ("token", "revoke"): ADMIN,
    ("token", "rotate"): ADMIN,
    ("invitation", "withdraw"): ADMIN,
    ("agent", "connect"): VIEWER,
    ("server", "set-up"): VIEWER,
    ("policyrule", "live"): ADMIN,
    ("hostsession", "end"): OPERATOR,
    ("install", "approve"): ADMIN,
    ("install", "use"): OPERATOR,
    ("install", "configure"): OPERATOR,
    ("install", "roll-back"): OPERATOR,
    ("install", "remove"): OPERATOR,
    ("conversation", "end"): OPERATOR,
    ("effortagent", "answer-all"): ADMIN,
    ("energypool", "fill"): ADMIN,
    ("registrysource", "sync"): OPERATOR,
    ("channel", "test"): ADMIN,
    ("delivery", "redeliver"): ADMIN,
    ("projectfile", "confirm"): ADMIN,
    ("projectfile", "take-back"): ADMIN,
    ("provider", "test"): OPERATOR,
    ("provider", "confirm"): ADMIN,
    ("run", "cancel"): OPERATOR,
    ("run", "resume"): OPERATOR,
    ("run", "replay"): OPERATOR,
    ("maintenancerequest", "cancel"): OPERATOR,
    ("maintenancerequest", "pause"): OPERATOR,
    ("maintenancerequest", "resume"): OPERATOR,
    ("proposal", "apply"): OPERATOR,
    ("proposal", "decline"): OPERATOR,
    ("trialreport", "apply"): OPERATOR,
    ("trialreport", "decline"): OPERATOR,
}


@pytest.fixture
def site(site: Site) -> Site:
    """The site of this room, with one of everything that its other tests make themselves."""
    return govern(site)


def page(model: type[Model], what: str, *args: Any) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{what}", args=args)


def holds(role: str, least: str | None) -> bool:
    return least is not None and LADDER[role] >= LADDER[least]


@pytest.mark.exhaustive
@pytest.mark.parametrize("role", ROLES)
def test_every_role_opens_every_list_and_record(client_of: ClientOf, role: str) -> None:
    client = client_of(role)
    for model in OURS:
        assert client.get(page(model, "changelist"), follow=True).status_code == 200, model
        row = model._default_manager.first()
        assert row is not None, f"the seed makes no {model.__name__}"
        for what in ("change", "history"):
            assert client.get(page(model, what, row.pk)).status_code == 200, (model, what)
    assert client.get(reverse("admin:index")).status_code == 200


@pytest.mark.exhaustive(but=("every eighth page for an operator",))
@pytest.mark.parametrize(
    ("role", "models"),
    [*((role, OURS) for role in ROLES), (OPERATOR, OURS[::8])],
    ids=[*ROLES, "every eighth page for an operator"],
)
def test_adding_changing_and_deleting_follow_the_roles(
    client_of: ClientOf, role: str, models: list[type[Model]]
) -> None:
    client = client_of(role)
    for model in models:
        name = str(model._meta.model_name)
        row = model._default_manager.first()
        may = {"add": ADDS.get(name), "delete": DELETES.get(name)}
        assert (client.get(page(model, "add")).status_code == 200) is holds(role, may["add"]), (
            model,
            "add",
        )
        answer = client.get(page(model, "delete", row.pk))
        assert (answer.status_code == 200) is holds(role, may["delete"]), (model, "delete")
        saved = client.post(page(model, "change", row.pk), {})
        assert (saved.status_code != 403) is holds(role, CHANGES.get(name)), (model, "change")


@pytest.mark.exhaustive(but=("approver",))
@pytest.mark.parametrize("role", ROLES)
def test_people_and_groups_are_for_admins(client_of: ClientOf, role: str) -> None:
    client = client_of(role)
    for name in ("auth_user", "auth_group"):
        for what in ("changelist", "add"):
            assert (client.get(reverse(f"admin:{name}_{what}")).status_code == 200) is (
                role == ADMIN
            )


def every_verb() -> list[tuple[type[Model], Verb]]:
    pages = admin.site._registry
    return [(model, verb) for model in OURS for verb in pages[model].verbs]  # type: ignore[attr-defined]


def test_every_button_is_in_the_table_of_this_test() -> None:
    assert {(model._meta.model_name, verb.name) for model, verb in every_verb()} == set(VERBS)


@pytest.mark.exhaustive(but=("every fourth button for an operator",))
@pytest.mark.parametrize(
    ("role", "step"),
    [*((role, 1) for role in ROLES), (OPERATOR, 4)],
    ids=[*ROLES, "every fourth button for an operator"],
)
def test_buttons_obey_the_roles_and_nothing_changes_for_those_refused(
    client_of: ClientOf, role: str, step: int
) -> None:
    client = client_of(role)
    for model, verb in every_verb()[::step]:
        least = VERBS[model._meta.model_name, verb.name]
        row = _row_for(model, verb)
        if verb.page:
            answer = client.get(reverse(f"admin:{verb.page}", args=[row.pk]))
            assert (answer.status_code in (200, 302)) is holds(role, least), (model, verb.name)
            if not holds(role, least):
                assert client.post(reverse(f"admin:{verb.page}", args=[row.pk])).status_code == 403
            continue
        before = AuditEntry.objects.count()
        answer = pressed(client, page(model, "verb", row.pk, verb.name))
        assert answer.status_code == (302 if holds(role, least) else 403), (model, verb.name)
        if not holds(role, least):
            assert AuditEntry.objects.count() == before, (model, verb.name)


def pressed(client: Client, address: str) -> Any:
    """The answer to a button; where it says what will happen and asks, the answer to yes."""
    answer: Any = client.post(address)
    return client.post(address, {"sure": sure}) if (sure := asks(answer)) else answer


def _row_for(model: type[Model], verb: Verb) -> Any:
    """A record that the button fits; made on the spot where earlier buttons have used it up."""
    rows = [row for row in model._default_manager.all() if verb.applies(row)]
    return rows[0] if rows else model._default_manager.first()


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize("role", ROLES)
def test_a_page_offers_only_the_buttons_that_the_role_may_press(
    client_of: ClientOf, site: Site, role: str
) -> None:
    client = client_of(role)
    html = client.get(page(Server, "change", site.servers["github"].pk)).content.decode()
    assert ("Test server" in html) is holds(role, OPERATOR)
    assert ("Approve all definitions" in html) is holds(role, APPROVER)
    draft = client.get(page(Server, "change", site.servers["browser"].pk)).content.decode()
    assert ("Confirm launch" in draft) is holds(role, ADMIN)


def _unused_model() -> LanguageModel:
    provider = LanguageModel.objects.get(name="small").provider
    return providers.save_model(
        model=LanguageModel(provider=provider, name="spare", free=True), actor=ACTOR
    )


def _unused_expert() -> ExpertTool:
    """One without runs: while there are any, it is kept."""
    spare = ExpertTool(name="spare", description="Never asked.")
    return experts.save_expert(
        expert=spare, targets=[LanguageModel.objects.get(name="small")], actor=ACTOR
    )


@pytest.mark.exhaustive(but=("approver",))
@pytest.mark.parametrize("role", ROLES)
def test_list_actions_obey_the_roles(client_of: ClientOf, site: Site, role: str) -> None:
    client = client_of(role)
    waiting = Tool.objects.waiting().first()
    assert waiting is not None
    tries = [
        (Tool, "approve_selected", waiting.pk, APPROVER),
        (Server, "disable_selected", site.servers["time"].pk, OPERATOR),
        (Token, "revoke_selected", Token.objects.first().pk, ADMIN),  # type: ignore[union-attr]
        (Agent, "delete_selected", site.agents["ci"].pk, ADMIN),
        (PolicyRule, "disable_selected", PolicyRule.objects.get(name="Pushes ask").pk, ADMIN),
        (PolicyRule, "enable_selected", PolicyRule.objects.get(name="No merges").pk, ADMIN),
        (PolicyRule, "delete_selected", PolicyRule.objects.get(name="No merges").pk, ADMIN),
        (Permit, "revoke_selected", Permit.objects.get().pk, APPROVER),
        (Delivery, "redeliver_selected", Delivery.objects.get(state="sent").pk, ADMIN),
        (LanguageModel, "delete_selected", _unused_model().pk, ADMIN),
        (ExpertTool, "delete_selected", _unused_expert().pk, ADMIN),
    ]
    for model, action, pk, least in tries:
        before = AuditEntry.objects.count()
        chosen(client, page(model, "changelist"), action, [pk], post="yes")
        assert (AuditEntry.objects.count() > before) is holds(role, least), (model, action)


@pytest.mark.exhaustive
@pytest.mark.attack
def test_a_workspace_needs_the_right_to_grant(client_of: ClientOf, site: Site) -> None:
    """It gives whoever starts a host in its folder all that its agent is granted."""
    clerk = site.people["viewer"]
    rights = [f"{verb}_workspace" for verb in ("add", "change", "delete")]
    clerk.user_permissions.set(Permission.objects.filter(codename__in=rights))
    row = Workspace.objects.first()
    client = client_of("viewer")
    assert row is not None
    urls = [
        page(Workspace, "add"),
        page(Workspace, "change", row.pk),
        page(Workspace, "delete", row.pk),
    ]
    assert [client.post(url, {"post": "yes"}).status_code for url in urls] == [403, 403, 403]
    clerk.user_permissions.add(Permission.objects.get(codename="add_grant"))
    assert 403 not in [client.post(url, {"post": "yes"}).status_code for url in urls]


def test_nothing_changes_by_opening_an_address(client_of: ClientOf, site: Site) -> None:
    client = client_of("root")
    for model, verb in every_verb():
        if not verb.page:
            row = _row_for(model, verb)
            assert client.get(page(model, "verb", row.pk, verb.name)).status_code == 405
    before = AuditEntry.objects.count()
    assert client.get(reverse("admin:mcpregistry_auditentry_verify")).status_code == 200
    assert not AuditVerification.objects.exists()  # it only shows what a worker has found
    client.get(reverse("admin:mcpregistry_server_confirm", args=[site.servers["browser"].pk]))
    client.get(reverse("admin:mcpregistry_agent_issue_token", args=[site.agents["ci"].pk]))
    assert AuditEntry.objects.count() == before


def test_a_button_needs_the_token_of_its_page(site: Site) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(site.people["admin"])
    url = page(Server, "verb", site.servers["git"].pk, "disable")
    assert client.post(url).status_code == 403
    assert Server.objects.get(slug="git").lifecycle == "active"


def test_an_unknown_button_or_record_is_not_found(client_of: ClientOf, site: Site) -> None:
    client = client_of("root")
    assert client.post(page(Server, "verb", site.servers["git"].pk, "explode")).status_code == 404
    assert client.post(page(Server, "verb", 999_999, "test")).status_code == 404


@pytest.mark.exhaustive(but=("no role, every eighth list",))
@pytest.mark.parametrize(
    ("who", "models"),
    [*((who, OURS) for who in ("anonymous", "no role", "not staff")), ("no role", OURS[::8])],
    ids=["anonymous", "no role", "not staff", "no role, every eighth list"],
)
def test_without_a_role_there_is_nothing_to_see(
    site: Site, who: str, models: list[type[Model]]
) -> None:
    client = Client()
    if who != "anonymous":
        person = site.people[VIEWER]
        person.groups.clear()
        person.is_staff = who == "no role"
        person.save()
        client.force_login(person)
    for model in models:
        assert client.get(page(model, "changelist")).status_code in (302, 403)
    if who == "no role":
        assert "you do not have a role" in client.get(reverse("admin:index")).content.decode()


def test_an_operator_cannot_make_a_changed_server_run(client_of: ClientOf, site: Site) -> None:
    """Editing the command makes it a draft, and enabling a draft leaves it one."""
    server = site.servers["time"]
    server.refresh_from_db()
    server.command = ["sh", "-c", "touch /tmp/canary"]
    lifecycle.save_server(server=server, actor=ACTOR)
    client = client_of(OPERATOR)
    for name in ("enable", "disable", "enable", "test", "reconnect"):
        client.post(page(Server, "verb", server.pk, name))
        server.refresh_from_db()
        assert server.lifecycle != "active"
