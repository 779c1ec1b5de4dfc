"""Set up the servers of a confirmed project file. ``runmcp --workspace`` does so, because servers
get its environment.

This happens once for each confirmation. Later decisions are kept: disabled servers, withdrawn
grants, rejected definitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from django.db import transaction

from mcpregistry.domain.caller_rights import grant_all_rights
from mcpregistry.domain.definitions.findings import Severity
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.models import Agent, Endpoint, Grant, ProjectFile, Server, Tool
from mcpregistry.models.server import Lifecycle
from mcpregistry.services.access.grants import save_grant, withdraw_grant
from mcpregistry.services.access.scopes import allow_file_variables, grant_variables
from mcpregistry.services.definitions import decisions
from mcpregistry.services.exchange.importing import ImportOutcome, import_file
from mcpregistry.services.exchange.project_files import (
    ProjectFileUnusable,
    ProjectReading,
    read_project,
    select_foreign_servers,
)
from mcpregistry.services.exchange.projects import list_project_servers
from mcpregistry.services.exchange.trusted_files import (
    allow_passed_variables,
    ask_servers,
    hold_setup_lock,
    list_server_variables,
)
from mcpregistry.services.records import audit
from mcpregistry.services.servers.lifecycle import (
    confirm_launch,
    delete_server,
    save_server,
    withdraw_launch,
)

ACTOR = "runmcp"


@dataclass
class _Result:
    """The result of setting up a file: its problems, whether all its servers work, and what was
    granted."""

    problems: list[str]
    is_complete: bool = False
    offered: list[str] = field(default_factory=list)  # keys of the entries that were offered now
    grants: list[int] = field(default_factory=list)  # those that were made now


def set_up_project(*, directory: Path, environ: Mapping[str, str]) -> None:
    """Start the servers of the directory's file once, approve what they offer, and grant them to
    the agent.

    Does nothing unless a person has confirmed the present content of the file. Errors are saved as
    the problem of the file. A new server that does not work is deleted, so that the next start can
    try it again.
    """
    with hold_setup_lock():
        row = ProjectFile.objects.filter(directory=str(directory)).first()
        if row is None or row.state != "starting":
            return
        try:
            reading = read_project(directory, environ)
        except ProjectFileUnusable:
            return  # whoever follows the file notes that
        if reading is None or reading.content != row.confirmed:
            return
        _note_end(row, reading, _set_up(row, reading))


def _set_up(row: ProjectFile, reading: ProjectReading) -> _Result:
    outcome = _import(reading, row)
    if outcome.refused:
        return _Result([str(note) for note in outcome.refused])
    new = {
        change.slug
        for change in outcome.changes
        if change.kind == "server" and change.action == "created"
    }
    named = [change.slug for change in outcome.changes if change.kind == "server"]
    servers = list(
        Server.objects.filter(slug__in=named).exclude(lifecycle=Lifecycle.DISABLED).order_by("slug")
    )
    failed = _confirm(servers, row)
    working = [server for server in servers if server.slug not in failed]
    with allow_passed_variables(list_server_variables(working)):
        failed |= ask_servers(working)
    _delete(slug for slug in failed if slug in new)
    working = [server for server in working if server.slug not in failed]
    offered_now = [server for server in working if server.extra.get("in_file") not in row.offered]
    result = _Result([*failed.values()], is_complete=not failed)
    _offer_servers(offered_now, row, result)
    return result


def _import(reading: ProjectReading, row: ProjectFile) -> ImportOutcome:
    with allow_file_variables():
        return import_file(
            raw=reading.raw,
            path=str(reading.path),
            actor=ACTOR,
            format_name=reading.format,
            on_conflict="own",
            variables=reading.variables,
            folders=reading.folders,
            narrowed=select_foreign_servers,
            # None: confirmed by a command
            rights=row.confirmed_by.has_perm if row.confirmed_by else grant_all_rights,
        )


def _confirm(servers: Iterable[Server], row: ProjectFile) -> dict[str, str]:
    """Confirm the launches as the person has confirmed the file. Returns what was refused, by the
    server's slug."""
    failed = {}
    for server in servers:
        if any(who != ACTOR for who in server.launch_by or ()):
            failed[server.slug] = (
                f"The server '{server.slug}' was changed on this site after its last confirmation. Confirm the launch again on the page of the server."
            )
            continue
        try:
            with transaction.atomic():
                if server.only_on != row.endpoint_slug:
                    server.only_on = row.endpoint_slug
                    save_server(server=server, actor=ACTOR)
                if server.lifecycle != Lifecycle.ACTIVE or not server.launch_confirmed:
                    confirm_launch(
                        server=server,
                        actor=row.confirmed_as,
                        launch_hash=server.launch_hash(),
                        user=row.confirmed_by,
                    )
                    grant_variables(server.texts(), f"server:{server.slug}", row.confirmed_as)
                    # it may be another program now
                    Server.objects.filter(pk=server.pk).update(refreshed_at=None)
        except SlipsnisseError as error:
            failed[server.slug] = f"The server '{server.slug}' cannot be started: {error}"
    return failed


def _delete(slugs: Iterable[str]) -> None:
    for server in Server.objects.filter(slug__in=list(slugs)):
        # made a moment ago, by this start
        delete_server(server=server, actor=ACTOR, rights=grant_all_rights)


@transaction.atomic
def _offer_servers(servers: list[Server], row: ProjectFile, result: _Result) -> None:
    """Approve new definitions that are not suspicious, and grant the servers to the agent of the
    directory on its endpoint.

    This happens once after the confirmation of an entry: tools that a server offers later wait for
    a person.
    """
    agent = Agent.objects.filter(slug=row.agent_slug).first()
    endpoint = Endpoint.objects.filter(slug=row.endpoint_slug).first()
    if agent is None or endpoint is None:
        result.problems.append(
            "The agent or the endpoint of the directory was deleted. Start the host again."
        )
        return
    with audit.collect_entries():
        waiting = (
            Tool.offers.waiting()
            .filter(server__in=servers, pinned=None)
            .select_related("latest", "server")
        )
        new = [(tool, tool.latest) for tool in waiting if tool.latest]
        clean = [definition for _, definition in new if definition.severity < Severity.ALARM]
        decisions.approve_all(definitions=clean, actor=row.confirmed_as, user=row.confirmed_by)
        for server in servers:
            _grant(Grant(agent=agent, server=server, kind=""), row, result)
            if endpoint.scope == Endpoint.Scope.LISTED:
                _grant(Grant(endpoint=endpoint, server=server, kind=""), row, result)
        result.offered = [str(server.extra.get("in_file")) for server in servers]
        row.offered = sorted({*row.offered, *result.offered})
        ProjectFile.objects.filter(pk=row.pk, confirmed=row.confirmed).update(offered=row.offered)
    suspicious = [f"{tool}" for tool, definition in new if definition.severity >= Severity.ALARM]
    if suspicious:
        result.problems.append(
            f"On the page Definitions, a user must review the suspicious definitions of these tools: {', '.join(suspicious)}."
        )


def _grant(grant: Grant, row: ProjectFile, result: _Result) -> None:
    rows = Grant.objects.filter(
        agent=grant.agent, endpoint=grant.endpoint, server=grant.server, kind="", uri=""
    )
    if not rows.exists():
        grant.note = f"File of {row.directory}"[:500]
        result.grants.append(
            save_grant(grant=grant, actor=row.confirmed_as, user=row.confirmed_by).pk
        )


def _note_end(row: ProjectFile, reading: ProjectReading, result: _Result) -> None:
    """Write down how it ended. If the confirmation was taken back in the meantime, all that was set
    up is undone."""
    with transaction.atomic():
        now = ProjectFile.objects.select_for_update().filter(pk=row.pk).first()
        if now is None or (now.content, now.confirmed) != (reading.content, reading.content):
            _undo(now, reading, result)
            return
        now.problem = "\n".join(result.problems)
        now.served = reading.content if result.is_complete else ""
        now.save()
        audit.record_entry(
            kind="project_file.served",
            actor=ACTOR,
            subject=f"directory:{row.directory}",
            content=reading.content,
            complete=result.is_complete,
        )


def _undo(row: ProjectFile | None, reading: ProjectReading, result: _Result) -> None:
    """Stop the servers, and withdraw what was granted now, so that the next confirmation grants it
    again."""
    with audit.collect_entries():
        for server in list_project_servers(str(reading.path)):
            withdraw_launch(server=server, actor=ACTOR)
        for grant in Grant.objects.filter(pk__in=result.grants):
            withdraw_grant(grant=grant, actor=ACTOR)
    if row is not None:
        row.offered = [key for key in row.offered if key not in result.offered]
        row.save(update_fields=["offered"])


def list_project_variables(path: str) -> frozenset[str]:
    """Names of the variables of the host's environment that the running servers of the file refer
    to."""
    return list_server_variables(
        [server for server in list_project_servers(path) if server.lifecycle == Lifecycle.ACTIVE]
    )
