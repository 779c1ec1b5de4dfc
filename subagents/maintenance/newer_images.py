"""Newer container images become changes of their servers that are proposed: each version once for a
server, by the clock."""

from __future__ import annotations

from django.db import transaction

from mcpregistry.domain.registry.entries import Status
from mcpregistry.models import RegistryEntry, Server
from mcpregistry.services.registry import newer_images
from mcpregistry.services.registry.newer_images import Newer
from subagents.domain.maintenance import Kind, Priority
from subagents.maintenance import queue
from subagents.models import MaintenanceRequest


def ask_new() -> list[str]:
    """Ask for the changes that are due; up to some seconds for each. Returns the servers' short
    names."""
    return [
        found.server.slug
        for found in newer_images.list_newer_images()
        if not _was_asked(found) and _ask(found)
    ]


def _was_asked(found: Newer) -> bool:
    """It waits, was declined, or is done."""
    asked = MaintenanceRequest.objects.filter(kind=Kind.MODIFY, server_slug=found.server.slug)
    return asked.filter(params__entry=found.entry.pk).exists()


def _ask(found: Newer) -> bool:
    command = newer_images.build_newer_command(found)
    if command == found.server.command:
        _is_of_it(found)
        return False
    return command is not None and _ask_change(found, command)


@transaction.atomic
def _is_of_it(found: Newer) -> None:
    """The newer version has the same image, so nothing is asked of anybody, and not looked for
    again."""
    server = _lock_unchanged_server(found)
    entry = RegistryEntry.objects.filter(pk=found.entry.pk, status=Status.ACTIVE).first()
    if server is not None and entry is not None:
        newer_images.move_server_to_entry(server, entry)


def _lock_unchanged_server(found: Newer) -> Server | None:
    server = Server.objects.select_for_update(no_key=True).filter(pk=found.server.pk).first()
    return server if server is not None and server.command == found.server.command else None


@transaction.atomic
def _ask_change(found: Newer, command: list[str]) -> bool:
    """Unless another process was quicker, or the server was changed meanwhile."""
    server = _lock_unchanged_server(found)
    if server is None or _was_asked(found):
        return False
    params = {
        "server": server.slug,
        "fields": {"command": command},
        "reason": _reason(found),
        "entry": found.entry.pk,
    }
    queue.ask(
        kind=Kind.MODIFY,
        params=params,
        actor=f"registry:{found.entry.source.slug}",
        priority=Priority.LOW,
    )
    return True


def _reason(found: Newer) -> str:
    said = f'The registry "{found.entry.source.slug}" lists version {found.entry.version} of {found.entry.name}'
    said += f"; the server starts the image of {found.before.version}."
    if found.added:
        said += f" The newer version requires more values: {', '.join(found.added)}. Enter them after you have applied this proposal."
    return said
