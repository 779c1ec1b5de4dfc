"""From an entry to a server: exactly what was seen, secrets as credentials of that server alone,
nothing run."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.utils import timezone

from mcpregistry.domain.errors import AlreadyExists, ConfigInvalid, Conflict, Denied
from mcpregistry.models import (
    AuditEntry,
    Configuration,
    Credential,
    Install,
    RegistryEntry,
    RegistrySource,
    Server,
)
from mcpregistry.models.server import Lifecycle
from mcpregistry.services.access.roles import install_roles
from mcpregistry.services.installs import requests
from mcpregistry.services.registry import add_entries
from mcpregistry.services.registry.add_entries import AddRequest

pytestmark = pytest.mark.django_db
REMOTE = {
    "type": "streamable-http",
    "url": "https://x.example/mcp",
    "headers": [
        {
            "name": "Authorization",
            "value": "Bearer {token}",
            "variables": {"token": {"isSecret": True, "isRequired": True}},
        },
    ],
}
PACKAGE = {
    "registryType": "pypi",
    "identifier": "mcp-server-time",
    "version": "1.2.3",
    "transport": {"type": "stdio"},
    "packageArguments": [{"type": "named", "name": "--zone", "default": "UTC"}],
    "environmentVariables": [
        {"name": "API_KEY", "isSecret": True},
        {"name": "MODE", "isRequired": True},
    ],
}


def listed(**server: Any) -> RegistryEntry:
    source = RegistrySource.objects.get_or_create(
        slug="official", base_url="https://registry.example"
    )[0]
    return RegistryEntry.objects.create(
        source=source,
        name="io.example/clock.of_all",
        version="1.2.3",
        status="active",
        is_latest=True,
        document=json.dumps(server),
        sha256="a" * 64,
        seen_at=timezone.now(),
    )


def person(role: str) -> User:
    install_roles()
    user = User.objects.create(username=role)
    user.groups.add(Group.objects.get(name=role))
    return User.objects.get(pk=user.pk)


def add(
    entry: RegistryEntry,
    role: str = "admin",
    *,
    slug: str = "clock",
    sha256: str = "a" * 64,
    **values: str,
) -> Any:
    wish = AddRequest(0, slug, values, sha256)
    return add_entries.add_from_entry(
        entry=entry, wish=wish, user=person(role), actor=f"user:{role}"
    )


TOKEN = {"header Authorization: token": "s3cret"}


def test_an_address_becomes_a_draft_and_its_secret_a_credential_of_it_alone() -> None:
    server = add(listed(remotes=[REMOTE]), **TOKEN)
    server.refresh_from_db()
    assert (server.slug, server.url, server.lifecycle) == ("clock", REMOTE["url"], Lifecycle.DRAFT)
    assert server.headers == {"Authorization": "Bearer ${cred:clock-token}"}
    kept = Credential.objects.get()
    assert (kept.name, kept.value, kept.scope) == ("clock-token", "s3cret", ["server:clock"])
    told = AuditEntry.objects.get(kind="registry.entry_added")
    assert "io.example/clock.of_all" in told.body
    assert not [each for each in AuditEntry.objects.all() if "s3cret" in each.body]


def test_a_package_is_asked_for_with_what_was_entered_and_a_server_made_of_it_has_that() -> None:
    made = add(
        listed(packages=[PACKAGE]), **{"environment API_KEY": "s3cret", "environment MODE": "m"}
    )
    made.refresh_from_db()
    assert (made.package, made.wanted, made.slug, made.state) == (
        "mcp-server-time",
        "1.2.3",
        "clock",
        "requested",
    )
    assert (made.arguments, made.env) == (
        ["--zone", "UTC"],
        {"API_KEY": "${cred:clock-API-KEY}", "MODE": "m"},
    )
    Install.objects.update(
        state="installed", lock_sha256="b" * 64, command=["/x/python", "/x/clock"]
    )
    server = requests.use_install(install=made, actor="user:ann")
    assert (server.slug, server.command) == ("clock", ["/x/python", "/x/clock", "--zone", "UTC"])
    assert (server.env, server.lifecycle) == (made.env, Lifecycle.DRAFT)


def test_secrets_of_like_names_are_kept_apart() -> None:
    Credential.objects.create(name="clock-MICROSOFT-GRAPH-CLIENT-SECRET", value="of before")
    names = [
        "MICROSOFT_GRAPH_CLIENT_SECRET",
        "MICROSOFT_GRAPH_CLIENT_SECRET_OF_THE_SECOND",
        "MICROSOFT-GRAPH-CLIENT-SECRET-OF-THE-SECOND",
    ]
    asked = [{"name": name, "isSecret": True} for name in names]
    server = add(
        listed(remotes=[REMOTE | {"headers": asked}]), **{f"header {name}": name for name in names}
    )
    server.refresh_from_db()
    kept = {
        name: Credential.objects.get(name=value[7:-1]) for name, value in server.headers.items()
    }
    assert {name: row.value for name, row in kept.items()} == {name: name for name in names}
    assert all(row.scope == ["server:clock"] for row in kept.values())
    assert server in RegistryEntry.objects.get().servers.all()


def test_nothing_is_left_where_it_is_refused() -> None:
    Server.objects.create(slug="there", transport="stdio", command=["x"])
    for refused, how in [
        (Conflict, {"sha256": "c" * 64}),
        (AlreadyExists, {"slug": "there"}),
        (ConfigInvalid, {"slug": "no name"}),
        (ConfigInvalid, {"header X": "y"}),
    ]:
        with pytest.raises(refused):
            add(RegistryEntry.objects.first() or listed(remotes=[REMOTE]), **TOKEN | how)
        User.objects.all().delete()
    assert (Credential.objects.count(), Server.objects.count(), Install.objects.count()) == (
        0,
        1,
        0,
    )


def test_what_was_taken_back_cannot_be_added() -> None:
    entry = listed(remotes=[REMOTE])
    RegistryEntry.objects.update(status="deleted")
    with pytest.raises(Conflict, match="withdrawn this entry"):
        add(entry, **TOKEN)
    User.objects.all().delete()
    RegistrySource.objects.all().delete()
    with pytest.raises(Conflict, match="withdrawn this entry"):
        add(entry, **TOKEN)


def test_an_operator_names_a_credential_and_keeps_no_secret() -> None:
    entry = listed(remotes=[REMOTE])
    with pytest.raises(Denied, match="is a secret"):
        add(entry, "operator", **TOKEN)
    User.objects.all().delete()
    server = add(entry, "operator", **{"header Authorization: token": "${cred:team}"})
    assert server.headers == {"Authorization": "Bearer ${cred:team}"}


@pytest.mark.attack
def test_who_may_not_add_servers_adds_none() -> None:
    with pytest.raises(Denied, match="add_server"):
        add(listed(remotes=[REMOTE]), "viewer", **TOKEN)
    assert not Server.objects.exists()


@pytest.mark.exhaustive(one_in=4)
@pytest.mark.parametrize(
    ("command", "kept"),
    [
        (["uvx", "mcp_server.time", "--zone", "CET"], ["--zone", "CET"]),
        (["/usr/bin/uvx", "-q", "mcp-server-time==1.0", "-v"], ["-v"]),
        (["uvx", "--from", "mcp-server-time==1.0", "time", "-v"], ["-v"]),
        (["uvx", "--from=mcp-server-time", "--python", "3.12", "time"], []),
        (["uvx", "--with", "mcp-server-time", "other", "-v"], []),
        (["uvx", "other", "-v"], []),
        (["npx", "mcp-server-time", "-v"], []),
        (["python", "-m", "mcp_server_time", "-v"], []),
    ],
)
def test_a_server_keeps_its_arguments_when_its_runner_gives_way_to_a_package(
    command: list[str], kept: list[str]
) -> None:
    server = Server.objects.create(slug="time", transport="stdio", command=command)
    install = requests.request_install(
        ecosystem="pypi", package="mcp-server-time", server=server, actor="user:ann"
    )
    Install.objects.update(
        state="installed", lock_sha256="b" * 64, command=["/x/python", "/x/time"]
    )
    assert requests.use_install(install=install, actor="user:ann").command == [
        "/x/python",
        "/x/time",
        *kept,
    ]


def test_a_secret_that_is_not_needed_may_stay_empty() -> None:
    made = add(listed(packages=[PACKAGE]), "operator", **{"environment MODE": "m"})
    assert (made.env, Credential.objects.count()) == ({"MODE": "m"}, 0)


IMAGE = {
    "registryType": "oci",
    "identifier": "docker.io/acme/notes:1.0.0",
    "transport": {"type": "stdio"},
    "runtimeArguments": [
        {
            "type": "named",
            "name": "-e",
            "value": "DB=pg://{db}",
            "variables": {"db": {"isRequired": True}},
        },
        {"type": "named", "name": "-v", "value": "/:/host"},
    ],
    "environmentVariables": [{"name": "API_KEY", "isSecret": True, "isRequired": True}],
    "packageArguments": [{"type": "positional", "value": "--stdio"}],
}
DIGEST = "sha256:" + "d" * 64


@pytest.fixture
def docker(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """A container program on PATH."""
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return str(program)


def test_an_image_becomes_a_draft_that_starts_it_by_its_digest_with_nothing_of_this_machine(
    docker: str,
) -> None:
    given = {"image digest": DIGEST, "environment DB: db": "h", "environment API_KEY": "s3cret"}
    server = add(listed(packages=[IMAGE]), **given)
    server.refresh_from_db()
    assert (server.transport, server.lifecycle) == ("stdio", Lifecycle.DRAFT)
    assert server.env == {"DB": "pg://h", "API_KEY": "${cred:clock-API-KEY}"}
    assert (server.command[0], server.command[-2:]) == (
        docker,
        [f"docker.io/acme/notes@{DIGEST}", "--stdio"],
    )
    words = " ".join(server.command)
    for word in (
        "--rm --interactive",
        "--read-only",
        "--cap-drop ALL",
        "--network none",
        "--env API_KEY --env DB docker.io",
    ):
        assert word in words
    assert not {"-v", "/:/host", "s3cret", "h"} & {*server.command}
    assert server in RegistryEntry.objects.get().servers.all()


@pytest.mark.exhaustive(one_in=4)
@pytest.mark.attack
@pytest.mark.parametrize(
    ("changed", "given", "why"),
    [
        ({}, {"image digest": "latest"}, "digest is not valid"),
        ({}, {"image network": "host"}, "not one of its choices"),
        ({"identifier": "--privileged"}, {}, "a full image name"),
        ({"identifier": "docker.io/a/b --privileged"}, {}, "a full image name"),
        (
            {"runtimeArguments": [{"name": "--mount", "value": "type=bind", "isRequired": True}]},
            {},
            "needs the container option --mount",
        ),
        (
            {"environmentVariables": [{"name": "DOCKER_HOST", "value": "tcp://evil.example"}]},
            {},
            "would control",
        ),
        ({"runtimeArguments": [{"name": "-e", "value": "PATH=/evil"}]}, {}, "would control"),
        (
            {"environmentVariables": [{"name": "A=B --privileged", "value": "x"}]},
            {},
            "not a valid name for an environment",
        ),
    ],
)
def test_an_image_gets_nothing_that_could_leave_its_container(
    docker: str, changed: dict[str, Any], given: dict[str, str], why: str
) -> None:
    entered = {"image digest": DIGEST, "environment DB: db": "h", "environment API_KEY": "s3cret"}
    way = add_entries.list_local_options(entry := listed(packages=[IMAGE | changed]))[0]
    asked = {each.key for each in way.inputs}
    with pytest.raises(ConfigInvalid, match=why):
        add(
            entry,
            **{
                key: value
                for key, value in (entered | given).items()
                if key in asked or key in given
            },
        )
    assert not Server.objects.exists()
    assert not Credential.objects.exists()


def test_without_a_container_program_the_entry_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    entry = listed(packages=[IMAGE])
    assert "neither docker nor podman" in add_entries.list_local_options(entry)[0].problem
    with pytest.raises(ConfigInvalid, match="Install one of them"):
        add(entry)


@pytest.mark.attack
def test_where_only_listed_packages_are_wanted_no_other_is_asked_for() -> None:
    entry = listed(packages=[PACKAGE])
    RegistryEntry.objects.update(kinds="pypi")
    Configuration.objects.update_or_create(id=1, defaults={"only_listed": True})
    for package, version in [
        ("mcp-server-evil", "1.2.3"),
        ("mcp-server-time", "1.2.4"),
        ("mcp-server-time", ""),
    ]:
        with pytest.raises(Denied, match="no registry lists"):
            requests.request_install(
                ecosystem="pypi", package=package, version=version, actor="user:ann"
            )
    assert requests.request_install(
        ecosystem="pypi", package="MCP_server.time", version="1.2.3", actor="user:ann"
    ).pk
    assert add(entry, **{"environment MODE": "m"}).pk
    RegistryEntry.objects.update(status="deleted")
    with pytest.raises(Denied):
        requests.request_install(
            ecosystem="pypi", package="mcp-server-time", version="1.2.3", actor="user:ann"
        )
    assert Install.objects.count() == 2
