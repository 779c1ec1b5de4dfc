"""What a configuration file says, free of any file's spelling. Every format reads into and writes
from this.

Invariants: values are immutable by convention (nobody writes into a mapping after construction);
placeholders are canonical (``${VAR}``, ``${VAR:-x}``, ``${cred:NAME}``, ``${workspace}``,
``${home}``) and unresolved; times are whole milliseconds, as every file writes them. What a format
knows and we do not is kept in ``Parked``, never dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from mcpregistry.domain.formats.notes import Note
from mcpregistry.domain.servers.target import TransportKind

Json = Any
JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Parked:
    """What only one format knows about an object, so that writing it back to that format loses
    nothing.

    ``keys``: unknown keys, verbatim. ``order``: all keys as they stood. ``spelling``: how a known
    value was written where the format has several ways to say the same; never holds a value of
    ``env`` or ``headers``.
    """

    keys: Mapping[str, Json] = field(default_factory=dict)
    order: tuple[str, ...] = ()
    spelling: Mapping[str, Json] = field(default_factory=dict)

    def to_json(self) -> JsonObject:
        """For the database, which keeps it with the imported file or server."""
        return {"keys": dict(self.keys), "order": list(self.order), "spelling": dict(self.spelling)}

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> Parked:
        """Back from ``to_json``; missing parts are empty."""
        return cls(data.get("keys", {}), tuple(data.get("order", ())), data.get("spelling", {}))


NOTHING_PARKED = Parked()


@dataclass(frozen=True, slots=True)
class Oauth:
    """How to sign in to a remote server. ``off`` means: the file says not to try OAuth at all."""

    off: bool = False
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scopes: tuple[str, ...] = ()
    redirect_uri: str = ""
    callback_port: int | None = None
    metadata_url: str = ""


@dataclass(frozen=True, slots=True)
class ServerEntry:
    """One downstream server. ``command`` is the whole argv; ``name`` empty means: the key.

    ``connect_timeout_ms`` and ``request_timeout_ms`` are None where the file is silent.
    ``auto_approve`` is True for every tool, or names of tools. ``parked`` maps a format's family
    name to what only that format knows. ``at`` is the entry's JSON pointer in the file that it was
    read from, for messages.
    """

    key: str
    name: str = ""
    description: str = ""
    transport: TransportKind = "stdio"
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    env_file: str = ""
    cwd: str = ""
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    enabled: bool = True
    connect_timeout_ms: int | None = None
    request_timeout_ms: int | None = None
    auto_approve: bool | tuple[str, ...] = False
    tools_allowed: tuple[str, ...] | None = None
    oauth: Oauth | None = None
    parked: Mapping[str, Parked] = field(default_factory=dict, repr=False)
    at: str = field(default="", compare=False)

    def columns(self) -> dict[str, Json]:
        """Everything but ``parked`` and ``at``: two entries with equal columns are the same
        server."""
        return {
            item.name: getattr(self, item.name)
            for item in fields(self)
            if item.name not in ("parked", "at")
        }

    def get_parked(self, family: str) -> Parked:
        """What only formats of this family know about the server."""
        return self.parked.get(family, NOTHING_PARKED)


@dataclass(frozen=True, slots=True)
class Project:
    """A folder for which the file has servers of its own, so that it can become a workspace.

    ``own`` and ``shared``: keys of its own servers, and of those that its host offers in every
    folder.
    """

    directory: str
    at: str
    own: tuple[str, ...]
    shared: tuple[str, ...] = ()


def _mark_left_out(note: Note) -> Note:
    return replace(note, action="left out") if note.action == "refused" else note


def _note_duplicate(server: ServerEntry) -> Note:
    sentence = f"Left out: another server of this file already has the name {server.key}."
    return Note(
        "left out", "", server.at, sentence, "Rename one of the two servers.", entry=server.at
    )


@dataclass(frozen=True, slots=True)
class Document:
    """A whole file. What belongs to no server is kept as plain JSON data, exactly as written.

    ``expert_tools``: the ``tools`` of a Slipsnisse file, ``model_providers`` its ``providers``;
    both are valid by the schema. ``providers``, ``defaults``: of ``.ai-agent.json``. ``flags``:
    top-level switches of ``mcp-servers.json``. ``inputs``: VS Code's prompts for values.
    ``projects``: folders with servers of their own. They are read and not written.
    """

    servers: tuple[ServerEntry, ...] = ()
    expert_tools: tuple[JsonObject, ...] = ()
    model_providers: Mapping[str, JsonObject] = field(default_factory=dict, repr=False)
    providers: Mapping[str, Json] = field(default_factory=dict, repr=False)
    defaults: Mapping[str, Json] = field(default_factory=dict)
    flags: Mapping[str, bool] = field(default_factory=dict)
    inputs: tuple[JsonObject, ...] = field(default=(), repr=False)
    projects: tuple[Project, ...] = ()
    parked: Mapping[str, Parked] = field(default_factory=dict, repr=False)
    notes: tuple[Note, ...] = ()

    @property
    def refused(self) -> tuple[Note, ...]:
        return tuple(note for note in self.notes if note.action == "refused")

    def get_parked(self, family: str) -> Parked:
        """What only formats of this family know about the root of the file."""
        return self.parked.get(family, NOTHING_PARKED)

    def credentials(self) -> tuple[str, ...]:
        """Names of the secrets that the file asks a person for (VS Code's inputs), in order."""
        return tuple(str(item["id"]) for item in self.inputs)

    def merge_document(self, other: Document) -> Document:
        """This document with the servers, the inputs and the notes of another part of the same
        file."""
        taken = {server.key for server in self.servers}
        asked = {item["id"] for item in self.inputs}
        return replace(
            self,
            servers=(
                *self.servers,
                *(server for server in other.servers if server.key not in taken),
            ),
            inputs=(*self.inputs, *(item for item in other.inputs if item["id"] not in asked)),
            notes=(
                *self.notes,
                *other.notes,
                *(_note_duplicate(server) for server in other.servers if server.key in taken),
            ),
        )

    def drop_refused_entries(self) -> Document:
        """Without the entries that cannot be used, each of which is a note; unless nothing else is
        in the file."""
        broken = {note.entry for note in self.refused if note.entry}
        servers = tuple(server for server in self.servers if server.at not in broken)
        if not servers or not broken:
            return self
        notes = tuple(_mark_left_out(note) if note.entry in broken else note for note in self.notes)
        return replace(self, servers=servers, notes=notes)

    def add_notes(self, *notes: Note) -> Document:
        """The same document with these notes added."""
        return replace(self, notes=self.notes + notes)


@dataclass(frozen=True, slots=True)
class Written:
    """A file's data, ready to be serialised, and what had to be said about it."""

    data: JsonObject
    notes: tuple[Note, ...] = ()

    @property
    def refused(self) -> tuple[Note, ...]:
        return tuple(note for note in self.notes if note.action == "refused")
