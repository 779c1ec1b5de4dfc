"""What a server's entry and a map of servers look like, in whatever host's file."""

from __future__ import annotations

from mcpregistry.domain.formats.document import Json, JsonObject

_ADDRESSES = ("url", "httpUrl", "serverUrl", "server_url", "uri")


def is_entry(value: Json) -> bool:
    """Whether the value has the command or the address of a server."""
    if not isinstance(value, dict):
        return False
    command = value.get("command", value.get("cmd"))
    started = isinstance(command, str | list) or (isinstance(command, dict) and "path" in command)
    return started or any(isinstance(value.get(name), str) for name in _ADDRESSES)


def has_servers(value: Json) -> bool:
    """Whether it is a map in which at least one entry is a server's."""
    return isinstance(value, dict) and any(map(is_entry, value.values()))


def list_entry_objects(data: JsonObject, root: str) -> list[JsonObject]:
    """The entries under a root that are objects; none if the root is another thing."""
    found = data.get(root)
    return (
        [entry for entry in found.values() if isinstance(entry, dict)]
        if isinstance(found, dict)
        else []
    )


def has_path_ending(path: str, *ends: str) -> bool:
    """Whether the file's path ends so, with either kind of slash."""
    return path.replace("\\", "/").endswith(ends)


def find_value(data: Json, *path: str) -> Json:
    """The value at this path of keys; None if there is none."""
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return data
