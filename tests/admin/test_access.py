"""Agents and tokens, endpoints, grants, workspaces, credentials, settings."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from mcpregistry.models import (
    Agent,
    AuditEntry,
    Configuration,
    Credential,
    Endpoint,
    Grant,
    Token,
    Tool,
    Workspace,
)
from mcpregistry.services.access.tokens import find_token
from tests.admin.conftest import ClientOf
from tests.admin.pressing import asks, pressed
from tests.fakes.seed import Site

pytestmark = [pytest.mark.one_database, pytest.mark.usefixtures("contexts")]


def add(model: str) -> str:
    return reverse(f"admin:mcpregistry_{model}_add")


def change(row: Any) -> str:
    return reverse(f"admin:mcpregistry_{row._meta.model_name}_change", args=[row.pk])


def errors(answer: Any) -> dict[str, list[str]]:
    return {name: list(texts) for name, texts in answer.context["adminform"].form.errors.items()}


INLINE = {"tokens-TOTAL_FORMS": 0, "tokens-INITIAL_FORMS": 0}


# Tokens


def test_a_token_is_shown_once_and_nowhere_else(client_of: ClientOf, site: Site) -> None:
    client = client_of("admin")
    agent = site.agents["ci"]
    answer = client.post(
        reverse("admin:mcpregistry_agent_issue_token", args=[agent.pk]), {"name": "box", "days": 7}
    )
    text = answer.context["issued"]
    assert text in answer.content.decode()
    assert "no-store" in answer["Cache-Control"]
    assert text not in answer.wsgi_request.get_full_path()
    token = find_token(text)
    assert token is not None
    assert token.agent == agent
    assert 6 <= (token.expires_at - timezone.now()).days <= 7  # type: ignore[operator]
    kept = [str(client.cookies), *(str(session.get_decoded()) for session in Session.objects.all())]
    kept += AuditEntry.objects.values_list("body", flat=True)
    later = [client.get(change(row)).content.decode() for row in (agent, token)]
    assert not any(text in place for place in [*kept, *later])


@pytest.mark.parametrize(
    ("form", "where"),
    [({"days": 7}, "name"), ({"name": "x", "days": 0}, "days"), ({"name": "x"}, "days")],
)
def test_a_token_needs_a_name_and_a_life(
    client_of: ClientOf, site: Site, form: dict[str, Any], where: str
) -> None:
    url = reverse("admin:mcpregistry_agent_issue_token", args=[site.agents["ci"].pk])
    answer = client_of("admin").post(url, form)
    assert list(answer.context["form"].errors) == [where]
    assert "issued" not in answer.context


def test_a_revoked_token_no_longer_works(client_of: ClientOf, site: Site) -> None:
    token = find_token(site.token_text)
    assert token is not None
    pressed(client_of("admin"), token, "revoke")
    assert find_token(site.token_text) is None
    assert "revoked" in client_of("viewer").get(change(token)).content.decode()


def test_everybody_makes_a_token_of_their_own_with_their_own_rights_and_revokes_it(
    client_of: ClientOf,
) -> None:
    client = client_of("viewer")
    other = client_of("operator")
    assert "uses the REST API as" in client.get(add("token")).content.decode()
    answer = client.post(add("token"), {"name": "script", "days": 7})
    text = answer.context["issued"]
    assert "no-store" in answer["Cache-Control"]
    token = find_token(text)
    assert token is not None
    assert (str(token.user), token.agent) == ("viewer", None)
    headers = {"Authorization": f"Bearer {text}"}
    assert Client(headers=headers).get("/api/v1/servers").status_code == 200
    refused = Client(headers=headers).post(
        "/api/v1/servers", {"slug": "x"}, content_type="application/json"
    )
    assert refused.status_code == 403
    button = reverse("admin:mcpregistry_token_verb", args=[token.pk, "revoke"])
    assert other.post(button).status_code == 403, "it is not theirs"
    pressed(client, token, "revoke")
    assert find_token(text) is None


# Agents and grants


def test_an_agent_is_made_with_capabilities_line_by_line(client_of: ClientOf, site: Site) -> None:
    data = {
        "slug": "bot",
        "enabled": "on",
        "capabilities": "mcp_git\nmcp_time_get_current_time",
    } | INLINE
    answer = client_of("admin").post(add("agent"), data)
    assert answer.status_code == 302, errors(answer)
    assert Agent.objects.get(slug="bot").capabilities == ["mcp_git", "mcp_time_get_current_time"]


@pytest.mark.both_databases
def test_the_agents_page_shows_exactly_what_it_sees(client_of: ClientOf, site: Site) -> None:
    client = client_of("viewer")
    local = site.agents["local"]
    answer = client.get(change(local))
    assert answer.context["chosen"].slug == "default"
    names = set(dict(answer.context["seen"]))
    assert {"git__git_status", "time__convert_time", "github__get_issue"} <= names
    assert not any(
        name.startswith(("postgres", "github__delete", "github__create")) for name in names
    )
    narrow = dict(client.get(change(local) + "?endpoint=readonly").context["seen"])
    assert set(narrow) == {"time__convert_time", "time__get_current_time"}


def test_an_agent_that_is_off_sees_nothing(client_of: ClientOf, site: Site) -> None:
    Agent.objects.filter(slug="local").update(enabled=False)
    answer = client_of("viewer").get(change(site.agents["local"]))
    assert answer.context["seen"] == []
    assert "disabled" in answer.content.decode()


def test_an_agent_goes_with_its_tokens_and_grants(client_of: ClientOf, site: Site) -> None:
    client_of("admin").post(
        reverse("admin:mcpregistry_agent_delete", args=[site.agents["local"].pk]), {"post": "yes"}
    )
    assert not Agent.objects.filter(slug="local").exists()
    assert find_token(site.token_text) is None
    assert AuditEntry.objects.filter(kind="agent.deleted", subject="agent:local").exists()


@pytest.mark.exhaustive
def test_a_grant_needs_one_holder_and_one_object(client_of: ClientOf, site: Site) -> None:
    client = client_of("admin")
    agent = site.agents["ci"]
    server = site.servers["git"]
    both = {
        "agent": agent.pk,
        "endpoint": Endpoint.objects.get(slug="default").pk,
        "server": server.pk,
        "argument_pins": "{}",
    }
    assert "Choose either an agent or an endpoint." in str(errors(client.post(add("grant"), both)))
    nothing = {"agent": agent.pk, "argument_pins": "{}"}
    assert "Choose either a server or one tool." in str(errors(client.post(add("grant"), nothing)))
    odd = {"agent": agent.pk, "server": server.pk, "argument_pins": "[1]"}
    assert "Use a JSON object" in str(errors(client.post(add("grant"), odd))["argument_pins"])
    broken = odd | {"argument_pins": "{"}
    assert list(errors(client.post(add("grant"), broken))) == ["argument_pins"]


def test_a_grant_is_made_and_withdrawn(client_of: ClientOf, site: Site) -> None:
    client = client_of("admin")
    found = Tool.objects.get(name="list_tables")
    data = {
        "agent": site.agents["ci"].pk,
        "tool": found.pk,
        "argument_pins": '{"schema": "public"}',
        "note": "nightly",
    }
    client.post(add("grant"), data)
    grant = Grant.objects.get(tool=found)
    assert (grant.argument_pins, grant.created_by) == ({"schema": "public"}, site.people["admin"])
    client.post(reverse("admin:mcpregistry_grant_delete", args=[grant.pk]), {"post": "yes"})
    kinds = AuditEntry.objects.filter(subject="grant:ci → postgres::list_tables").values_list(
        "kind", flat=True
    )
    assert set(kinds) == {"grant.created", "grant.withdrawn"}


@pytest.mark.parametrize(("validity", "count"), [("live", 7), ("expired", 0)])
@pytest.mark.both_databases
def test_grants_are_filtered_by_validity(
    client_of: ClientOf, site: Site, validity: str, count: int
) -> None:
    answer = client_of("viewer").get(f"/admin/mcpregistry/grant/?validity={validity}")
    assert answer.context["cl"].result_count == count


def test_endpoints_and_workspaces_are_saved_through_their_services(
    client_of: ClientOf, site: Site
) -> None:
    client = client_of("admin")
    style = {
        "scope": "granted",
        "naming_style": "plain",
        "description_style": "none",
        "instructions_limit": 0,
    }
    client.post(add("endpoint"), {"slug": "second", "enabled": "on"} | style)
    endpoint = Endpoint.objects.get(slug="second")
    where = {"directory": "relative/path", "endpoint": endpoint.pk, "agent": site.agents["ci"].pk}
    assert "absolute path" in str(errors(client.post(add("workspace"), where))["directory"])
    client.post(add("workspace"), where | {"directory": "/srv/second"})
    workspace = Workspace.objects.get(directory="/srv/second")
    client.post(reverse("admin:mcpregistry_workspace_delete", args=[workspace.pk]), {"post": "yes"})
    client.post(reverse("admin:mcpregistry_endpoint_delete", args=[endpoint.pk]), {"post": "yes"})
    kinds = set(AuditEntry.objects.filter(actor="user:admin").values_list("kind", flat=True))
    assert kinds == {
        "endpoint.created",
        "endpoint.deleted",
        "workspace.created",
        "workspace.deleted",
    }


# Credentials and settings


def test_a_credential_is_written_and_never_read(client_of: ClientOf, site: Site) -> None:
    client = client_of("admin")
    client.post(add("credential"), {"name": "new", "value": "very-secret"})
    credential = Credential.objects.get(name="new")
    assert credential.value == "very-secret"
    client.post(change(credential), {"name": "new", "description": "Words", "value": ""})
    credential.refresh_from_db()
    assert (credential.value, credential.description) == ("very-secret", "Words")
    client.post(change(credential), {"name": "new", "value": "another"})
    credential.refresh_from_db()
    assert credential.value == "another"
    pages = [
        change(credential),
        change(credential).replace("change", "history"),
        "/admin/mcpregistry/credential/",
    ]
    html = "".join(client.get(page).content.decode() for page in pages)
    assert "very-secret" not in html
    assert "another<" not in html
    assert not any("secret" in body for body in AuditEntry.objects.values_list("body", flat=True))


def test_a_new_credential_needs_a_value(client_of: ClientOf) -> None:
    answer = client_of("operator").post(add("credential"), {"name": "empty", "value": ""})
    assert "no value yet" in str(errors(answer)["value"])


def test_whoever_may_only_look_gets_no_field_for_a_secret(client_of: ClientOf, site: Site) -> None:
    html = client_of("viewer").get(change(Credential.objects.get(name="github"))).content.decode()
    assert "stored" in html
    assert 'type="password"' not in html


def test_settings_are_one_page(client_of: ClientOf, site: Site) -> None:
    client = client_of("admin")
    page = client.get("/admin/mcpregistry/configuration/")["Location"]
    assert errors(
        client.post(page, {"keep_payloads_days": 0, "keep_calls_days": 10, "keep_history_days": 90})
    ) == {"keep_payloads_days": ["Ensure this value is greater than or equal to 1."]}
    client.post(page, {"keep_payloads_days": 7, "keep_calls_days": 10, "keep_history_days": 90})
    assert Configuration.load().keep_payloads_days == 7
    assert AuditEntry.objects.filter(kind="configuration.changed").exists()


def test_what_a_service_refuses_becomes_a_message(
    client_of: ClientOf, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mcpregistry.domain.errors import Conflict
    from mcpregistry.services.access import agents

    def refuse(**_: Any) -> None:
        raise Conflict("Somebody else was faster.", remedy="Look again.")

    monkeypatch.setattr(agents, "save_agent", refuse)
    data = {"slug": "ci", "enabled": "on", "capabilities": "mcp_integration"} | INLINE
    answer = client_of("admin").post(change(site.agents["ci"]), data, follow=True)
    assert answer.status_code == 200
    assert "Somebody else was faster. Look again." in answer.content.decode()
    assert Token.objects.exists()


def test_an_endpoint_whose_names_some_host_would_shorten_says_so(
    client_of: ClientOf, site: Site
) -> None:
    client = client_of("admin")
    endpoint = Endpoint.objects.create(slug="long")
    style = {
        "scope": "granted",
        "naming_style": "double",
        "description_style": "none",
        "instructions_limit": 4000,
    }
    data = {"slug": "long", "enabled": "on"} | style
    assert "would shorten" not in client.post(change(endpoint), data, follow=True).content.decode()
    tool = Tool.objects.filter_approved().filter(present=True).first()
    assert tool is not None
    Tool.objects.filter(pk=tool.pk).update(name="x" * 60)
    assert (
        "would shorten 1 of the names"
        in client.post(change(endpoint), data, follow=True).content.decode()
    )


# Switching off


@pytest.mark.exhaustive
def test_switching_off_by_the_form_says_first_what_stops_and_keeps_what_was_typed(
    client_of: ClientOf, site: Site
) -> None:
    client = client_of("admin")
    agent = site.agents["local"]
    data = {"slug": "local", "name": "Renamed", "capabilities": "", "calls_per_minute": ""} | INLINE
    asked = client.post(change(agent), data)
    page = asked.content.decode()
    assert asked.status_code == 200, errors(asked)
    assert "its 1 token is refused" in page
    assert 'name="name" value="Renamed"' in page
    agent.refresh_from_db()
    assert (agent.enabled, agent.name) == (True, "")
    assert client.post(change(agent), data | {"sure": "something else"}).status_code == 409
    assert client.post(change(agent), data | {"sure": asks(asked)}).status_code == 302
    agent.refresh_from_db()
    assert (agent.enabled, agent.name) == (False, "Renamed")
    assert client.post(change(agent), data | {"name": "Off as before"}).status_code == 302, (
        "nothing stops any more"
    )


def test_what_a_form_gets_wrong_is_told_before_it_asks(client_of: ClientOf, site: Site) -> None:
    answer = client_of("admin").post(change(site.agents["local"]), {"slug": "not a slug"} | INLINE)
    assert errors(answer)


def test_switching_off_an_endpoint_says_who_called_there(client_of: ClientOf, site: Site) -> None:
    endpoint = Endpoint.objects.get(slug="default")
    style = {
        "scope": "granted",
        "naming_style": "plain",
        "description_style": "none",
        "instructions_limit": 0,
    }
    answer = client_of("operator").post(change(endpoint), {"slug": "default"} | style)
    assert asks(answer), errors(answer)
    assert "agents made calls there" in answer.content.decode()
    endpoint.refresh_from_db()
    assert endpoint.enabled
