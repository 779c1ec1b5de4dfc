"""Newer versions of packages that servers run: where an operator wants that, each becomes a lock that waits for a person."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import structlog

from mcpregistry.domain.errors import Conflict, Denied
from mcpregistry.domain.installs.names import Ecosystem, is_newer, normal
from mcpregistry.domain.registry.entries import Status
from mcpregistry.domain.registry.ways import ways
from mcpregistry.models import Install, RegistryEntry
from mcpregistry.services import installs

log = structlog.get_logger(__name__)

Used = Mapping[tuple[str, str], list[Install]]  # by kind and name of the package


def in_use() -> Used:
    """What servers start now, of all packages that are installed."""
    found: dict[tuple[str, str], list[Install]] = defaultdict(list)
    for each in Install.objects.filter(server__isnull=False, state="installed").select_related("server").defer("lock"):
        if each.server and each.started_by(each.server.command):
            found[each.ecosystem, normal(Ecosystem(each.ecosystem), each.package)].append(each)
    return found


def propose(rows: Iterable[RegistryEntry], used: Used) -> None:
    """Ask for the packages of these entries, where they are newer than what is used; each version once for a server.

    Nothing is installed by it, and no server is changed.
    """
    for row in rows:
        if not used or not row.is_latest or row.status != Status.ACTIVE:
            continue
        for way in ways(row.document):
            if way.kind not in (Ecosystem.NPM, Ecosystem.PYPI) or not way.transport:  # others have no number to go by
                continue
            for each in used.get((way.kind, normal(Ecosystem(way.kind), way.identifier)), ()):
                _ask(each, way.version, actor=f"registry:{row.source.slug}")


def _ask(used: Install, version: str, actor: str) -> None:
    if not is_newer(version, used.version):
        return
    if Install.objects.filter(server=used.server, package=used.package, wanted=version).exists():
        return  # it waits, was declined, or did not work
    try:
        installs.resolve(
            ecosystem=used.ecosystem, package=used.package, version=version, program=used.program, server=used.server,
            actor=actor,
        )  # fmt: skip
    except (Conflict, Denied) as error:  # too many wait: the next reading that shows the entry asks again
        log.warning("version_not_proposed", package=used.package, version=version, reason=str(error))
