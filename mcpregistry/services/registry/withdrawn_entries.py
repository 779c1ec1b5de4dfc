"""What becomes of servers and packages whose entry a registry has taken back, or altered under the
same version.

Everything that uses it is told. Switched off is only what surely is meant: a server that was added
from the entry, or that runs its package in that very version. Anybody may publish an entry with
somebody else's address, have it deleted, and would else switch that server off everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import structlog
from django.db.models import Q

from mcpregistry.domain.errors import Conflict
from mcpregistry.domain.installs.names import Ecosystem, normalize_name
from mcpregistry.domain.registry.install_options import read_install_options
from mcpregistry.models import Install, RegistryEntry, Server
from mcpregistry.models.server import Lifecycle, Transport
from mcpregistry.services.installs import requests
from mcpregistry.services.records import audit
from mcpregistry.services.servers import lifecycle

log = structlog.get_logger(__name__)


def list_entry_servers(entry: RegistryEntry) -> list[Server]:
    """Servers that were added from this entry, run a package of it, or lie at its address."""
    found = {server.pk: server for server in entry.servers.all()} if entry.pk else {}
    for way in read_install_options(entry.document):
        if way.kind == "remote" and way.transport:
            found |= {server.pk: server for server in Server.objects.filter(url=way.identifier)}
    for install in _list_entry_packages(entry):
        if install.server and install.is_started_by(install.server.command):
            found[install.server.pk] = install.server
    return [found[key] for key in sorted(found)]


def handle_deleted_entry(entry: RegistryEntry, before: Iterable[Server], *, disable: bool) -> None:
    """The registry says that nobody should use it: spam, malware, or against the law.

    ``before``: who used what its document said until now. Packages that were asked for and that no
    server starts are given up where ``disable``.
    """
    users = {server.pk: server for server in (*before, *list_entry_servers(entry))}
    for server in users.values():
        _tell("registry.entry_deleted", entry, f"server:{server.slug}", reason=entry.status_message)
        if disable and server.lifecycle != Lifecycle.DISABLED and _is_meant(entry, server):
            lifecycle.disable_server(server=server, actor=_name_actor(entry))
    for install in _list_entry_packages(entry) if disable else ():
        with suppress(Conflict):  # a server starts it, or a worker is at it
            requests.remove_install(install=install, actor=_name_actor(entry))


def handle_altered_entry(entry: RegistryEntry, before: Iterable[Server]) -> None:
    """Its document is another than it was, though a version's should never change. ``before``: who
    used it."""
    for server in before:
        _tell("registry.entry_altered", entry, f"server:{server.slug}")


def _is_meant(entry: RegistryEntry, server: Server) -> bool:
    added_from_it = entry.pk is not None and entry.servers.filter(pk=server.pk).exists()
    return server.transport == Transport.STDIO or added_from_it


def _list_entry_packages(entry: RegistryEntry) -> list[Install]:
    """Those of the entry's packages in exactly its versions, at whatever stage."""
    found = []
    for way in read_install_options(entry.document):
        if way.installs and way.transport:
            same = Q(wanted=way.version)  # of a bundle its SHA-256
            if way.kind != Ecosystem.MCPB:
                same = Q(version=way.version) | Q(version="", wanted=way.version)
            rows = (
                Install.objects.filter(same, ecosystem=way.kind)
                .select_related("server")
                .defer("lock")
            )
            kind = Ecosystem(way.kind)
            found += [
                each
                for each in rows
                if normalize_name(kind, each.package) == normalize_name(kind, way.identifier)
            ]
    return found


def _tell(kind: str, entry: RegistryEntry, subject: str, **facts: object) -> None:
    audit.record_entry(
        kind=kind,
        actor=_name_actor(entry),
        subject=subject,
        entry=entry.name,
        version=entry.version,
        **facts,
    )
    log.warning(kind.replace(".", "_"), subject=subject, entry=entry.name, version=entry.version)


def _name_actor(entry: RegistryEntry) -> str:
    return f"registry:{entry.source.slug}"
