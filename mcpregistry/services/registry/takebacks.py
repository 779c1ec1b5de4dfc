"""Servers whose entry a registry has taken back, or altered under the same version: told, and switched off where wanted."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from mcpregistry.domain.installs.names import Ecosystem, normal
from mcpregistry.domain.registry.ways import Way, ways
from mcpregistry.models import Install, RegistryEntry, Server
from mcpregistry.models.server import Lifecycle
from mcpregistry.services.records import audit
from mcpregistry.services.servers import lifecycle

log = structlog.get_logger(__name__)


def servers_of(entry: RegistryEntry) -> list[Server]:
    """Servers that run a package of this entry, or lie at its address, wherever they were added from."""
    found: dict[int, Server] = {}
    for way in ways(entry.document):
        found |= {server.pk: server for server in _using(way)}
    return [found[key] for key in sorted(found)]


def deleted(entry: RegistryEntry, *, disable: bool) -> None:
    """The registry says that nobody should use it: spam, malware, or against the law."""
    for server in servers_of(entry):
        _tell("registry.entry_deleted", entry, server, reason=entry.status_message)
        if disable and server.lifecycle != Lifecycle.DISABLED:
            lifecycle.disable_server(server=server, actor=f"registry:{entry.source.slug}")


def altered(entry: RegistryEntry, before: Iterable[Server]) -> None:
    """Its document is another than it was, though a version's should never change. ``before``: who used it."""
    for server in before:
        _tell("registry.entry_altered", entry, server)


def _using(way: Way) -> list[Server]:
    if way.problem:
        return []
    if way.kind == "remote":
        return list(Server.objects.filter(url=way.identifier))
    kind = Ecosystem(way.kind)
    installs = Install.objects.filter(ecosystem=kind, version=way.version, server__isnull=False).select_related(
        "server"
    )
    return [
        each.server for each in installs
        if each.server and normal(kind, each.package) == normal(kind, way.identifier) and each.started_by(each.server.command)
    ]  # fmt: skip


def _tell(kind: str, entry: RegistryEntry, server: Server, **facts: object) -> None:
    audit.record(
        kind=kind, actor=f"registry:{entry.source.slug}", subject=f"server:{server.slug}", entry=entry.name,
        version=entry.version, **facts,
    )  # fmt: skip
    log.warning(kind.replace(".", "_"), server=server.slug, entry=entry.name, version=entry.version)
