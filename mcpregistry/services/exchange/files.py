"""Where configuration files lie on disk, reading and writing them, and what folder names in them
mean."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mcpregistry.domain.errors import NotFound
from mcpregistry.domain.formats import text
from mcpregistry.domain.formats.notes import FileInvalid
from mcpregistry.domain.project_files import PROJECT_FILES
from mcpregistry.services.exchange import large_files

# Folders that hold a host's file; the workspace is the folder around them.
_HOST_FOLDERS = {
    ".vscode",
    ".cursor",
    ".dispatch",
    ".gemini",
    ".qwen",
    ".codex",
    ".zed",
    ".claude-plugin",
    ".devcontainer",
}
# Keys at the root of a file under which hosts list servers.
_SERVER_KEYS = {"mcpServers", "servers", "mcp", "mcp_servers", "mcps"}


@dataclass(frozen=True, slots=True)
class LocatedFile:
    """The file that is meant, and a warning if there is one to give."""

    path: Path
    warning: str = ""


def locate(
    *, format_name: str, workspace: Path | None, environ: Mapping[str, str], here: Path
) -> LocatedFile:
    """The file that is meant when none is named.

    With a workspace: the first of ``PROJECT_FILES`` in it, ``.dispatch/mcp.json`` before
    ``opencode.json``. For ai-agent: ``.ai-agent.json`` here, then at home. Otherwise
    ``MCP_CONFIG_PATH`` or ``mcp-servers.json`` here. Raises NotFound with the places looked at.
    """
    if workspace is not None:
        return _locate_in_workspace(workspace)
    if format_name == "ai-agent":
        places = [
            here / ".ai-agent.json",
            Path(environ.get("HOME") or Path.home()) / ".ai-agent.json",
        ]
    else:
        places = [here / environ.get("MCP_CONFIG_PATH", "mcp-servers.json")]
    return LocatedFile(_find_first_file(places))


def _locate_in_workspace(workspace: Path) -> LocatedFile:
    places = [workspace / name for name in PROJECT_FILES]
    # A host's settings without servers do not hide the file of another host.
    servers = [
        place
        for place in places
        if place.is_file() and (place == places[0] or _has_server_declarations(place))
    ]
    path = servers[0] if servers else _find_first_file(places)
    others = ", ".join(str(place) for place in servers[1:])
    return LocatedFile(
        path, f"{path} is used. The servers in {others} are ignored." if others else ""
    )


def _has_server_declarations(path: Path) -> bool:
    try:
        return bool(_SERVER_KEYS & set(text.load(read_file(path), path.name)))
    except (OSError, FileInvalid):
        return False


def _find_first_file(places: list[Path]) -> Path:
    for place in places:
        if place.is_file():
            return place
    names = ", ".join(map(str, places))
    raise NotFound(
        f"No configuration file was found. These paths were searched: {names}.",
        remedy="Enter the path of the file to import.",
    )


def map_folder_variables(path: Path | None, workspace: Path | None) -> dict[str, str]:
    """What ``${workspace}`` and ``${home}`` stand for in a file at ``path`` (None: it came through
    a pipe)."""
    home = {"home": str(Path.home())}
    if workspace is None and path is not None:
        folder = path.absolute().parent
        workspace = folder.parent if folder.name in _HOST_FOLDERS else folder
    if workspace is None:
        return home
    return {
        "workspace": str(workspace.absolute()),
        "CLAUDE_PLUGIN_ROOT": str(workspace.absolute()),
        **home,
    }


def name_project_folder(path: str) -> str:
    """The name of the project's folder, also for a file in a host's folder inside it, such as
    ``.cursor``."""
    folder = Path(path).parent
    return folder.parent.name if folder.name in _HOST_FOLDERS else folder.name


def read_file(path: Path) -> bytes:
    """The file's bytes, at most one more than a configuration file may have, so that a reader can
    refuse it."""
    with path.open("rb") as stream:
        return stream.read(large_files.MAX_BYTES + 1)


class FileWatch:
    """Tells when a file on disk has new content. Cheap to ask often: reads only when the file's
    stamp changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: tuple[int, int, int] | None = None
        self._content: bytes | None = None

    def read_if_changed(self) -> bytes | None:
        """The new content, or None: nothing new, file absent, or still being written."""
        stamp = self._look()
        if stamp is None or stamp == self._stamp:
            return None
        try:
            content = read_file(self.path)
        except OSError:
            return None
        if self._look() != stamp:
            return None  # somebody is writing: look again next time
        self._stamp = stamp
        if content == self._content:
            return None
        self._content = content
        return content

    def _look(self) -> tuple[int, int, int] | None:
        try:
            facts = self.path.stat()
        except OSError:
            return None
        return facts.st_mtime_ns, facts.st_size, facts.st_ino


def write_file(path: Path, content: str, *, mode: int = 0o600) -> None:
    """Replace the file in one step; only the owner may read it, for it may hold secrets, unless
    ``mode`` says more."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as stream:
            os.fchmod(stream.fileno(), mode)
            stream.write(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
