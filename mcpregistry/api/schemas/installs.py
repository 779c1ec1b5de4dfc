"""Installed packages: what is asked for, what its lock says, what became of it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, cast

from ninja import Schema
from pydantic import Field

from mcpregistry.api.schemas.basics import Slug, StrictInput, Text, cap_text
from mcpregistry.api.schemas.registry import InputOut, input_out
from mcpregistry.models import Install
from mcpregistry.services.installs import offers, requests
from mcpregistry.services.registry import bundle_settings

EcosystemName = Literal["npm", "pypi", "mcpb"]
StateName = Literal[
    "requested", "resolving", "waiting", "approved", "installing", "installed", "failed", "removed"
]


class InstallNew(StrictInput):
    """A package. Without a version the latest is used; without a server a new one is created."""

    ecosystem: EcosystemName
    package: Annotated[
        Text,
        Field(
            max_length=500,
            description="Name of the package. For a bundle (mcpb), its download address.",
        ),
    ]
    version: Annotated[
        Text,
        Field(max_length=64, description="Exact version. For a bundle, the SHA-256 of its file."),
    ] = ""
    program: Annotated[
        Text,
        Field(
            max_length=100,
            description="The program of the package that is the server, if there are several.",
        ),
    ] = ""
    server: Slug | None = None
    slug: Annotated[Text, Field(max_length=63, description="Short name of the new server.")] = ""


class InstallApproval(StrictInput):
    """The SHA-256 of exactly the lock that was shown."""

    lock_sha256: Annotated[Text, Field(min_length=64, max_length=64)]


class InstallUse(StrictInput):
    """The server that uses the package. If null, the server of the request, or a new one."""

    server: Slug | None = None
    values: Annotated[
        dict[Text, Text] | None,
        Field(
            max_length=100,
            description="Values for the `inputs` of a bundle, by key. If null, the values of its server are kept.",
        ),
    ] = None


class PackageOut(Schema):
    """One package of a lock."""

    name: str
    version: str
    licence: str
    hashes: list[str]


class InstallOut(Schema):
    """One installation; ``size`` in bytes."""

    id: int
    server: str | None
    ecosystem: EcosystemName
    package: str
    version: str
    state: StateName
    reason: str
    lock_sha256: str
    command: list[str] = Field(
        description="Command that starts the program. For a bundle that is not installed yet, this is the "
        "command of its manifest, in which ${__dirname} stands for the folder of the bundle."
    )
    size: int | None
    files: int | None
    requested_by: str
    approved_at: datetime | None
    created_at: datetime


class ToolChange(Schema):
    """A tool that would change. ``fields``: the changed parts of its definition; ``suspicious``:
    findings of the scanner.
    """

    name: str
    fields: list[str]
    suspicious: list[str]


class DefinitionChanges(Schema):
    """What would change in the offers of the server, read in a sandbox before the package is used.
    At most 50 of each kind.
    """

    added: list[ToolChange]
    changed: list[ToolChange]
    removed: list[str]
    instructions_changed: bool
    same: int


class InstallWhole(InstallOut):
    """A package with its lock, and how the lock and the definitions differ from what the server
    starts now."""

    packages: list[PackageOut]
    changes: list[str]
    inputs: list[InputOut] = Field(description="Values that a bundle asks for.")
    definitions: DefinitionChanges | None = Field(
        description="Changes of the definitions. Null if they are not "
        "known, or if the package is not installed or already in use."
    )
    definitions_error: str = Field(
        description="Why the definitions cannot be read before the package is used."
    )


def install_out(install: Install) -> InstallOut:
    """The row as its answer."""
    return InstallOut(**_facts(install))  # type: ignore[arg-type]


def install_whole(install: Install) -> InstallWhole:
    """The row with its lock."""
    lock = requests.read_lock(install)
    packages = [
        PackageOut(
            name=each.name,
            version=each.version,
            licence=install.licences.get(each.name, ""),
            hashes=[*each.hashes],
        )
        for each in (lock.packages if lock else ())
    ]
    way = bundle_settings.find_bundle_option(install)
    changes = [str(change) for change in requests.list_lock_changes(install)]
    return InstallWhole(
        **_facts(install),  # type: ignore[arg-type]
        packages=packages,
        changes=changes,
        definitions=_definitions(install),
        definitions_error=install.not_offered,
        inputs=[input_out(each) for each in (way.inputs if way else ())],
    )


def _definitions(install: Install) -> DefinitionChanges | None:
    if (found := offers.compare_offers(install)) is None:
        return None
    return DefinitionChanges(
        added=[_tool(each) for each in found.added],
        changed=[_tool(each) for each in found.changed],
        removed=[cap_text(name, 500) for name in found.removed],
        instructions_changed=bool(found.instructions),
        same=found.same,
    )


def _tool(changed: offers.Changed) -> ToolChange:
    fields = [each.field for each in changed.changes]
    suspicious = [each.why for each in changed.findings]
    return ToolChange(name=changed.name, fields=fields, suspicious=suspicious)


def _facts(install: Install) -> dict[str, object]:
    return {
        "id": install.id,
        "server": install.server.slug if install.server else None,
        "ecosystem": cast(EcosystemName, install.ecosystem),
        "package": install.package,
        "version": install.version or install.wanted,
        "state": cast(StateName, install.state),
        "reason": cap_text(install.reason),
        "lock_sha256": install.lock_sha256,
        "command": requests.build_command(install),
        "size": install.size,
        "files": install.files,
        "requested_by": install.requested_by,
        "approved_at": install.approved_at,
        "created_at": install.created_at,
    }
