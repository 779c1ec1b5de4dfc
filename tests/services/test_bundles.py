"""Bundles from their address to what is started: by their hash alone, unpacked in bounds, settings
asked for by a form."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as site
from django.contrib.auth.models import User
from django.urls import reverse
from django.utils import timezone

from mcpregistry.api.schemas.installs import install_out
from mcpregistry.db import read_database_now
from mcpregistry.domain.installs.states import InstallState
from mcpregistry.downstream.pool.trial_start import try_start
from mcpregistry.models import Credential, Install, RegistryEntry, RegistrySource, Server
from mcpregistry.services import installs
from mcpregistry.services.installs import install_cleanup, install_work, requests
from mcpregistry.services.registry import add_entries, withdrawn_entries
from mcpregistry.services.servers import lifecycle
from mcpregistry.services.servers.targets import build_target
from tests.fakes.bundles import bundle, manifest, sha256, with_link
from tests.fakes.receiver import Receiver, listening

pytestmark = [pytest.mark.django_db, pytest.mark.one_database, pytest.mark.node]
LOOPBACK = ["127.0.0.0/8"]


@pytest.fixture
def place(settings: Any, tmp_path: Path) -> Iterator[Receiver]:
    """Where bundles are published."""
    settings.VAR_DIR = tmp_path / "var"
    with listening(Receiver()) as receiver:
        yield receiver


def published(place: Receiver, content: bytes) -> str:
    """Behind a redirect, as releases are."""
    place.answers = []
    place.otherwise = lambda asked: (
        (200, {}, content) if asked.path == "/file" else (302, {"Location": "/file"}, b"")
    )
    return f"{place.url}/mcp/notes.mcpb"


def asked(place: Receiver, content: bytes, **more: Any) -> Install:
    """It is asked for, and a worker has looked at it."""
    more = {"version": sha256(content), "networks": LOOPBACK, "slug": "notes"} | more
    row = installs.request_install(
        ecosystem="mcpb", package=published(place, content), actor="user:ann", **more
    )
    return install_work.work_on_install(install_id=row.pk) or row


def installed(install: Install) -> Install:
    assert install.state == InstallState.WAITING, install.reason
    requests.approve_lock(install=install, lock_sha256=install.lock_sha256, actor="user:ann")
    install = install_work.work_on_install(install_id=install.pk) or install
    assert install.state == InstallState.INSTALLED, install.reason
    return install


def told_by(server: Server) -> Any:
    """What it says of itself, started in its sandbox as it is confirmed."""
    server = lifecycle.confirm_launch(
        server=server, actor="user:ann", launch_hash=server.launch_hash()
    )
    found = asyncio.run(try_start(build_target(server.pk)))
    assert found.discovery is not None, found.start
    return json.loads(found.discovery.tools[0]["description"])


def listed(address: str, content: bytes) -> RegistryEntry:
    source = RegistrySource.objects.create(
        slug="own", base_url="https://r.example", allowed_networks=LOOPBACK
    )
    package = {
        "registryType": "mcpb",
        "identifier": address,
        "fileSha256": sha256(content),
        "transport": {"type": "stdio"},
    }
    return RegistryEntry.objects.create(
        source=source,
        name="io.example/notes",
        version="1.0.0",
        status="active",
        is_latest=True,
        sha256="a" * 64,
        document=json.dumps({"packages": [package]}),
        seen_at=timezone.now(),
    )


def test_approver_of_a_bundle_sees_its_command(place: Receiver, admin_client: Any) -> None:
    install = asked(place, bundle())
    words = [
        "node",
        "${__dirname}/server/index.js",
        "--mode",
        "${user_config.mode}",
        "${user_config.folders}",
    ]
    assert install.command == []
    assert install_out(install).command == words
    for page in ("change", "approve"):
        shown = admin_client.get(
            reverse(f"admin:mcpregistry_install_{page}", args=[install.pk])
        ).content.decode()
        for word in words:
            assert f">{word}<" in shown
    assert installed(install).command[1].endswith("/server/index.js")


def test_a_bundle_is_added_from_a_registry_its_settings_entered_and_its_server_started(
    place: Receiver, admin_client: Any
) -> None:
    content = bundle()
    entry = listed(published(place, content), content)
    wish = add_entries.AddRequest(0, "notes", {}, entry.sha256)
    made = add_entries.add_from_entry(
        entry=entry, wish=wish, user=User.objects.get(), actor="user:ann"
    )
    install = installed(install_work.work_on_install(install_id=made.pk) or made)
    assert [str(change) for change in requests.list_lock_changes(install)] == [
        "notes 1.0.0 was added"
    ]
    form = reverse("admin:mcpregistry_install_configure", args=[install.pk])
    page = admin_client.get(
        reverse("admin:mcpregistry_install_change", args=[install.pk])
    ).content.decode()
    assert form in page
    shown = admin_client.get(form).content.decode()
    assert "One value per line" in shown
    assert "/Desktop" not in shown, "nobody's own folders are proposed"
    missing = admin_client.post(form, {"input-1": ""}).content.decode()
    assert ("This field is required" in missing, Server.objects.count()) == (True, 0)
    names = {each: f"input-{number}" for number, each in enumerate(("api_key", "mode", "folders"))}
    entered = {names["api_key"]: "s3cret", names["folders"]: "/one\n/two words\n"}
    admin_client.post(form, entered)
    server = Server.objects.get()
    assert (server.slug, server.sandbox, server.env["API_KEY"]) == (
        "notes",
        "enforce",
        "${cred:notes-api-key}",
    )
    assert Credential.objects.get().scope == ["server:notes"]
    server.sandbox_network = "none"
    server = lifecycle.save_server(server=server, actor="user:ann")
    said = told_by(server)
    assert (said["args"], said["key"], said["write"]) == (["/one", "/two words"], "s3cret", "no")
    assert said["lib"] == f"{install.folder}/lib"
    assert said["folder"] == ["lib", "manifest.json", "server"]

    newer = bundle(manifest("1.1.0"))
    new = installed(asked(place, newer, server=server))
    assert [str(change) for change in requests.list_lock_changes(new)] == ["notes 1.0.0 → 1.1.0"]
    assert new.not_offered == ""
    server = requests.use_install(install=new, actor="user:ann")
    said = told_by(server)
    assert (said["args"], said["key"], said["lib"]) == (
        ["/one", "/two words"],
        "s3cret",
        f"{new.folder}/lib",
    )
    assert (
        told_by(requests.roll_back(server=server, actor="user:ann"))["lib"]
        == f"{install.folder}/lib"
    )
    withdrawn_entries.handle_deleted_entry(entry, [], disable=True)
    server.refresh_from_db()
    assert server.lifecycle == "disabled", "it runs the very file that was taken back"


def without(*names: str, **said: Any) -> dict[str, Any]:
    return {key: value for key, value in (manifest() | said).items() if key not in names}


def launch(**said: Any) -> dict[str, Any]:
    """The manifest with another launch."""
    server = manifest()["server"]
    return manifest() | {"server": server | {"mcp_config": server["mcp_config"] | said}}


@pytest.mark.exhaustive(one_in=9)
@pytest.mark.attack
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"x" * 1_000, "not a valid ZIP archive"),
        (bundle()[:-30], "not a valid ZIP archive"),
        (bundle(files={"../../evil": "x"}), "a path outside of the bundle"),
        (bundle(files={"/etc/evil": "x"}), "a path outside of the bundle"),
        (bundle(files={"a\\..\\evil": "x"}), "a path outside of the bundle"),
        (with_link("/etc/passwd"), "is not a regular file"),
        (bundle(files={"a": "x", "a/b": "x"}), "already used by a file"),
        (bundle(files={f"{'a/' * 120}b": "x"}), "more than 100 folders deep"),
        (bundle(files={"bomb": b"\0" * (30 << 20)}), "100 times the packed size"),
        (bundle({}), "does not follow the bundle format"),
        (bundle(without("name")), "does not follow the bundle format"),
        (bundle(launch(command="sh", args=["-c", "x"])), "starts the program 'sh'"),
        (bundle(launch(args=["-e", "x"])), "is not in the bundle"),
        (bundle(launch(args=["${__dirname}/none.js"])), "does not contain the program"),
        (bundle(launch(args=["${__dirname}/../../../x.js"])), "is outside of the bundle's folder"),
        (
            bundle(
                launch(
                    command="${__dirname}/../../../keys.json", args=["${__dirname}/server/index.js"]
                )
            ),
            "is outside of the bundle's folder",
        ),
        (
            bundle(launch(command="${__dirname}/../../bin/sh", args=["-c", "x"])),
            "is outside of the bundle's folder",
        ),
        (bundle(launch(env={"X": "${__dirname}/.."})), "is outside of the bundle's folder"),
        (bundle(launch(env={"X": "${cred:other}"})), "this site does not support"),
        (bundle(launch(env={"X": "${HOME}"})), "this site does not support"),
        (bundle(launch(env={"X": "${user_config.none}"})), "does not define it"),
        (
            bundle(launch(args=["${__dirname}/server/index.js", "${user_config.api_key}"])),
            "secret on its command line",
        ),
        (bundle(manifest(compatibility={"platforms": ["win32"]})), "does not support Linux"),
        (bundle(manifest(server={**manifest()["server"], "type": "uv"})), "at each start"),
    ],
)
def test_a_bundle_that_is_none_or_means_harm_fails_with_its_reason_and_leaves_nothing(
    place: Receiver, content: bytes, reason: str
) -> None:
    install = asked(place, content)
    if install.state == InstallState.WAITING:  # what its files are shows when it is unpacked
        requests.approve_lock(install=install, lock_sha256=install.lock_sha256, actor="user:ann")
        install = install_work.work_on_install(install_id=install.pk) or install
    assert (install.state, reason in install.reason) == (InstallState.FAILED, True), install.reason
    install_cleanup.sweep_installs(read_database_now())
    root = site.VAR_DIR / "installs"
    assert not root.exists() or not any(root.iterdir())
    assert not Server.objects.exists()


@pytest.mark.attack
def test_another_file_or_another_place_than_was_named_is_refused(
    place: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bundle()
    assert "SHA-256 hash is different" in asked(place, content, version="0" * 64).reason
    assert (
        "Allowed networks" in asked(place, content, networks=[]).reason
        or "http address" in Install.objects.first().reason
    )
    row = asked(place, content)
    place.otherwise = (200, {}, bundle(files={"more": "x"}))
    requests.approve_lock(install=row, lock_sha256=row.lock_sha256, actor="user:ann")
    assert (
        "SHA-256 hash is different"
        in (install_work.work_on_install(install_id=row.pk) or row).reason
    )
    for answer, reason in [
        ((302, {"Location": "http://169.254.169.254/latest"}, b""), "cannot be downloaded"),
        ((302, {"Location": "file:///etc/passwd"}, b""), "cannot be downloaded"),
        ((302, {"Location": "/again"}, b""), "redirects more than 5 times"),
        ((404, {}, b""), "answered HTTP 404"),
    ]:
        address = published(place, content)
        place.otherwise = answer
        row = installs.request_install(
            ecosystem="mcpb",
            package=address,
            version=sha256(content),
            networks=LOOPBACK,
            actor="user:ann",
        )
        assert reason in (install_work.work_on_install(install_id=row.pk) or row).reason
    monkeypatch.setattr("mcpregistry.downstream.installers.bundles.MOST_DOWNLOADED", 100)
    assert "needs too much" in asked(place, content).reason
