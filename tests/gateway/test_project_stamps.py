"""Which changes of a directory's files the host of ``runmcp --workspace`` notices."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mcpregistry.gateway.stdio.project_follower import ProjectFollower


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / ".mcp.json"
    path.write_text("{}")
    return path


def test_file_that_moves_to_another_name_is_noticed(file: Path) -> None:
    follower = ProjectFollower(file.parent, "")
    before = follower._read_stamps()
    link = file.with_name("mcp-servers.json")
    os.link(file, link)
    file.unlink()
    assert follower._read_stamps() != before


def test_content_with_the_former_time_is_noticed(file: Path) -> None:
    follower = ProjectFollower(file.parent, "")
    before = follower._read_stamps()
    facts = file.stat()
    file.write_text("[]")
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert file.stat().st_mtime_ns == facts.st_mtime_ns
    assert follower._read_stamps() != before


def test_permissions_of_the_folder_are_noticed(file: Path) -> None:
    follower = ProjectFollower(file.parent, "")
    before = follower._read_stamps()
    file.parent.chmod(0o777)
    assert follower._read_stamps() != before
    file.parent.chmod(0o700)


def test_nothing_is_noticed_while_nothing_changes(file: Path) -> None:
    follower = ProjectFollower(file.parent, "")
    before = follower._read_stamps()
    (file.parent / "notes.txt").write_text("x")
    assert follower._read_stamps() == before
