"""Files of Claude Code other than ``.mcp.json``: the user's ``~/.claude.json``, and plugins."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePath

from mcpregistry.domain.formats.document import Document, JsonObject, Project
from mcpregistry.domain.formats.hosts.draft import (
    EntryDraft,
    EntryPlace,
    define_host_format,
    find_map_entries,
    list_usual_keys,
    make_short_name,
    note_other_settings,
    read_places,
)
from mcpregistry.domain.formats.hosts.shapes import has_path_ending, has_servers, is_entry
from mcpregistry.domain.formats.keys import make_slug
from mcpregistry.domain.formats.notes import Note, make_pointer

TITLE = "Claude Code (user)"


def _read_projects(data: JsonObject) -> dict[str, JsonObject]:
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
        bool(_read_projects(data))
        or has_path_ending(path, ".claude.json")
        or isinstance(data.get("mcpServers"), dict)
    )


def _read_user(data: JsonObject, path: str) -> Document:
    places = [*find_map_entries(data, "mcpServers"), *_find_project_servers(data)]
    document = read_places(
        TITLE,
        list_usual_keys("claude-user"),
        places,
        lambda draft: _translate_project_entry(draft, data),
        path=path,
        extra=note_other_settings(data, path, TITLE, "mcpServers", "projects"),
    )
    document = replace(document, projects=tuple(_find_projects_with_servers(data, document)))
    return document.add_notes(*_note_projects(document, path))


def _find_project_servers(data: JsonObject) -> Iterator[EntryPlace]:
    """The servers of every project; one whose name is taken gets the name of its folder, too."""
    servers = data.get("mcpServers")
    taken = {make_slug(name) for name in servers} if isinstance(servers, dict) else set()
    for folder in _read_projects(data):
        for place in find_map_entries(data, "projects", folder, "mcpServers"):
            name = place.name
            if make_slug(name) in taken:
                name = _find_free_name(
                    f"{name}-{make_short_name(PurePath(folder.replace(chr(92), '/')).name)}", taken
                )
            taken.add(make_slug(name))
            yield replace(place, name=name)


def _find_free_name(name: str, taken: set[str]) -> str:
    number = 2
    free = name
    while make_slug(free) in taken:
        free = f"{name}-{number}"
        number = number + 1
    return free


def _translate_project_entry(draft: EntryDraft, data: JsonObject) -> None:
    """A server of a project starts in the project's folder, as Claude Code starts it."""
    parts = [part.replace("~1", "/").replace("~0", "~") for part in draft.at.split("/")[1:]]
    if parts[0] != "projects":
        return
    folder = parts[1]
    name = parts[-1]
    if "command" in draft.entry:
        draft.entry.setdefault("cwd", folder)
    if name in _list_disabled_servers(data["projects"][folder]) and "enabled" not in draft.entry:
        draft.entry["enabled"] = False


def _list_disabled_servers(project: JsonObject) -> frozenset[str]:
    """Names of the servers that a project does not use."""
    names = project.get("disabledMcpServers")
    return (
        frozenset(name for name in names if isinstance(name, str))
        if isinstance(names, list)
        else frozenset()
    )


def _find_projects_with_servers(data: JsonObject, document: Document) -> Iterator[Project]:
    """Each project with servers, under an absolute path of this kind of system."""
    for folder, project in _read_projects(data).items():
        place = make_pointer("projects", folder)
        own = tuple(server.key for server in document.servers if server.at.startswith(place + "/"))
        if own and folder.startswith("/"):
            hidden = {None, *project["mcpServers"], *_list_disabled_servers(project)}
            shared = (
                server.key
                for server in document.servers
                if _find_shared_name(server.at) not in hidden
            )
            yield Project(posixpath.normpath(folder), place, own, tuple(shared))


def _find_shared_name(at: str) -> str | None:
    """The name in the file of a server for all projects; None for a server of one project."""
    root, _, name = at.removeprefix("/").partition("/")
    return name.replace("~1", "/").replace("~0", "~") if root == "mcpServers" else None


def _note_projects(document: Document, path: str) -> Iterator[Note]:
    for project in document.projects:
        sentence = f"The servers of this project are read: {', '.join(project.own)}. The project can become a workspace."
        yield Note("translated", path, project.at, sentence)


def _is_plugin(data: JsonObject, path: str) -> bool:
    """Servers without a root, as a plugin's ``.mcp.json`` has them, or a plugin's own
    description."""
    if has_path_ending(path, "plugin.json"):
        return isinstance(data.get("mcpServers"), dict)
    entries = {key: value for key, value in data.items() if not key.startswith("$")}
    return (
        has_servers(entries)
        and all(isinstance(entry, dict) for entry in entries.values())
        and _are_mostly_servers(entries)
    )


def _are_mostly_servers(entries: JsonObject) -> bool:
    """One that is not a server's may be a mistake; a file in which most are not is of another
    kind."""
    return 2 * sum(map(is_entry, entries.values())) > len(entries)


def _read_plugin(data: JsonObject, path: str) -> Document:
    if has_path_ending(path, "plugin.json"):
        places = [*find_map_entries(data, "mcpServers")]
    else:
        places = [place for place in find_map_entries(data) if not place.name.startswith("$")]
    return read_places(
        "Claude Code", list_usual_keys("claude-plugin"), places, lambda draft: None, path=path
    )


CLAUDE_USER = define_host_format("claude-user", TITLE, ".claude.json", _is_user, _read_user)
CLAUDE_PLUGIN = define_host_format(
    "claude-plugin", "Claude Code (plugin)", ".mcp.json", _is_plugin, _read_plugin
)
