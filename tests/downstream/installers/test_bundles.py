"""Bundles that are broken in any way: refused in words, and nothing is written outside of their
folder."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.installs import mcpb
from mcpregistry.downstream.installers import bundles, package_tree
from tests.fakes.bundles import bundle


def broken(content: bytes, count: int) -> Iterator[bytes]:
    """It with some bytes changed, missing or put in; mostly in its list of contents."""
    chance = random.Random(7)
    for _ in range(count):
        raw = bytearray(content)
        for _ in range(chance.choice([1, 1, 2, 4, 12])):
            at = chance.choice(
                [chance.randrange(len(raw)), max(0, len(raw) - 1 - chance.randrange(400))]
            )
            match chance.choice("cccdi"):
                case "c":
                    raw[at] = chance.randrange(256)
                case "d":
                    del raw[at : at + chance.randrange(1, 20)]
                case _:
                    raw[at:at] = chance.randbytes(5)
        yield bytes(raw)


@pytest.mark.attack
def test_whatever_is_broken_of_a_bundle_is_refused_in_words(tmp_path: Path) -> None:
    file = tmp_path / "bundle.zip"
    build = str(tmp_path / "build")
    whole = 0
    for content in broken(bundle(), 500):
        file.write_bytes(content)
        package_tree.remove(build)
        os.mkdir(build)
        with suppress(SlipsnisseError):  # anything else would be a fault of ours
            mcpb.read_manifest(bundles.read_bundle_manifest(str(file)))
            bundles.unpack(str(file), build)
            whole += 1
        assert sorted(os.listdir(tmp_path)) == ["build", "bundle.zip"]
    assert 0 < whole < 500


@pytest.mark.attack
@pytest.mark.parametrize("command", ["{0}/../keys.json", "{0}/link", "{0}/folder/keys.json", "{1}"])
def test_no_mode_is_changed_outside_of_the_folder(tmp_path: Path, command: str) -> None:
    build = tmp_path / "build"
    keys = tmp_path / "keys.json"
    build.mkdir()
    keys.write_text("{}")
    keys.chmod(0o600)
    (build / "link").symlink_to(keys)
    (build / "folder").symlink_to(tmp_path)
    bundles.make_runnable([command.format(build, keys)], str(build))
    assert keys.stat().st_mode & 0o777 == 0o600


def test_program_of_a_bundle_can_be_started(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("#!/bin/sh\n")
    bundles.make_runnable([f"{tmp_path}/run"], str(tmp_path))
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
