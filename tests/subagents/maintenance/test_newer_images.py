"""Newer container images: found in what a registry lists, proposed once as a change of the server,
applied by a person."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.conf import settings

from mcpregistry.domain.errors import Conflict
from mcpregistry.models import RegistryEntry, RegistrySource, Server
from mcpregistry.models.server import Lifecycle
from mcpregistry.services.registry import newer_images as found_images
from subagents import tasks
from subagents.domain.maintenance import Kind, Priority
from subagents.maintenance import newer_images, plans, proposals
from subagents.models import MaintenanceRequest, Proposal
from tests.fakes import images
from tests.services.test_images import registry
from tests.services.test_registry_adding import DIGEST, IMAGE, add, docker, listed
from tests.subagents.maintenance.test_manager import ann

__all__ = ["docker", "registry"]
pytestmark = pytest.mark.django_db


def package(identifier: str, *needs: str) -> dict[str, Any]:
    env = [{"name": name, "isRequired": True} for name in needs]
    return {**IMAGE, "identifier": identifier, "environmentVariables": env, "runtimeArguments": []}


def next_version(before: RegistryEntry, version: str, *packages: dict[str, Any]) -> RegistryEntry:
    """What a reading of the registry leaves when it lists another version."""
    RegistryEntry.objects.filter(pk=before.pk).update(is_latest=False)
    return RegistryEntry.objects.create(
        source=before.source,
        name=before.name,
        version=version,
        status="active",
        is_latest=True,
        kinds="oci",
        document=json.dumps({"packages": packages}),
        sha256="b" * 64,
        seen_at=before.seen_at,
    )


@pytest.fixture
def server(registry: images.Images, docker: str) -> Server:
    """It runs version 1.2.3, of another image than the tag of today."""
    entry = listed(packages=[package(f"{registry.host}/acme/notes@{DIGEST}")])
    made = add(entry)
    RegistrySource.objects.update(allowed_networks=["127.0.0.0/8"], propose_versions=True)
    return Server.objects.get(pk=made.pk)


def worked(request: MaintenanceRequest) -> Proposal:
    for step in plans.PLANS[Kind.MODIFY]:
        step.keep(request, None)
    return Proposal.objects.get(request=request)


def test_a_newer_image_is_proposed_once_and_applied_as_a_draft_that_waits_for_its_confirmation(
    server: Server,
    registry: images.Images,
) -> None:
    before = RegistryEntry.objects.get()
    assert newer_images.ask_new() == [], "there is nothing newer"
    entry = next_version(before, "1.3.0", package(f"{registry.host}/acme/notes:1.0.0", "REGION"))
    tasks.propose_images()
    assert newer_images.ask_new() == [], "once"
    request = MaintenanceRequest.objects.get()
    assert (request.kind, request.server_slug, request.requested_by, request.priority) == (
        Kind.MODIFY,
        "clock",
        "registry:official",
        Priority.LOW,
    )
    proposal = worked(request)
    old = server.command
    new = proposal.fields["command"]
    assert [a for a, b in zip(old, new, strict=True) if a != b] == [
        f"{registry.host}/acme/notes@{DIGEST}"
    ]
    assert f"{registry.host}/acme/notes@{registry.digest}" in new, (
        "what the tag leads to, and not the tag"
    )
    assert "version 1.3.0" in proposal.reason
    assert "requires more values: environment REGION" in proposal.reason
    proposals.apply(proposal_id=proposal.pk, user=ann(), actor="user:ann")
    server.refresh_from_db()
    assert (server.command, server.lifecycle) == (new, Lifecycle.DRAFT)
    assert (before.servers.count(), entry.servers.count()) == (0, 1), (
        "should 1.2.3 be taken back, this one is not meant"
    )
    assert settings.TICKS["subagents.tasks.propose_images"] == 600


@pytest.mark.exhaustive(one_in=4)
@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"status": "deleted"}, "withdrawn or deprecated this version"),
        ({"document": json.dumps({"packages": []})}, "another image"),
        ({"document": "another digest"}, "another image"),
        (None, "withdrawn or deprecated this version"),
    ],
)
def test_a_version_that_its_registry_has_taken_back_since_is_not_applied(
    server: Server, registry: images.Images, changed: dict[str, str] | None, why: str
) -> None:
    before = RegistryEntry.objects.get()
    found = f"{registry.host}/acme/notes"
    entry = next_version(before, "1.3.0", package(f"{found}:1.0.0"))
    assert newer_images.ask_new() == [server.slug]
    proposal = worked(MaintenanceRequest.objects.get())
    if changed is None:
        entry.delete()
    else:
        other = json.dumps({"packages": [package(f"{found}@sha256:{'0' * 64}")]})
        changed = {
            name: other if value == "another digest" else value for name, value in changed.items()
        }
        RegistryEntry.objects.filter(pk=entry.pk).update(**changed)
    with pytest.raises(Conflict, match=why):
        proposals.apply(proposal_id=proposal.pk, user=ann(), actor="user:ann")
    command = server.command
    server.refresh_from_db()
    assert (server.command, before.servers.count()) == (command, 1)


def test_nothing_is_proposed_where_nobody_wants_it_or_it_is_no_newer_image_of_the_same_name(
    server: Server,
    registry: images.Images,
) -> None:
    found = f"{registry.host}/acme/notes"
    for version, identifier in (
        ("1.2.0", f"{found}:1.0.0"),  # an older one, published later
        ("1.3.0-rc.1", f"{found}:1.0.0"),
        ("1.3.1", f"{registry.host}/evil/notes@{DIGEST}"),
        ("1.3.2", f"{found}@{DIGEST}"),  # what it starts already
        ("1.3.3", f"{found}:9.9.9"),  # its registry has none
    ):
        next_version(RegistryEntry.objects.get(is_latest=True), version, package(identifier))
        assert newer_images.ask_new() == [], version
    last = RegistryEntry.objects.get(is_latest=True)
    next_version(last, "1.4.0", package(f"{found}:1.0.0"))
    RegistrySource.objects.update(propose_versions=False)
    assert newer_images.ask_new() == [], "off at first"
    RegistrySource.objects.update(propose_versions=True)
    Server.objects.filter(pk=server.pk).update(command=["my-own", "notes"])
    assert newer_images.ask_new() == [], "people have made another server of it"
    assert not MaintenanceRequest.objects.exists()
    assert RegistryEntry.objects.get(servers=server).version == "1.3.2", (
        "the newest of which it starts the image"
    )


def test_the_registry_of_an_image_that_is_the_same_is_asked_once(
    server: Server, registry: images.Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(
        found_images,
        "fetch_current_digest",
        lambda entry, way: asked.append(way.identifier) or DIGEST,
    )
    entry = next_version(
        RegistryEntry.objects.get(), "1.3.0", package(f"{registry.host}/acme/notes:1.0.0")
    )
    assert (newer_images.ask_new(), newer_images.ask_new()) == ([], [])
    assert (len(asked), entry.servers.get()) == (1, server)
