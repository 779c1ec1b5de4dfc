"""What whoever confirms a launch is shown, what must be confirmed again, and by whom."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from mcpregistry.domain.errors import Denied, ResourceLimit
from mcpregistry.domain.servers.redacted_env import redact_env
from mcpregistry.domain.servers.target import ServerLimits
from mcpregistry.downstream.limits import check_instructions
from mcpregistry.models import AuditEntry, Server
from mcpregistry.services.servers import lifecycle
from tests.services.rows import confirmed

pytestmark = [pytest.mark.attack, pytest.mark.one_database]


def saved(server: Server, actor: str = "user:ann", **fields: Any) -> Server:
    for name, value in fields.items():
        setattr(server, name, value)
    return lifecycle.save_server(server=server, actor=actor)


def confirm(server: Server, actor: str) -> Server:
    return lifecycle.confirm_launch(server=server, actor=actor, launch_hash=server.launch_hash())


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("HOME", "/tmp/evil", "/tmp/evil"),
        ("PIP_INDEX_URL", "https://evil.example/simple", "https://evil.example/simple"),
        ("NPM_CONFIG_REGISTRY", "http://evil.example:4873/", "http://evil.example:4873/"),
        ("npm_config_registry", "http://evil.example/", "http://evil.example/"),
        (
            "UV_INDEX_URL",
            "https://ann:canary@evil.example/x?t=canary",
            "https://…@evil.example/x?…",
        ),
        ("HTTPS_PROXY", "http://ann:canary@proxy.example:8080", "http://…@proxy.example:8080"),
        ("WEBHOOK_URL", "https://hooks.example/services/canary", "https://hooks.example/…"),
        ("PYTHONPATH", "/tmp/evil", "/tmp/evil"),
        ("OPENSSL_CONF", "/tmp/evil.cnf", "/tmp/evil.cnf"),
        ("DOTNET_STARTUP_HOOKS", "/tmp/evil.dll", "/tmp/evil.dll"),
        ("CLASSPATH", "/tmp/evil.jar", "/tmp/evil.jar"),
        ("GIT_ASKPASS", "/tmp/evil", "/tmp/evil"),
        ("GIT_EDITOR", "/tmp/evil", "/tmp/evil"),
        ("GIT_EXTERNAL_DIFF", "/tmp/evil", "/tmp/evil"),
        ("REQUESTS_CA_BUNDLE", "/tmp/evil.pem", "/tmp/evil.pem"),
        ("SSLKEYLOGFILE", "/tmp/keys", "/tmp/keys"),
        ("BUNDLE_GEMFILE", "/tmp/Gemfile", "/tmp/Gemfile"),
        ("OPENAI_API_BASE", "https://evil.example/v1", "https://evil.example/…"),
        ("BASH_ENV", "/tmp/evil", "/tmp/evil"),
        ("KUBECONFIG", "/tmp/evil", "/tmp/evil"),
        ("PGSERVICEFILE", "/tmp/evil", "/tmp/evil"),
        ("RUSTC_WRAPPER", "evil", "evil"),
        ("CC", "evil", "evil"),
        ("WGETRC", "/tmp/evil", "/tmp/evil"),
        ("WHATEVER", "/tmp/evil:/opt/evil", "/tmp/evil:/opt/evil"),
        ("WHATEVER", "./evil.js", "./evil.js"),
        ("WHATEVER", "/canary+canary==", None),
        ("CCFLAGS", "ghp_canary1canary", None),
        ("SMTP_PASS", "/canary", None),
        ("PGPASSWORD", "canary", None),
        ("LDAP_BIND_PW", "canary", None),
        ("BUNDLE_GEMS__EXAMPLE__COM", "ann:canary", None),
        ("GIT_TOKEN", "canary", None),
        ("NPM_CONFIG__AUTH", "canary", None),
        ("PIN", "canary", None),
        ("GIT_TOKEN", "${cred:git-forge}", "${cred:git-forge}"),
        ("PIP_INDEX_URL", "https://[canary", None),
    ],
)
def test_values_that_steer_are_shown_and_secrets_are_not(name: str, value: str, shown: str | None):
    assert redact_env({name: value}) == {name: shown}


def test_the_page_and_rest_show_them_and_the_audit_log_does_not(db: None):
    root = User.objects.create_superuser("root", password="x")
    server = saved(
        Server(
            slug="pip",
            command=["uvx", "x"],
            env={"PIP_INDEX_URL": "https://evil.example/", "PIN": "canary"},
        )
    )
    client = Client()
    client.force_login(root)
    page = client.get(f"/admin/mcpregistry/server/{server.pk}/confirm/").content.decode()
    assert "PIP_INDEX_URL=https://evil.example/" in page
    facts = client.get("/api/v1/servers/pip/launch").json()["facts"]
    assert facts["env_values"] == {"PIN": None, "PIP_INDEX_URL": "https://evil.example/"}
    assert "canary" not in page + json.dumps(facts)
    assert "evil.example" not in " ".join(AuditEntry.objects.values_list("body", flat=True))


@pytest.mark.parametrize(
    ("limit", "value"),
    [
        ("max_message_bytes", 5_000_000),
        ("max_tools", 2_001),
        ("max_definition_bytes", 1_048_577),
        ("max_sessions", 21),
    ],
)
def test_a_limit_beyond_its_default_is_confirmed_anew(db: None, limit: str, value: int):
    server = confirmed("echo")
    assert saved(server, **{limit: getattr(server, limit) - 1}).lifecycle == "active"
    assert saved(server, **{limit: value}).lifecycle == "draft"
    assert server.launch_facts()["limits"] == {limit: value}
    assert confirm(server, "user:bob").lifecycle == "active"


@pytest.mark.parametrize(
    ("limit", "value"),
    [
        ("max_memory_mb", 0),
        ("max_memory_mb", 4_097),
        ("max_processes", 0),
        ("max_processes", 257),
        ("max_file_mb", 4_097),
    ],
)
def test_a_wider_limit_of_processes_is_confirmed_anew(db: None, limit: str, value: int):
    server = confirm(saved(Server(slug="local", command=["x"])), "user:bob")
    assert (
        saved(server, max_memory_mb=500, max_processes=20, max_file_mb=10).lifecycle == "active"
    ), "less opens nothing"
    assert saved(server, **{limit: value}).lifecycle == "draft"
    assert server.launch_facts()["limits"] == {limit: value}
    assert confirm(server, "user:bob").lifecycle == "active"


def test_asking_for_folders_is_confirmed_anew(db: None):
    server = confirmed("echo")
    assert saved(server, asks_roots=True).lifecycle == "draft"
    assert confirm(server, "user:bob").lifecycle == "active"


def test_whoever_changed_a_launch_does_not_confirm_it_alone_where_four_eyes_are_asked_for(
    db: None, settings: Any
):
    settings.FOUR_EYES = True
    server = saved(Server(slug="mine", command=["evil"]))
    with pytest.raises(Denied, match="another user must confirm"):
        confirm(server, "user:ann")
    # another's small change after it does not make it another's
    saved(server, "user:stooge", cwd="/tmp")
    for own in ("user:ann", "user:stooge"):
        with pytest.raises(Denied):
            confirm(server, own)
    server = confirm(server, "user:bob")
    assert (server.lifecycle, server.launch_by) == ("active", None)
    server = saved(server, "user:bob", description="words alone")
    assert server.lifecycle == "active"
    server = saved(server, "user:bob", env={"HOME": "/tmp/evil"})
    assert (server.lifecycle, server.launch_by) == ("draft", ["user:bob"])
    assert confirm(server, "user:ann").lifecycle == "active"


def test_new_user_name_makes_nobody_a_second_person(db: None, settings: Any):
    settings.FOUR_EYES = True
    ann = User.objects.create_user("ann")
    server = saved(Server(slug="mine", command=["evil"]), "user:ann")
    ann.username = "bob"
    ann.save()
    server.refresh_from_db()
    assert server.launch_by == ["user:bob"]
    with pytest.raises(Denied, match="another user must confirm"):
        confirm(server, "user:bob")


def test_without_the_switch_one_admin_does_both(db: None):
    assert confirm(saved(Server(slug="mine", command=["x"])), "user:ann").lifecycle == "active"


def test_instructions_have_the_bound_of_a_description():
    check_instructions("x" * ServerLimits().max_description, ServerLimits())
    with pytest.raises(ResourceLimit, match="instructions are larger than 65,536 bytes"):
        check_instructions("x" * 3_000_000, ServerLimits())
