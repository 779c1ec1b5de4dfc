"""What people paste to add a server, read into words; no secret of it comes out."""

from __future__ import annotations

from typing import Annotated, Literal

from ninja import Schema
from pydantic import Field

from mcpregistry.api.schemas.basics import StrictInput, Text
from mcpregistry.api.schemas.config import NoteOut
from mcpregistry.api.schemas.servers import TransportName
from mcpregistry.domain.formats.document import ServerEntry
from mcpregistry.domain.formats.pasted import MOST_CHARACTERS, Pasted
from mcpregistry.domain.formats.pasted.secrets import extract_secrets
from mcpregistry.services.servers.sandbox import list_named_paths


class PastedIn(StrictInput):
    """Installation text of a server: a command line, an address, a block of a host's file, or the
    name of a registry entry.
    """

    text: Annotated[Text, Field(min_length=1, max_length=MOST_CHARACTERS)]


class PastedSecret(Schema):
    """A text that looks like a secret. ``credential`` is the name by which the server refers to it.
    The value is not repeated.
    """

    credential: str
    label: str
    place: Literal["env", "headers", "command", "url"]
    filled_in: Annotated[
        bool,
        Field(
            description="Whether the pasted text contained the value. False for a placeholder such as YOUR_API_KEY."
        ),
    ]


class PastedServer(Schema):
    """The recognized server, in the form of a new one. Each secret is a reference,
    ``${cred:NAME}``."""

    slug: str
    transport: TransportName
    command: list[str]
    cwd: str
    sandbox_read: list[str] = Field(
        description="Paths in the command, which the server can read in its sandbox only if they are sent along."
    )
    env: dict[str, str]
    url: str
    headers: dict[str, str]
    secrets: list[PastedSecret]


class PastedOut(Schema):
    """What was recognized. ``registry_entry``: the registry entry that was named instead of a
    server."""

    what: str
    servers: list[PastedServer]
    registry_entry: str
    notes: list[NoteOut]


def build_pasted_out(found: Pasted) -> PastedOut:
    """Without any secret that was pasted."""
    notes = [
        NoteOut(action=n.action, pointer=n.pointer, message=n.sentence, remedy=n.remedy)
        for n in found.document.notes
        if not n.plain
    ]
    return PastedOut(
        what=found.what,
        servers=[*map(_build_pasted_server, found.document.servers)],
        registry_entry=found.registry,
        notes=notes,
    )


def _build_pasted_server(entry: ServerEntry) -> PastedServer:
    plain, found = extract_secrets(entry)
    secrets = [
        PastedSecret(
            credential=each.name, label=each.label, place=each.place, filled_in=bool(each.value)
        )
        for each in found
    ]
    return PastedServer(
        slug=plain.key,
        transport=plain.transport,
        command=[*plain.command],
        cwd=plain.cwd,
        sandbox_read=list_named_paths(plain.command),
        env={**plain.env},
        url=plain.url,
        headers={**plain.headers},
        secrets=secrets,
    )
