"""Files of Claude Code other than ``.mcp.json``: the user's ``~/.claude.json``, and plugins."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePath

from mcpregistry.domain.formats.document import Document, JsonObject, Project
from mcpregistry.domain.formats.hosts.draft import (
    Draft,
    Place,
    host,
    in_map,
    keys_of,
    not_servers,
    one_name,
    read_places,
)
from mcpregistry.domain.formats.hosts.shapes import ends_with, has_servers, is_entry
from mcpregistry.domain.formats.keys import slug
from mcpregistry.domain.formats.notes import Note, pointer

TITLE = "Claude Code (user)"


def _projects(data: JsonObject) -> dict[str, JsonObject]:
    projects = data.get("projects")
    found = projects.items() if isinstance(projects, dict) else ()
    return {
        path: each
        for path, each in found
        if isinstance(each, dict) and isinstance(each.get("mcpServers"), dict)
    }


def _is_user(data: JsonObject, path: str) -> bool:
    projects = data.get("projects")
    if not isinstance(projects, dict) or not all(
        isinstance(each, dict) for each in projects.values()
    ):
        return False
    return (
        bool(_projects(data))
        or ends_with(path, ".claude.json")
        or isinstance(data.get("mcpServers"), dict)
    )


def _read_user(data: JsonObject, path: str) -> Document:
    places = [*in_map(data, "mcpServers"), *_of_projects(data)]
    document = read_places(
        TITLE,
        keys_of("claude-user"),
        places,
        lambda draft: _project_entry(draft, data),
        path=path,
        extra=not_servers(data, path, TITLE, "mcpServers", "projects"),
    )
    document = replace(document, projects=tuple(_offered(data, document)))
    return document.with_notes(*_offers(document, path))


def _of_projects(data: JsonObject) -> Iterator[Place]:
    """The servers of every project; one whose name is taken gets the name of its folder, too."""
    servers = data.get("mcpServers")
    taken = {slug(name) for name in servers} if isinstance(servers, dict) else set()
    for folder in _projects(data):
        for place in in_map(data, "projects", folder, "mcpServers"):
            name = place.name
            if slug(name) in taken:
                name = _free(
                    f"{name}-{one_name(PurePath(folder.replace(chr(92), '/')).name)}", taken
                )
            taken.add(slug(name))
            yield replace(place, name=name)


def _free(name: str, taken: set[str]) -> str:
    number = 2
    free = name
    while slug(free) in taken:
        free = f"{name}-{number}"
        number = number + 1
    return free


def _project_entry(draft: Draft, data: JsonObject) -> None:
    """A server of a project starts in the project's folder, as Claude Code starts it."""
    parts = [part.replace("~1", "/").replace("~0", "~") for part in draft.at.split("/")[1:]]
    if parts[0] != "projects":
        return
    folder = parts[1]
    name = parts[-1]
    if "command" in draft.entry:
        draft.entry.setdefault("cwd", folder)
    if name in _disabled(data["projects"][folder]) and "enabled" not in draft.entry:
        draft.entry["enabled"] = False


def _disabled(project: JsonObject) -> frozenset[str]:
    """Names of the servers that a project does not use."""
    names = project.get("disabledMcpServers")
    return (
        frozenset(name for name in names if isinstance(name, str))
        if isinstance(names, list)
        else frozenset()
    )


def _offered(data: JsonObject, document: Document) -> Iterator[Project]:
    """Each project with servers, under an absolute path of this kind of system."""
    for folder, project in _projects(data).items():
        place = pointer("projects", folder)
        own = tuple(server.key for server in document.servers if server.at.startswith(place + "/"))
        if own and folder.startswith("/"):
            hidden = {None, *project["mcpServers"], *_disabled(project)}
            shared = (
                server.key for server in document.servers if _shared_name(server.at) not in hidden
            )
            yield Project(posixpath.normpath(folder), place, own, tuple(shared))


def _shared_name(at: str) -> str | None:
    """The name in the file of a server for all projects; None for a server of one project."""
    root, _, name = at.removeprefix("/").partition("/")
    return name.replace("~1", "/").replace("~0", "~") if root == "mcpServers" else None


def _offers(document: Document, path: str) -> Iterator[Note]:
    for project in document.projects:
        sentence = f"The servers of this project are read: {', '.join(project.own)}. The project can become a workspace."
        yield Note("translated", path, project.at, sentence)


def _is_plugin(data: JsonObject, path: str) -> bool:
    """Servers without a root, as a plugin's ``.mcp.json`` has them, or a plugin's own
    description."""
    if ends_with(path, "plugin.json"):
        return isinstance(data.get("mcpServers"), dict)
    entries = {key: value for key, value in data.items() if not key.startswith("$")}
    return (
        has_servers(entries)
        and all(isinstance(entry, dict) for entry in entries.values())
        and _mostly(entries)
    )


def _mostly(entries: JsonObject) -> bool:
    """One that is not a server's may be a mistake; a file in which most are not is of another
    kind."""
    return 2 * sum(map(is_entry, entries.values())) > len(entries)


def _read_plugin(data: JsonObject, path: str) -> Document:
    if ends_with(path, "plugin.json"):
        places = [*in_map(data, "mcpServers")]
    else:
        places = [place for place in in_map(data) if not place.name.startswith("$")]
    return read_places(
        "Claude Code", keys_of("claude-plugin"), places, lambda draft: None, path=path
    )


CLAUDE_USER = host("claude-user", TITLE, ".claude.json", _is_user, _read_user)
CLAUDE_PLUGIN = host("claude-plugin", "Claude Code (plugin)", ".mcp.json", _is_plugin, _read_plugin)
