"""Where configuration files are looked for, and how a watched one is noticed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mcpregistry.domain.errors import NotFound
from mcpregistry.services.exchange import files
from mcpregistry.services.exchange.files import FileWatch, locate, map_folder_variables, write_file


def put(path: Path, content: str = "{}") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def test_an_ai_agent_file_is_looked_for_here_and_then_at_home(tmp_path: Path) -> None:
    here = tmp_path / "here"
    home = tmp_path / "home"
    options = {
        "format_name": "ai-agent",
        "workspace": None,
        "environ": {"HOME": str(home)},
        "here": here,
    }
    with pytest.raises(NotFound, match="Enter the path of the file"):
        locate(**options)
    at_home = put(home / ".ai-agent.json")
    assert locate(**options).path == at_home
    local = put(here / ".ai-agent.json")
    assert locate(**options).path == local


def test_mcp_servers_json_is_the_default_and_a_variable_names_another(tmp_path: Path) -> None:
    default = put(tmp_path / "mcp-servers.json")
    other = put(tmp_path / "deep" / "other.json")
    options = {"format_name": "", "workspace": None, "here": tmp_path}
    assert locate(environ={}, **options).path == default
    assert locate(environ={"MCP_CONFIG_PATH": str(other)}, **options).path == other


def test_in_a_workspace_dispatch_goes_before_opencode_with_a_warning(tmp_path: Path) -> None:
    options = {"format_name": "", "workspace": tmp_path, "environ": {}, "here": tmp_path}
    opencode = put(tmp_path / "opencode.json", '{"mcp": {}}')
    assert locate(**options).path == opencode
    assert not locate(**options).warning
    dispatch = put(tmp_path / ".dispatch" / "mcp.json")
    assert locate(**options).path == dispatch
    assert "opencode.json" in locate(**options).warning
    put(opencode, "{}")
    assert not locate(**options).warning


def test_the_workspace_is_the_folder_around_a_hosts_own_folder(tmp_path: Path) -> None:
    assert map_folder_variables(tmp_path / ".vscode" / "mcp.json", None)["workspace"] == str(
        tmp_path
    )
    assert map_folder_variables(tmp_path / ".mcp.json", None)["workspace"] == str(tmp_path)
    assert map_folder_variables(tmp_path / "a" / "x.json", tmp_path)["workspace"] == str(tmp_path)
    assert "workspace" not in map_folder_variables(None, None)


def test_a_watched_file_tells_each_new_content_once(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    watch = FileWatch(path)
    assert watch.read_if_changed() is None
    put(path, "one")
    assert (watch.read_if_changed(), watch.read_if_changed()) == (b"one", None)
    put(path, "three")
    assert watch.read_if_changed() == b"three"
    os.utime(path, ns=(1, 1))  # touched, not changed
    assert watch.read_if_changed() is None
    path.unlink()
    assert watch.read_if_changed() is None
    put(path, "three")
    assert watch.read_if_changed() is None
    put(tmp_path / "new", "four").replace(path)
    assert watch.read_if_changed() == b"four"


def test_a_file_that_changes_while_it_is_read_is_left_for_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path / "x.json", "first half")
    watch = FileWatch(path)

    def read_while_somebody_writes(path: Path) -> bytes:
        monkeypatch.undo()
        content = path.read_bytes()
        put(path, "first half and second half")
        return content

    monkeypatch.setattr(files, "read_file", read_while_somebody_writes)
    assert watch.read_if_changed() is None
    assert watch.read_if_changed() == b"first half and second half"


def test_a_written_file_replaces_the_old_one_and_is_the_owners_alone(tmp_path: Path) -> None:
    path = put(tmp_path / "x.json", "old")
    path.chmod(0o644)
    write_file(path, "new é")
    assert path.read_text("utf-8") == "new é"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]
