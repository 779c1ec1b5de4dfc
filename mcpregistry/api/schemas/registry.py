"""Registries and their entries: what goes in and what comes out."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from ninja import Schema
from pydantic import Field

from mcpregistry.api.schemas.basics import Slug, StrictInput, Text
from mcpregistry.domain.registry.install_options import InstallInput as Asked
from mcpregistry.domain.registry.install_options import InstallOption
from mcpregistry.models import Install, RegistryEntry, RegistrySource, Server
from mcpregistry.services.registry import sources
from mcpregistry.services.registry.add_entries import AddRequest, list_local_options

Address = Annotated[
    Text,
    Field(
        max_length=500, description="Address without /v0.1, for example https://registry.example."
    ),
]


class RegistryChange(StrictInput):
    """Changes of a registry. You can leave out any key. A new address empties the local copy."""

    slug: Slug | None = None
    base_url: Address | None = None
    token: (
        Annotated[
            Text,
            Field(
                max_length=8_000,
                description="Token of a private registry. It is sent only to this address. Leave it out to keep "
                "the stored token. Use an empty text to remove it. If the address changes, send the token again.",
            ),
        ]
        | None
    ) = None
    allowed_networks: list[Text] | None = None
    by_clock: (
        Annotated[bool, Field(description="If true, the registry is read every hour.")] | None
    ) = None
    disable_deleted: (
        Annotated[
            bool,
            Field(
                description="If true, servers whose package or address the registry deletes are disabled."
            ),
        ]
        | None
    ) = None
    propose_versions: (
        Annotated[
            bool,
            Field(
                description="If true, newer versions of packages that servers use are requested."
            ),
        ]
        | None
    ) = None


class RegistryNew(RegistryChange):
    """A new registry. It is not read until you request it."""

    slug: Slug
    base_url: Address


class RegistryOut(Schema):
    """A registry and the state of its sync."""

    slug: str
    base_url: str
    allowed_networks: list[str]
    by_clock: bool
    disable_deleted: bool
    propose_versions: bool
    has_token: bool
    reading: bool = Field(description="Whether a worker reads the registry or was asked to.")
    synced_at: datetime | None = Field(description="When the registry was last read completely.")
    pages: int
    skipped: int = Field(description="Number of entries that could not be used.")
    error: str = Field(
        description="Why the last sync failed, and what to do. Empty if it succeeded."
    )


class InputOut(Schema):
    """A value that the server needs."""

    key: str = Field(description="Key for the value when the entry is added.")
    place: str = Field(
        description="Where the value is used: environment, header, argument, address or setting (of a bundle)."
    )
    name: str
    description: str
    required: bool
    secret: bool
    default: str
    choices: list[str]
    many: bool = Field(description="Whether the value can be a list, one value per line.")


class WayOut(Schema):
    """A package or an address. ``problem``: why it cannot be added here, or empty."""

    kind: str
    transport: str
    identifier: str
    version: str
    inputs: list[InputOut]
    problem: str


class RegistryEntryOut(Schema):
    """One version of one server, as its publisher describes it in a registry."""

    id: int
    registry: str
    name: str
    version: str
    title: str
    description: str
    kinds: list[str]
    status: str = Field(description="Status of the entry: active, deprecated, deleted or gone.")
    status_message: str
    newest: bool
    altered_at: datetime | None = Field(
        description="When the content was found to differ, although the version was the same."
    )
    published_at: datetime | None


class EntryWhole(RegistryEntryOut):
    """An entry with its install options."""

    sha256: str = Field(description="SHA-256 of the content of the entry.")
    ways: list[WayOut]


class EntryAdd(StrictInput):
    """How to add an entry. `values`: the value of each input, by its key."""

    way: Annotated[
        int, Field(ge=0, le=100, description="Number of the install option in `ways`, from 0.")
    ] = 0
    slug: Slug | None = None
    values: Annotated[dict[Text, Text], Field(max_length=100)] = {}
    sha256: Annotated[
        Text,
        Field(
            min_length=64, max_length=64, description="SHA-256 of the entry as you have read it."
        ),
    ]

    def wish(self) -> AddRequest:
        """As the service takes it."""
        return AddRequest(
            number=self.way, slug=self.slug or "", values=self.values, sha256=self.sha256
        )


class EntryChoice(EntryAdd):
    """The selected entry, and how to add it."""

    id: Annotated[int, Field(ge=1, lt=2**63)]


class EntryAdded(Schema):
    """The result: a draft server, or an installation whose lock must be approved."""

    server: str | None
    install: int | None


class EntryDigest(Schema):
    """An image as its entry names it, and the digest to which its tag points now."""

    image: str
    digest: str


def entry_added(made: Server | Install) -> EntryAdded:
    """The answer to an addition."""
    if isinstance(made, Server):
        return EntryAdded(server=made.slug, install=None)
    return EntryAdded(server=None, install=made.pk)


def registry_out(row: RegistrySource) -> RegistryOut:
    """The registry as its answer."""
    names = (
        "slug",
        "base_url",
        "allowed_networks",
        "by_clock",
        "disable_deleted",
        "propose_versions",
        "synced_at",
        "pages",
        "skipped",
        "error",
    )
    reading = sources.describe_state(row) in ("reading", "waiting")
    return RegistryOut(
        reading=reading,
        has_token=bool(row.sealed_token),
        **{name: getattr(row, name) for name in names},
    )


def entry_out(row: RegistryEntry) -> RegistryEntryOut:
    """The entry as an element of a list."""
    return RegistryEntryOut(**_facts(row))


def entry_whole(row: RegistryEntry) -> EntryWhole:
    """The entry as its own answer."""
    return EntryWhole(
        **_facts(row), sha256=row.sha256, ways=[_way_out(way) for way in list_local_options(row)]
    )


def _facts(row: RegistryEntry) -> dict[str, Any]:
    names = (
        "name",
        "version",
        "title",
        "description",
        "status",
        "status_message",
        "altered_at",
        "published_at",
    )
    return {name: getattr(row, name) for name in names} | {
        "id": row.pk,
        "registry": row.source.slug,
        "kinds": row.kinds.split(),
        "newest": row.is_latest,
    }


def input_out(asked: Asked) -> InputOut:
    """What is asked for, as its answer."""
    return InputOut(
        key=asked.key,
        place=asked.place,
        name=asked.name,
        description=asked.description,
        required=asked.required,
        secret=asked.secret,
        default=asked.default,
        choices=list(asked.choices),
        many=asked.many,
    )


def _way_out(way: InstallOption) -> WayOut:
    inputs = [input_out(each) for each in way.inputs]
    return WayOut(
        kind=way.kind,
        transport=way.transport,
        identifier=way.identifier,
        version=way.version,
        inputs=inputs,
        problem=way.problem,
    )
