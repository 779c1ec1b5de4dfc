"""Locks are read strictly: whatever is not a package of the registry with a hash is refused, with
its name and the reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.installs import npm, pypi
from mcpregistry.domain.installs.lock import LockRefused, compare_locks, hash_lock
from mcpregistry.domain.installs.names import (
    Ecosystem,
    check_ecosystem,
    check_name,
    check_program,
    check_version,
    is_newer,
    normalize_name,
)
from mcpregistry.domain.installs.reasons import explain_failure

HASH = "sha512-" + "A" * 86 + "=="
OTHER = "sha512-" + "B" * 86 + "=="
WHEEL = "sha256:" + "a" * 64


def lock_of(**entries: dict[str, Any]) -> str:
    packages = {
        f"node_modules/{name}": {"version": "1.0.0", "integrity": HASH, **entry}
        for name, entry in entries.items()
    }
    return json.dumps(
        {"lockfileVersion": 3, "packages": {"": {"dependencies": {"srv": "1.0.0"}}, **packages}}
    )


def test_an_npm_lock_says_packages_versions_hashes_licences_and_programs() -> None:
    lock = npm.read(
        lock_of(srv={"bin": "cli.js", "license": "MIT"}, dep={"version": "2.1.0"}), "srv"
    )
    assert (lock.package.version, lock.package.licence, lock.package.programs) == (
        "1.0.0",
        "MIT",
        (("srv", "cli.js"),),
    )
    assert [(each.name, each.version, each.hashes) for each in lock.packages] == [
        ("srv", "1.0.0", (HASH,)),
        ("dep", "2.1.0", (HASH,)),
    ]


@pytest.mark.attack
@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"resolved": "git+ssh://git@host/x.git#abc"}, "dep comes from a git repository"),
        ({"resolved": "https://user:secret@host/x.tgz"}, "dep comes from another address"),
        ({"resolved": "file:../x"}, "dep comes from a file"),
        ({"link": True}, "dep is a link"),
        ({"integrity": ""}, "a hash of the package dep"),
        ({"integrity": None}, "a hash of the package dep"),
        ({"integrity": "sha1-2jmj7l5rSw0yVb/vlWAYkK/YBwk="}, "a hash of the package dep"),
        ({"hasInstallScript": True}, "dep 1.0.0 needs to run a script"),
        ({"version": None}, "a hash of the package dep"),
        ({"name": "../../x"}, "package name"),
    ],
)
def test_what_is_no_package_of_the_registry_is_refused_by_name(
    entry: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigInvalid, match=reason) as refused:
        npm.read(lock_of(srv={}, dep=entry), "srv")
    assert "secret" not in str(refused.value)
    assert refused.value.remedy


@pytest.mark.attack
@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"lockfileVersion": 3, "packages": {"a": 1}}', "[" * 100_000]
)
def test_what_is_no_lock_of_npm_is_refused(text: str) -> None:
    with pytest.raises(LockRefused):
        npm.read(text, "srv")


@pytest.mark.attack
@pytest.mark.parametrize(
    "path", ["../srv", "packages/a", "node_modules/../../a", "node_modules/-rf"]
)
def test_a_place_outside_of_the_modules_is_refused(path: str) -> None:
    document = json.loads(lock_of(srv={}))
    document["packages"][path] = {"version": "1.0.0", "integrity": HASH}
    with pytest.raises(ConfigInvalid):
        npm.read(json.dumps(document), "srv")


@pytest.mark.attack
def test_a_lock_of_something_else_is_refused() -> None:
    with pytest.raises(LockRefused, match="not made for the package other"):
        npm.read(lock_of(srv={}), "other")


def test_pinned_requirements_say_packages_versions_and_hashes() -> None:
    lock = pypi.read(
        f"# made\ndep==1.0 \\\n    --hash={WHEEL}\nMy_Srv==2.0 ; python_version > '3' \\\n    --hash={WHEEL}\n",
        "my-srv",
    )
    assert (lock.package.name, lock.package.version, lock.package.hashes) == (
        "My_Srv",
        "2.0",
        (WHEEL,),
    )
    assert len(lock.packages) == 2


@pytest.mark.attack
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            "dep @ git+https://u:secret@host/x.git",
            "dep does not come from the Python package index",
        ),
        ("git+https://u:secret@host/x", "does not come from the Python package index"),
        ("-e ./here", "does not come from the Python package index"),
        ("--find-links https://u:secret@host/", "does not come from the Python package index"),
        ("dep>=1", "dep does not come from the Python package index"),
        ("dep==1.0", "a hash of the package dep"),
        ("dep==1.0 --hash=md5:00", "a hash of the package dep"),
        (f"dep==1.0 --hash={WHEEL} --global-option=x", "a hash of the package dep"),
        ("./dep-1.0-py3-none-any.whl", "does not come from the Python package index"),
    ],
)
def test_what_is_not_pinned_in_the_index_is_refused(line: str, reason: str) -> None:
    with pytest.raises(ConfigInvalid, match=reason) as refused:
        pypi.read(f"srv==1.0 --hash={WHEEL}\n{line}\n", "srv")
    assert "secret" not in str(refused.value)


def test_two_locks_differ_by_packages_versions_and_files() -> None:
    before = npm.read(lock_of(srv={}, gone={}, same={}, files={}), "srv")
    after = npm.read(
        lock_of(srv={"version": "1.1.0"}, new={}, same={}, files={"integrity": OTHER}), "srv"
    )
    assert [str(change) for change in compare_locks(before, after)] == [
        "files 1.0.0 has other files with the same version",
        "gone 1.0.0 was removed",
        "new 1.0.0 was added",
        "srv 1.0.0 → 1.1.0",
    ]
    assert compare_locks(after, after) == []
    assert len(compare_locks(None, after)) == 4
    assert hash_lock("a") != hash_lock("b")


@pytest.mark.attack
@pytest.mark.parametrize(
    "name",
    [
        "-rf",
        "--registry=x",
        "a b",
        "https://x",
        "git+x",
        "../x",
        "a/b/c",
        "",
        "a@1",
        "file:x",
        "a\n",
        "x" * 215,
        ".",
    ],
)
def test_a_name_that_is_more_than_a_name_is_refused(name: str) -> None:
    of_a_bundle = [] if name.startswith("https:") else [Ecosystem.MCPB]
    for ecosystem in (Ecosystem.NPM, Ecosystem.PYPI, *of_a_bundle):
        with pytest.raises(ConfigInvalid):
            check_name(ecosystem, name)


@pytest.mark.attack
@pytest.mark.parametrize(
    "version", ["-1", "latest", "^1.0.0", ">=1", "1.0 --x", "git+x", "1.0.0\n", "*", "1" * 65]
)
def test_a_version_that_is_no_single_one_is_refused(version: str) -> None:
    for ecosystem in Ecosystem:
        with pytest.raises(ConfigInvalid):
            check_version(ecosystem, version)
    with pytest.raises(ConfigInvalid):
        check_ecosystem(version)
    with pytest.raises(ConfigInvalid):
        check_program("../" + version)


def test_plain_names_and_versions_pass() -> None:
    assert check_name(Ecosystem.NPM, "@scope/server-x") == "@scope/server-x"
    assert check_name(check_ecosystem("pypi"), "mcp-server-time") == "mcp-server-time"
    assert check_version(Ecosystem.NPM, "2026.8.31-rc.1") == "2026.8.31-rc.1"
    assert check_version(Ecosystem.PYPI, "1!2.0rc1") == "1!2.0rc1"
    assert normalize_name(Ecosystem.PYPI, "My_Server.x") == normalize_name(
        Ecosystem.PYPI, "my-server-x"
    )
    assert (check_version(Ecosystem.PYPI, ""), check_program("cli")) == ("", "cli")


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        (
            "error: Failed to download `dep==1.0`\n  cause: Hash mismatch for `dep==1.0`\n",
            "another file for dep==1.0 than the approved file",
        ),
        (
            "npm error code EINTEGRITY\nnpm error Integrity checksum failed when using sha512: wanted …",
            "the hash differs",
        ),
        (
            "error: No solution found when resolving dependencies\n  cause: Because sd==1.0 has no usable wheels and you",
            "sd==1.0 is only available as a source distribution",
        ),
        (
            "cause: Package `dep` was included as a URL dependency. URL",
            "depends on dep from an address",
        ),
        (
            "npm error code 128\nnpm error An unknown git error occurred\nnpm error command git --no-replace-objects ls-remote https://u:secret@x/x.git",
            "from a git repository",
        ),
        ("cause: Because there is no version of srv==9.9 and you", "was found: srv==9.9."),
        (
            "npm error code ETARGET\nnpm error notarget No matching version found for @a/srv@9.0.0.\n",
            "was found: @a/srv@9.0.0.",
        ),
        (
            "cause: Because nothere was not found in the package registry and",
            'No package named "nothere"',
        ),
        (
            "npm error 404  The requested resource 'nope@1.0.0' could not be found or",
            'No package named "nope@1.0.0"',
        ),
        ("npm error code ENOSPC", "disk is full"),
        ("cause: No space left on device (os error 28)", "disk is full"),
        ("npm error code ECONNREFUSED", "does not answer"),
        (
            "error: Request failed after 3 retries in 9.1s\n  cause: Failed to fetch: http://u:secret@host",
            "does not answer",
        ),
        ("Traceback: secret", "unknown reason"),
    ],
)
def test_what_installers_say_becomes_one_sentence_with_a_remedy(output: str, sentence: str) -> None:
    error = explain_failure(output)
    assert sentence in error.message
    assert error.remedy
    assert "secret" not in str(error)


@pytest.mark.parametrize(
    ("version", "than", "newer"),
    [
        ("1.10.0", "1.9", True),
        ("1.9", "1.10.0", False),
        ("1.0", "1.0.0", False),
        ("2.0.0-beta.1", "1.0.0", False),
        ("2.0rc1", "1.0", False),
        ("2.0.dev3", "1.0", False),
        ("2.0.post1", "1.0", True),
        ("1!1.0", "2.0", True),
        ("2.0", "1.0b2", True),
    ],
)
def test_newer_is_what_has_higher_numbers_and_is_no_pre_release(
    version: str, than: str, newer: bool
) -> None:
    assert is_newer(version, than) is newer
