"""What administrators decide is neither deleted along nor evaded by a new name: on pages and over
REST."""

from __future__ import annotations

import html
import json

import pytest
from django.urls import reverse

from mcpregistry.models import Endpoint, PolicyRule
from mcpregistry.services.access import agents
from mcpregistry.services.policy import rules
from tests.admin.conftest import ClientOf
from tests.admin.pressing import chosen
from tests.fakes.seed import ACTOR, Site

pytestmark = [pytest.mark.attack, pytest.mark.one_database]


@pytest.fixture
def endpoint(site: Site) -> Endpoint:
    row = agents.save_endpoint(endpoint=Endpoint(slug="prod"), actor=ACTOR)
    rules.save_rule(
        rule=PolicyRule(name="prod is closed", outcome="deny", endpoint=row), actor=ACTOR
    )
    rules.save_rule(
        rule=PolicyRule(name="prod by name", outcome="deny", condition='call.endpoint == "prod"'),
        actor=ACTOR,
    )
    return row


def test_the_page_names_what_hangs_on_a_record_and_deletes_nothing(
    client_of: ClientOf, endpoint: Endpoint
) -> None:
    client = client_of("operator")
    url = reverse("admin:mcpregistry_endpoint_delete", args=[endpoint.pk])
    refused = html.unescape(client.get(url).content.decode())
    assert 'Cannot delete the endpoint "prod"' in refused
    assert "rule 'prod is closed' (you do not have permission to delete it)" in refused
    assert (
        f'href="{reverse("admin:mcpregistry_endpoint_change", args=[endpoint.pk])}">Back' in refused
    )
    client.post(url, {"post": "yes"})
    changelist = reverse("admin:mcpregistry_endpoint_changelist")
    page = chosen(client, changelist, "delete_selected", [endpoint.pk], post="yes")
    assert "prod is closed" in page.content.decode()
    assert "Cannot delete the selected" in page.content.decode()
    assert Endpoint.objects.filter(pk=endpoint.pk).exists()
    client_of("admin").post(url, {"post": "yes"})
    assert not PolicyRule.objects.filter(name="prod is closed").exists()


def test_rest_refuses_to_delete_and_to_rename_with_the_names_of_the_rules(
    client_of: ClientOf, endpoint: Endpoint
) -> None:
    client = client_of("operator")
    refused = client.delete("/api/v1/endpoints/prod")
    assert (refused.status_code, refused.json()["code"]) == (409, "CONFLICT")
    assert "prod is closed" in refused.content.decode()
    body = json.dumps({"slug": "other"})
    renamed = client.patch("/api/v1/endpoints/prod", body, content_type="application/json")
    assert renamed.status_code == 403
    assert "prod by name" in renamed.content.decode()


def test_the_form_says_which_rules_keep_a_name(client_of: ClientOf, endpoint: Endpoint) -> None:
    url = reverse("admin:mcpregistry_endpoint_change", args=[endpoint.pk])
    style = {
        "scope": "granted",
        "naming_style": "plain",
        "description_style": "none",
        "instructions_limit": 0,
    }
    data = {"slug": "other", "enabled": "on"} | style
    page = client_of("operator").post(url, data)
    assert "prod by name" in page.content.decode()
    assert Endpoint.objects.filter(slug="prod").exists()
    assert client_of("admin").post(url, data).status_code == 302
