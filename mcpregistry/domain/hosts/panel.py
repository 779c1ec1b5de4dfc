"""All that a person has to know to connect one host, ready to be shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.hosts.connection import EndpointConnection
from mcpregistry.domain.hosts.entry_file import build_new_file
from mcpregistry.domain.hosts.programs import PROGRAMS, Program
from mcpregistry.domain.hosts.table import HOSTS, HostProgram

CHOICES = {
    "Hosts": {slug: host.title for slug, host in HOSTS.items()},
    "Your own program": {slug: p.title for slug, p in PROGRAMS.items()},
}

PLACEHOLDER = "PUT-THE-TOKEN-HERE"  # for hosts whose file cannot name a variable


@dataclass(frozen=True, slots=True)
class Panel:
    """``text`` goes into the file, whose path is given for each system. ``refused``: why this host
    cannot go this way.

    ``link`` and ``command`` have the host add the entry itself; ``written``: whether ``manage.py
    connect`` can.
    """

    slug: str
    title: str
    text: str = field(default="", repr=False)
    files: Mapping[str, str] = field(default_factory=dict)
    project: str = ""
    link: str = ""
    command: str = ""
    after: str = ""
    refused: str = ""
    written: bool = False
    section: str = ""


def build_panel(slug: str, connection: EndpointConnection) -> Panel:
    """What is shown for the host or program of this name. Raises ``KeyError`` for a name that is in
    neither table."""
    if slug in PROGRAMS:
        return _build_program_panel(PROGRAMS[slug], connection)
    host = HOSTS[slug]
    if connection.http and not connection.token and not host.spelling.variable:
        connection = replace(connection, token=PLACEHOLDER)
    try:
        text = build_new_file(host, connection.key, host.entry(connection))
    except SlipsnisseError as error:
        return Panel(slug, host.title, refused=str(error))
    return _build_host_panel(host, connection, text)


def _build_host_panel(host: HostProgram, connection: EndpointConnection, text: str) -> Panel:
    link = host.link(connection) if host.link else ""
    command = host.command(connection) if host.command else ""
    return Panel(
        host.slug,
        host.title,
        text,
        host.places.describe_paths(),
        host.project,
        link,
        command,
        host.after,
        written=True,
        section=host.section,
    )


def _build_program_panel(program: Program, connection: EndpointConnection) -> Panel:
    try:
        return Panel(
            program.slug,
            program.title,
            program.text(connection),
            {"File": program.file},
            after=program.after,
        )
    except SlipsnisseError as error:
        return Panel(program.slug, program.title, refused=str(error))
