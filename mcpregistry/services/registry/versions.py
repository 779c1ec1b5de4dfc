"""Newer versions of packages that servers run: where an operator wants that, each becomes a lock
that waits for a person."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import structlog

from mcpregistry.domain.errors import Conflict, Denied
from mcpregistry.domain.installs.names import Ecosystem, is_newer, normalize_name
from mcpregistry.domain.registry.entries import Status
from mcpregistry.domain.registry.install_options import InstallOption, read_install_options
from mcpregistry.models import Install, RegistryEntry
from mcpregistry.services import installs

log = structlog.get_logger(__name__)

Used = Mapping[tuple[str, str], list[Install]]  # by kind and name of the package


def list_used_versions() -> Used:
    """What servers start now, of all packages that are installed."""
    found: dict[tuple[str, str], list[Install]] = defaultdict(list)
    for each in (
        Install.objects.filter(server__isnull=False, state="installed")
        .select_related("server")
        .defer("lock")
    ):
        if each.server and each.is_started_by(each.server.command):
            found[each.ecosystem, normalize_name(Ecosystem(each.ecosystem), each.package)].append(
                each
            )
    return found


def propose_newer_versions(rows: Iterable[RegistryEntry], used: Used) -> None:
    """Ask for the packages of these entries, where they are newer than what is used; each version
    once for a server.

    Nothing is installed by it, and no server is changed.
    """
    for row in rows:
        if not used or not row.is_latest or row.status != Status.ACTIVE:
            continue
        for way in read_install_options(row.document):
            # others have no number to go by
            if way.kind not in (Ecosystem.NPM, Ecosystem.PYPI) or not way.transport:
                continue
            for each in used.get(
                (way.kind, normalize_name(Ecosystem(way.kind), way.identifier)), ()
            ):
                if is_newer(way.version, each.version):
                    _request_package(each, each.package, way.version, row)
        if any(kind == Ecosystem.MCPB for kind, _ in used):
            _propose_bundles(row, used)


def _propose_bundles(row: RegistryEntry, used: Used) -> None:
    """A bundle has an address and a hash for each version: which are of one kind, the entry's own
    versions say.

    Of an entry with several, for several kinds of machines, the one in the same place.
    """
    bundles = _list_bundle_options(row)
    older = RegistryEntry.objects.filter(source=row.source, name=row.name).exclude(pk=row.pk)
    for before in older.only("version", "document") if bundles else ():
        was = _list_bundle_options(before)
        if len(was) != len(bundles) or not is_newer(row.version, before.version):
            continue
        for old, new in zip(was, bundles, strict=True):
            for each in used.get((Ecosystem.MCPB, old.identifier), ()):
                if each.wanted == old.version != new.version:
                    _request_package(each, new.identifier, new.version, row)


def _list_bundle_options(row: RegistryEntry) -> list[InstallOption]:
    return [
        way
        for way in read_install_options(row.document)
        if way.kind == Ecosystem.MCPB and way.transport and not way.problem
    ]


def _request_package(used: Install, package: str, version: str, row: RegistryEntry) -> None:
    if Install.objects.filter(server=used.server, package=package, wanted=version).exists():
        return  # it waits, was declined, or did not work
    bundle = used.ecosystem == Ecosystem.MCPB
    try:
        installs.request_install(
            ecosystem=used.ecosystem,
            package=package,
            version=version,
            program=used.program,
            server=used.server,
            networks=row.source.allowed_networks if bundle else (),
            actor=f"registry:{row.source.slug}",
        )
    except (Conflict, Denied) as error:
        # too many wait: the next reading that shows the entry asks again
        log.warning("version_not_proposed", package=package, version=version, reason=str(error))
