"""A credential or a variable goes only where its scope says, whoever names it; only admins set
scopes."""

from __future__ import annotations

from typing import Any

import pytest

from mcpregistry.domain.caller_rights import grant_all_rights
from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.models import Configuration, Credential, Server
from mcpregistry.services.access import credentials, scopes
from mcpregistry.services.configuration.site import save_configuration
from mcpregistry.services.servers.lifecycle import confirm_launch, delete_server, save_server
from mcpregistry.services.servers.targets import build_target
from subagents.models import Provider
from subagents.services import providers
from subagents.services.readiness import provider_problem
from tests.subagents.admin.test_pages import client_as

pytestmark = [pytest.mark.django_db, pytest.mark.attack, pytest.mark.one_database]

SECRET = "canary-5c0pe"


@pytest.fixture(autouse=True)
def _secrets(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.PASS_ENV = ["PROD_TOKEN"]
    monkeypatch.setenv("PROD_TOKEN", SECRET)
    credentials.save_credential(
        credential=Credential(name="prod_db"), actor="user:admin", value=SECRET, scope=["server:db"]
    )
    Configuration.load()
    Configuration.objects.update(variable_scope={"PROD_TOKEN": ["server:db"]})


NAMED = ("${cred:prod_db}", "${PROD_TOKEN}", "x ${PROD_TOKEN:-none}")


@pytest.mark.parametrize("text", NAMED)
def test_a_server_or_provider_out_of_scope_is_refused_with_what_to_do(text: str) -> None:
    with pytest.raises(ConfigInvalid, match="does not include the server 'evil'") as refusal:
        save_server(server=Server(slug="evil", command=["x"], env={"A": text}), actor="user:op")
    assert "Ask an administrator to add server:evil to the scope" in (refusal.value.remedy or "")
    assert not Server.objects.exists()
    for facts in ({"key": text.replace(" ", "")}, {"headers": {"A": text}}):
        with pytest.raises(ConfigInvalid, match="does not include the provider 'evil'"):
            providers.save_provider(
                provider=Provider(
                    slug="evil", kind="compatible", base_url="https://evil.example/v1"
                ),
                actor="user:op",
                **facts,
            )
    server = save_server(server=Server(slug="db", command=["x"], env={"A": text}), actor="user:op")
    confirm_launch(server=server, actor="user:admin", launch_hash=server.launch_hash())
    assert SECRET in build_target(server.pk).env["A"]


@pytest.mark.parametrize("text", NAMED)
def test_what_came_into_the_row_another_way_is_not_filled_in_either(text: str) -> None:
    server = Server(slug="evil", command=["x"], lifecycle="active")
    server.env = {"A": text}
    server.confirmed_launch = server.launch_hash()
    server.save()
    with pytest.raises(ConfigInvalid, match="does not include the server 'evil'"):
        build_target(server.pk)
    provider = Provider(
        slug="evil", kind="compatible", base_url="https://evil.example/v1", key=text
    )
    provider.confirmed_destination = provider.destination_hash()
    provider.save()
    assert "does not include the provider 'evil'" in str(provider_problem(provider))


def test_only_an_admin_sets_a_scope(db: None) -> None:
    row = Credential.objects.get()
    page = f"/admin/mcpregistry/credential/{row.pk}/change/"
    operator = client_as("operator")
    admin = client_as("admin")
    operator.post(page, {"name": "prod_db", "value": "", "scope": "server:db\nserver:evil"})
    row.refresh_from_db()
    assert row.scope == ["server:db"]
    assert operator.get("/admin/mcpregistry/configuration/1/change/").status_code in (200, 403)
    operator.post("/admin/mcpregistry/configuration/1/change/", {"variable_scope": "{}"})
    assert Configuration.load().variable_scope == {"PROD_TOKEN": ["server:db"]}
    admin.post(page, {"name": "prod_db", "value": "", "scope": "server:db\nprovider:llm"})
    row.refresh_from_db()
    assert row.scope == ["provider:llm", "server:db"]
    wrong = admin.post(page, {"name": "prod_db", "value": "", "scope": "everywhere"}, follow=True)
    assert "Write each of them as server:NAME or provider:NAME" in wrong.content.decode()


def test_a_scope_follows_a_name_and_ends_with_its_record_and_a_change_of_it_connects_anew() -> None:
    server = save_server(
        server=Server(slug="db", command=["x"], env={"A": "${cred:prod_db}"}), actor="t"
    )
    server.slug = "db2"
    save_server(server=server, actor="t")
    assert Credential.objects.get().scope == ["server:db2"]
    assert Configuration.load().variable_scope == {"PROD_TOKEN": ["server:db2"]}
    before = Server.objects.get().revision
    credentials.save_credential(credential=Credential.objects.get(), actor="user:admin", scope=[])
    row = Configuration.load()
    row.variable_scope = {}
    save_configuration(configuration=row, actor="user:admin")
    assert Server.objects.get().revision == before + 2
    scopes.grant_variables(["${PROD_TOKEN}"], "server:db2", "runmcp")
    delete_server(server=Server.objects.get(), actor="t", rights=grant_all_rights)
    assert Configuration.load().variable_scope == {"PROD_TOKEN": []}
