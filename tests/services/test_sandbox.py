"""A server's sandbox is part of the launch that a person confirms: wider needs another
confirmation, narrower does not."""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as site_settings
from django.test import override_settings

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.servers.sandbox import (
    Machine,
    SandboxPolicy,
    check_paths,
    describe_protection,
)
from mcpregistry.domain.servers.target import Ports
from mcpregistry.downstream.transports.sandbox import SYSTEM, build_policy, split_around_hidden
from mcpregistry.models import AuditEntry, Server
from mcpregistry.services.servers import lifecycle
from mcpregistry.services.servers.sandbox import (
    build_sandbox,
    find_server_protection,
    list_hidden_from,
)
from mcpregistry.services.servers.targets import build_target

pytestmark = pytest.mark.django_db
ON = {
    "sandbox": "enforce",
    "sandbox_network": "none",
    "sandbox_read": ["/srv/docs"],
    "sandbox_write": ["/srv/out"],
}


def active(**facts: Any) -> Server:
    row = Server(**{"slug": "s", "command": ["x"]} | facts)
    server = lifecycle.save_server(server=row, actor="user:maker")
    return lifecycle.confirm_launch(
        server=server, actor="user:other", launch_hash=server.launch_hash()
    )


def saved(server: Server, **changes: Any) -> Server:
    for name, value in changes.items():
        setattr(server, name, value)
    return lifecycle.save_server(server=server, actor="user:maker")


@pytest.mark.attack
@pytest.mark.parametrize(
    "wider",
    [
        {"sandbox": "off"},
        {"sandbox_network": "all"},
        {"sandbox_read": ["/srv"]},
        {"sandbox_read": ["/srv/docs", "/srv/docs2"]},
        {"sandbox_write": ["/srv/out", "/srv/docs/a"]},
        {"sandbox_write": ["/srv/docs"], "sandbox_read": []},
        {"sandbox_read": [], "command": ["y"]},
    ],
)
def test_a_wider_sandbox_needs_a_new_confirmation(wider: dict[str, Any]) -> None:
    server = saved(active(**ON), **wider)
    assert (server.lifecycle, server.launch_confirmed, server.launch_by) == (
        "draft",
        False,
        ["user:maker"],
    )


@pytest.mark.parametrize(
    "narrower",
    [
        {"sandbox_read": []},
        {"sandbox_read": ["/srv/docs/a"]},
        {"sandbox_write": []},
        {"sandbox_read": ["/srv/out/a"]},
    ],
)
def test_a_narrower_sandbox_keeps_the_launch_confirmed_and_starts_it_anew(
    narrower: dict[str, Any],
) -> None:
    server = saved(active(**ON), **narrower)
    assert (server.lifecycle, server.launch_confirmed, server.launch_by, server.revision) == (
        "active",
        True,
        None,
        2,
    )


REACH = (
    {"sandbox_network": "none"},
    {"sandbox_network": "ports"},
    {"sandbox_network": "ports", "sandbox_connect": [443]},
)
REACH += (
    REACH[2] | {"sandbox_connect": [443, 53]},
    REACH[2] | {"sandbox_connect": [443, 53], "sandbox_listen": [80]},
    {"sandbox_network": "all"},
)


@pytest.mark.exhaustive
@pytest.mark.attack
def test_more_ports_and_less_than_strict_are_wider_and_the_contrary_is_not() -> None:
    empty = {"sandbox_connect": [], "sandbox_listen": []}
    for number, (narrow, wide) in enumerate(itertools.pairwise(REACH)):
        assert saved(active(slug=f"n{number}", **ON | wide), **empty | narrow).lifecycle == "active"
        assert saved(active(slug=f"w{number}", **ON | narrow), **empty | wide).lifecycle == "draft"
    assert saved(active(slug="up", **ON), sandbox="strict").lifecycle == "active"
    assert (
        saved(active(slug="down", **ON | {"sandbox": "strict"}), sandbox="enforce").lifecycle
        == "draft"
    )
    other = saved(active(slug="other", **ON | REACH[2]), sandbox_connect=[80])
    assert (other.lifecycle, other.launch_facts()["sandbox"]["connect"]) == ("draft", [80])


@pytest.mark.parametrize("ports", [[0], [65536], [True], ["443"], [443, 443], "443", [1] * 101])
def test_a_port_is_a_number_of_one_each_once(ports: Any) -> None:
    with pytest.raises(ConfigInvalid):
        active(slug="p", **ON | {"sandbox_connect": ports})


def test_a_target_has_its_ports_its_limits_and_what_stays_hidden() -> None:
    server = active(**ON | REACH[4] | {"sandbox": "strict"}, max_memory_mb=500)
    target = build_target(server.pk)
    assert target.sandbox is not None
    assert (target.sandbox.strict, target.sandbox.ports) == (True, Ports((443, 53), (80,)))
    assert str(site_settings.VAR_DIR) in target.sandbox.hidden
    assert (target.bounds.memory_mb, target.bounds.processes) == (500, 256)
    revision = server.revision
    assert saved(server, max_memory_mb=600).lifecycle == "active", "a limit opens nothing"
    assert server.revision == revision + 1, "and its processes are started anew with it"


@pytest.mark.attack
def test_what_every_server_may_read_holds_no_data_of_this_site(tmp_path: Path) -> None:
    """Of a site that lies below /usr: what is beside its data can be read, its data not."""
    for folder in ("usr/lib", "usr/local/bin", "usr/local/site/var", "usr/local/site/docs"):
        (tmp_path / folder).mkdir(parents=True)
    usr = f"{tmp_path}/usr"
    var = f"{tmp_path}/usr/local/site/var"
    open_ones = [*split_around_hidden(usr, (var,))]
    assert sorted(open_ones) == [f"{usr}/lib", f"{usr}/local/bin", f"{usr}/local/site/docs"]
    assert [*split_around_hidden(usr, (str(tmp_path / "var"),))] == [usr]


@pytest.mark.attack
@pytest.mark.parametrize(
    "key",
    ["/etc/ssl/private/site.key", "/etc/pki/tls/private/site.key", "/etc/pki/CA/private/ca.key"],
)
def test_private_keys_of_the_machine_are_no_certificates(key: str) -> None:
    assert not [place for place in SYSTEM if Path(key).is_relative_to(place)]


def test_switching_it_on_is_narrower_and_a_draft_stays_one() -> None:
    assert saved(active(), **ON).lifecycle == "active"
    draft = lifecycle.save_server(server=Server(slug="d", command=["x"]), actor="user:maker")
    assert saved(draft, **ON).lifecycle == "draft"
    assert not draft.launch_confirmed


@pytest.mark.attack
def test_a_path_within_an_old_one_that_is_a_link_out_of_it_is_wider(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    other = tmp_path / "other"
    for folder in (kept / "inside", other):
        folder.mkdir(parents=True)
    (kept / "out").symlink_to(other)
    (kept / "in").symlink_to(kept / "inside")
    before = ON | {"sandbox_read": [], "sandbox_write": [str(kept)]}
    for narrower in ("inside", "in"):
        changes = {"sandbox_read": [f"{kept}/{narrower}"], "sandbox_write": []}
        assert saved(active(slug=narrower, **before), **changes).lifecycle == "active"
    wider = {"sandbox_read": [f"{kept}/out"], "sandbox_write": []}
    assert saved(active(slug="wider", **before), **wider).lifecycle == "draft"


@pytest.mark.attack
def test_what_was_changed_with_a_narrower_sandbox_is_not_confirmed_with_it() -> None:
    server = active(**ON)
    Server.objects.filter(pk=server.pk).update(command=["evil"])  # behind our back
    server.refresh_from_db()
    assert saved(server, sandbox_read=[]).lifecycle == "draft"


def test_who_confirms_and_who_reads_the_log_sees_the_sandbox() -> None:
    server = active(**ON)
    told = {"network": "none", "read": ["/srv/docs"], "write": ["/srv/out"]}
    assert server.launch_facts()["sandbox"] == told
    assert json.loads(AuditEntry.objects.get(kind="server.confirmed").body)["sandbox"] == told
    assert "sandbox" not in active(slug="t").launch_facts(), "a launch of before stays confirmed"


def test_a_target_has_the_sandbox_that_is_on_or_tried() -> None:
    on = active(**ON)
    off = active(slug="t")
    target = build_target(on.pk).sandbox
    assert target is not None
    assert target.home == str(site_settings.VAR_DIR / "servers" / str(on.uid))
    assert (target.read, target.write, target.network) == (("/srv/docs",), ("/srv/out",), False)
    assert build_target(off.pk).sandbox is None
    assert build_target(off.pk, in_sandbox=True).sandbox is not None


def test_paths_of_the_command_that_the_sandbox_hides_are_listed(tmp_path: Path) -> None:
    script = tmp_path / "build/index.js"
    script.parent.mkdir()
    script.touch()
    command = ["/usr/bin/env", "build/index.js", str(script), "/usr/bin", "no/such", "--port=1/2"]
    server = active(**ON | {"command": command, "cwd": str(tmp_path)})
    assert list_hidden_from(server) == [str(script), str(script)]
    server.sandbox_read = [str(tmp_path)]
    assert list_hidden_from(server) == []
    server.sandbox = "off"
    assert list_hidden_from(server) == []


@pytest.mark.attack
def test_no_path_opens_the_sites_own_data_also_not_behind_a_link(tmp_path: Path) -> None:
    own = site_settings.VAR_DIR
    for path in (str(own), f"{own}/keys.json", str(own.parent), "/"):
        with pytest.raises(ConfigInvalid, match="access data"):
            active(slug="a", **ON | {"sandbox_read": [path]})
    link = tmp_path / "link"
    server = active(**ON | {"sandbox_read": [str(link)]})
    link.symlink_to(own)
    with pytest.raises(ConfigInvalid, match="access data"):
        build_target(server.pk)


@pytest.mark.attack
def test_what_is_started_without_a_sandbox_or_leads_past_it_is_never_writable(
    tmp_path: Path,
) -> None:
    code = str(site_settings.BASE_DIR / "mcpregistry" / "services")
    for path in (code, sys.prefix, os.__file__, "/proc", "/proc/sys/kernel", "/sys/fs", "/dev"):
        with pytest.raises(ConfigInvalid, match="access data"):
            active(slug="a", **ON | {"sandbox_write": [path]})
    assert (
        active(**ON | {"sandbox_read": [code], "sandbox_write": ["/dev/dri"]}).lifecycle == "active"
    )


@pytest.mark.attack
def test_a_target_names_places_without_links_and_none_behind_a_link_of_its_own(
    tmp_path: Path,
) -> None:
    kept = tmp_path / "kept"
    other = tmp_path / "other"
    for folder in (kept, other / "docs"):
        folder.mkdir(parents=True)
    (tmp_path / "by_people").symlink_to(other)
    (kept / "by_itself").symlink_to(other)
    written = [str(tmp_path / "by_people"), str(kept / "by_itself" / "docs")]
    server = active(
        **ON | {"sandbox_read": written, "sandbox_write": [str(kept), str(kept / "by_itself")]}
    )
    target = build_target(server.pk).sandbox
    assert target is not None
    assert (target.read, target.write) == ((str(other),), (str(kept),))


@pytest.mark.attack
def test_a_link_that_another_confined_server_may_have_made_is_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    other = tmp_path / "other"
    for folder in (kept / "plain", other):
        folder.mkdir(parents=True)
    (kept / "link").symlink_to(other)
    (tmp_path / "to_kept").symlink_to(kept)
    active(slug="writer", **ON | {"sandbox_write": [str(tmp_path / "to_kept")]})
    reader = active(
        slug="reader",
        **ON | {"sandbox_read": [f"{kept}/plain", f"{kept}/link"], "sandbox_write": []},
    )
    target = build_target(reader.pk).sandbox
    assert target is not None
    assert target.read == (f"{kept}/plain",)


@pytest.mark.attack
def test_a_program_that_another_confined_server_may_replace_is_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    secret = tmp_path / "secret"
    kept.mkdir()
    secret.write_text("secret")
    secret.chmod(0o700)
    (kept / "serve").symlink_to(secret)
    active(slug="writer", **ON | {"sandbox_write": [str(kept)]})
    reader = active(
        slug="reader",
        **ON | {"command": [f"{kept}/serve"], "sandbox_read": [], "sandbox_write": []},
    )
    target = build_target(reader.pk)
    assert target.sandbox is not None
    assert not [
        line for line in build_policy(target, target.sandbox, "").split("\n") if str(secret) in line
    ]


@pytest.mark.parametrize("path", ["docs", "", "/srv/../etc", "/srv/", "//srv", "/a\nn", "/a\0", 7])
def test_a_path_is_absolute_and_plainly_written(path: Any) -> None:
    with pytest.raises(ConfigInvalid):
        check_paths([path])


def test_a_remote_server_has_no_sandbox() -> None:
    server = active(command=[], transport="http", url="https://h/mcp")
    assert (build_sandbox(server, forced=True), find_server_protection(server)) == (None, None)


@pytest.mark.parametrize(
    ("policy", "abi", "filtered", "level", "word"),
    [
        (SandboxPolicy(enforced=True, strict=True), 7, True, "none", "bubblewrap is not installed"),
        (SandboxPolicy(enforced=True, ports=Ports((443,))), 7, True, "full", ""),
        (
            SandboxPolicy(enforced=True, ports=Ports((443,))),
            3,
            True,
            "partial",
            "every TCP port is open",
        ),
        (SandboxPolicy(enforced=True, ports=Ports((443,))), 7, False, "partial", "bypassed"),
        (SandboxPolicy(), 7, True, "none", "disabled"),
        (SandboxPolicy(enforced=True), 0, True, "none", "not started"),
        (SandboxPolicy(enforced=True), 7, True, "full", ""),
        (SandboxPolicy(enforced=True), 6, True, "full", ""),
        (SandboxPolicy(enforced=True), 5, True, "partial", "signals"),
        (SandboxPolicy(enforced=True), 2, True, "partial", "truncated"),
        (SandboxPolicy(enforced=True), 7, False, "partial", "UDP"),
        (SandboxPolicy(enforced=True, network=False), 3, False, "partial", "TCP is open"),
    ],
)
def test_what_a_kernel_cannot_do_is_said(
    policy: SandboxPolicy, abi: int, filtered: bool, level: str, word: str
) -> None:
    said = describe_protection(policy, Machine(abi, filtered, "bubblewrap is not installed"))
    assert said.level == level
    assert word in str(said)
    assert any("open" in each for each in said.uncovered) is (level != "none" and policy.network)


@pytest.mark.attack
@pytest.mark.parametrize("policy", ["off", "enforce", "strict"])
@pytest.mark.parametrize(
    "where", ["keys.json", "db.sqlite3", "servers/another/bin/run", "installs/another/run"]
)
def test_no_program_lies_in_the_sites_own_folder(tmp_path: Path, policy: str, where: str) -> None:
    own = tmp_path / where
    with override_settings(VAR_DIR=tmp_path):
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_bytes(b"\x7fELF")
        own.chmod(0o700)
        (tmp_path.parent / f"link-{policy}").unlink(missing_ok=True)
        (tmp_path.parent / f"link-{policy}").symlink_to(own)
        for program in (own, tmp_path / "x" / ".." / where, tmp_path.parent / f"link-{policy}"):
            with pytest.raises(ConfigInvalid, match="belongs to this site"):
                active(slug="a", **ON | {"command": [str(program)], "sandbox": policy})


@pytest.mark.attack
def test_no_interpreter_lies_in_the_sites_own_folder(tmp_path: Path) -> None:
    script = tmp_path / "run"
    keys = tmp_path / "var" / "keys.json"
    keys.parent.mkdir()
    keys.write_bytes(b"\x7fELF")
    for line in (f"#!{keys}", f"#!/usr/bin/env -S -u {keys} {sys.executable}"):
        script.write_text(line)
        for file in (script, keys):
            file.chmod(0o700)
        with override_settings(VAR_DIR=keys.parent), pytest.raises(ConfigInvalid):
            active(slug="a", **ON | {"command": [str(script)]})
    server = active(**ON | {"command": [str(script)], "sandbox": "off"})
    assert server.lifecycle == "active", "without a sandbox nothing is opened for it"
