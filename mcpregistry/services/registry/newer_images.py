"""Newer versions of container images that servers start: found in what registries list, where an
operator wants that.

An image has no lock and is installed by nobody here: what is proposed is the change of the server's
command, its digest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import structlog

from mcpregistry.domain.errors import Conflict, SlipsnisseError
from mcpregistry.domain.installs.names import is_newer
from mcpregistry.domain.registry import containers
from mcpregistry.domain.registry.entries import Status
from mcpregistry.domain.registry.install_options import InstallOption, read_install_options
from mcpregistry.models import RegistryEntry, Server
from mcpregistry.services.registry.images import fetch_current_digest

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Newer:
    """A server whose image has a newer version. ``added``: what that wants to be given and this one
    did not."""

    server: Server
    entry: RegistryEntry
    before: RegistryEntry
    way: InstallOption
    added: tuple[str, ...]


def list_newer_images() -> list[Newer]:
    """The servers that were added from an entry of which their registry lists a newer version;
    nobody is asked anything."""
    return [found for before in _iterate_used_entries() for found in _iterate_newer_of(before)]


def _iterate_used_entries() -> Iterator[RegistryEntry]:
    used = RegistryEntry.objects.filter(source__propose_versions=True, servers__isnull=False)
    yield from used.select_related("source").order_by("pk").distinct()


def _iterate_newer_of(before: RegistryEntry) -> Iterator[Newer]:
    same = RegistryEntry.objects.filter(
        source=before.source, name=before.name, is_latest=True, status=Status.ACTIVE
    )
    entry = same.select_related("source").first()
    if entry is None or not is_newer(entry.version, before.version):
        return
    images = _map_images(entry)
    were = _map_images(before)
    for server in before.servers.order_by("pk"):
        image = containers.find_started_image(server.command)
        if image and (way := images.get(image[0])):
            was = {each.key for each in (were.get(image[0]) or way).inputs}
            added = tuple(each.key for each in way.inputs if each.required and each.key not in was)
            yield Newer(
                server,
                entry,
                before,
                way,
                tuple(key for key in added if key != containers.DIGEST_KEY),
            )


def _map_images(entry: RegistryEntry) -> dict[str, InstallOption]:
    """What of the entry is an image that can be taken, by its name."""
    found = (
        way
        for way in read_install_options(entry.document)
        if way.kind == containers.KIND and way.transport and not way.problem
    )
    return {containers.parse_image_name(way.identifier): way for way in found}


def build_newer_command(newer: Newer) -> list[str] | None:
    """The command with the newer image's digest, asked of the image's registry where the entry
    names a tag alone.

    The same command: it is the same image. None: nobody can say now. Up to some seconds, not in an
    event loop or a transaction.
    """
    try:
        digest = containers.check_image(newer.way.identifier) or fetch_current_digest(
            newer.entry, newer.way
        )
    except SlipsnisseError as error:  # asked again at the next look
        log.warning(
            "image_not_proposed",
            entry=newer.entry.name,
            version=newer.entry.version,
            reason=str(error),
        )
        return None
    return containers.replace_digest(newer.server.command, digest)


def lock_entry_for(entry_id: int, command: Sequence[str]) -> RegistryEntry:
    """The entry for which this command was proposed, held: a reading that takes it back waits.
    Raises Conflict where it stands for that image no longer.
    """
    rows = RegistryEntry.objects.select_for_update(of=("self",)).select_related("source")
    entry = rows.filter(pk=entry_id, status=Status.ACTIVE).first()
    if entry is None:
        raise Conflict(
            "The registry has withdrawn or deprecated this version.", remedy="Decline the proposal."
        )
    name, digest = containers.find_started_image(command) or ("", "")
    way = _map_images(entry).get(name)
    if way is None or containers.check_image(way.identifier) not in ("", digest):
        raise Conflict(
            "The registry now lists another image for this version.", remedy="Decline the proposal."
        )
    return entry


def move_server_to_entry(server: Server, entry: RegistryEntry) -> None:
    """The server is one of this version of the entry now: what becomes of the version before is not
    its matter any more."""
    for other in RegistryEntry.objects.filter(source=entry.source, name=entry.name, servers=server):
        other.servers.remove(server)
    entry.servers.add(server)
