"""Configuration files of directories: ``runmcp --workspace`` saves their content, and a person
confirms it or takes that back.

Nothing of a file runs before a person has confirmed exactly its content. If the file changes, the
servers whose entries are still as they were confirmed stay; all others stop, and new ones wait for
the next confirmation.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from mcpregistry.domain.caller_rights import Rights, deny_all_rights
from mcpregistry.domain.errors import Conflict
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Agent, Endpoint, ProjectFile, Server, Workspace
from mcpregistry.services.access import agents
from mcpregistry.services.exchange.project_files import (
    ProjectFileUnusable,
    ProjectReading,
    read_project,
)
from mcpregistry.services.exchange.rows import find_source_file
from mcpregistry.services.exchange.trusted_files import make_endpoint_slug
from mcpregistry.services.records import audit
from mcpregistry.services.servers.lifecycle import withdraw_launch

# What a person needs to confirm a file: its servers are started, get variables, and are granted to
# an agent.
MAY_CONFIRM = (
    "mcpregistry.confirm_server",
    "mcpregistry.add_grant",
    "mcpregistry.change_configuration",
)
_COMPARED = ("path", "endpoint_slug", "agent_slug", "content", "summary", "variables", "problem")


def note_project(
    *, directory: Path, agent: str, environ: Mapping[str, str], actor: str
) -> ProjectFile | None:
    """Read the file of a directory (``real_directory``) and write down what has changed. Starts
    nothing.

    ``agent``: as whom hosts act there; empty for that of the workspace that holds the directory,
    otherwise ``local``. Returns None for a directory that is not known and has no file. Raises
    Conflict if its file was confirmed for another agent.
    """
    reading = None
    problem = ""
    try:
        reading = read_project(directory, environ)
    except ProjectFileUnusable as error:
        problem = str(error)
    known = ProjectFile.objects.filter(directory=str(directory)).exists()
    if reading is None and not problem and not known:
        return None
    with transaction.atomic(), audit.collect_entries():
        place = _find_endpoint_and_agent(directory, agent)
        row, _ = ProjectFile.objects.get_or_create(
            directory=str(directory),
            defaults={"endpoint_slug": place[0], "agent_slug": place[1], "seen_at": timezone.now()},
        )
        row = ProjectFile.objects.select_for_update().get(pk=row.pk)
        if row.confirmed:
            _check_agent(row, agent)
            # what was confirmed for these is not given to others
            place = row.endpoint_slug, row.agent_slug
        if _make_rows(*place, directory, actor) and row.confirmed:
            # what was granted is gone with the endpoint or the agent
            take_back_project(project=row, actor=actor)
            row.refresh_from_db()
        before = {name: getattr(row, name) for name in _COMPARED}
        row.endpoint_slug, row.agent_slug = place
        _take_over(row, reading, problem)
        _save_changes(row, before, actor)
    return row


def _find_endpoint_and_agent(directory: Path, agent: str) -> tuple[str, str]:
    """Endpoint and agent: a workspace of exactly this directory decides; one further up only names
    the agent."""
    above = [str(directory), *map(str, directory.parents)]
    found = {
        row.directory.rstrip("/") or "/": row
        for row in Workspace.objects.filter(
            directory__in=[*above, *(f"{name}/" for name in above)]
        ).select_related("endpoint", "agent")
    }
    own = found.get(str(directory))
    nearest = next((found[name] for name in above if name in found), None)
    endpoint = own.endpoint.slug if own else make_endpoint_slug(directory)
    return endpoint, agent or (nearest.agent.slug if nearest else "local")


def _check_agent(row: ProjectFile, agent: str) -> None:
    if agent not in ("", row.agent_slug):
        raise Conflict(
            f"The file of {row.directory} was confirmed for the agent '{row.agent_slug}', not for '{agent}'.",
            remedy="Leave out --agent, or first revoke the confirmation with `manage.py confirmworkspace --take-back`.",
        )


def _make_rows(endpoint: str, agent: str, directory: Path, actor: str) -> bool:
    """Make the endpoint, which lists nothing so far, and the agent, if they are missing. Returns
    whether one was missing."""
    is_missing = False
    if not Endpoint.objects.filter(slug=endpoint).exists():
        made = Endpoint(
            slug=endpoint,
            name=show_invisible_characters(directory.name, 100),
            scope=Endpoint.Scope.LISTED,
        )
        agents.save_endpoint(endpoint=made, actor=actor)
        is_missing = True
    if not Agent.objects.filter(slug=agent).exists():
        agents.save_agent(agent=Agent(slug=agent), actor=actor)
        is_missing = True
    return is_missing


def _take_over(row: ProjectFile, reading: ProjectReading | None, problem: str) -> None:
    """Write what was read into the unsaved row."""
    if reading is None:
        row.content = ""
        row.summary = []
        row.variables = {}
        row.entries = {}
        row.problem = (
            problem
            or "The configuration file of the directory was deleted, or declares no servers."
        )
        return
    if row.content != reading.content:
        row.problem = ""
        row.entries = dict(reading.entries)
    row.path = str(reading.path)
    row.content = reading.content
    row.summary = list(reading.summary)
    row.variables = dict(reading.variables)


def _save_changes(row: ProjectFile, before: Mapping[str, Any], actor: str) -> None:
    """Save the row if it has changed, and stop the servers whose entries differ from the confirmed
    ones."""
    if all(getattr(row, name) == value for name, value in before.items()):
        return
    if row.content != before["content"]:
        if row.confirmed:
            row.served = ""
            keep = _find_confirmed_keys(row) if row.path == before["path"] else ()
            _stop_servers(row, str(before["path"]), keep=keep, actor=actor)
        audit.record_entry(
            kind="project_file.changed",
            actor=actor,
            subject=f"directory:{row.directory}",
            content=row.content,
            servers=sorted(row.entries),
            confirmed=bool(row.content) and row.content == row.confirmed,
        )
    row.seen_at = timezone.now()
    row.save()


def _find_confirmed_keys(row: ProjectFile) -> set[str]:
    """Keys of the servers that the file declares now exactly as they were confirmed."""
    confirmed = row.confirmed_entries
    return {key for key, entry in row.entries.items() if confirmed.get(key) == entry}


def list_project_servers(path: str) -> list[Server]:
    """The servers that the file of this path has brought for its directory."""
    return [
        server for server in Server.objects.exclude(only_on="") if find_source_file(server) == path
    ]


def _stop_servers(row: ProjectFile, path: str, *, keep: Collection[str], actor: str) -> None:
    for server in list_project_servers(path):
        if server.extra.get("in_file") not in keep:
            withdraw_launch(server=server, actor=actor)


def confirm_project(
    *, project: ProjectFile, shown: str, actor: str, user: User | None = None
) -> ProjectFile:
    """Confirm the content whose hash a person has looked at (``shown``).

    Raises Conflict if the file has changed. A running host in the directory then starts the
    servers, or the next one does.
    """
    check_unchanged(project, actor)
    with transaction.atomic():
        row = ProjectFile.objects.select_for_update().get(pk=project.pk)
        if not row.content:
            raise Conflict(
                f"The file cannot be confirmed: {row.problem}", remedy="Correct the file first."
            )
        if shown != row.content:  # of two files, the first characters can be made the same
            raise Conflict(
                "The file was changed after you opened it.",
                remedy="Review the file again, then confirm it.",
            )
        if row.content == row.confirmed:
            return row
        row.offered = [key for key in row.offered if key in _find_confirmed_keys(row)]
        row.confirmed = row.content
        row.confirmed_at = timezone.now()
        row.confirmed_as = actor
        row.confirmed_by = user
        row.confirmed_entries = row.entries
        row.served = ""
        row.problem = ""
        row.save()
        audit.record_entry(
            kind="project_file.confirmed",
            actor=actor,
            subject=f"directory:{row.directory}",
            content=row.content,
            file=row.path,
            servers=sorted(row.entries),
        )
    return row


def check_unchanged(project: ProjectFile, actor: str) -> None:
    """Look at the file once more, where this process can read it, and write down what has
    changed."""
    directory = Path(project.directory)
    try:
        reading = read_project(directory, project.variables)
    except (ProjectFileUnusable, OSError):
        return  # the file may be on another machine: the saved content decides
    if reading is not None and reading.content != project.content:
        note_project(
            directory=directory, agent=project.agent_slug, environ=project.variables, actor=actor
        )


@transaction.atomic
def take_back_project(*, project: ProjectFile, actor: str) -> None:
    """Take the confirmation back: the servers of the file stop and are drafts, and the file waits
    again."""
    row = ProjectFile.objects.select_for_update().get(pk=project.pk)
    with audit.collect_entries():
        _stop_servers(row, row.path, keep=(), actor=actor)
        audit.record_entry(
            kind="project_file.taken_back",
            actor=actor,
            subject=f"directory:{row.directory}",
            content=row.confirmed,
        )
    row.confirmed = ""
    row.confirmed_at = None
    row.confirmed_as = ""
    row.confirmed_by = None
    row.confirmed_entries = {}
    row.offered = []
    row.served = ""
    row.problem = ""
    row.save()


@transaction.atomic
def delete_project(*, project: ProjectFile, actor: str, rights: Rights = deny_all_rights) -> None:
    """Forget a directory. Its servers stay as drafts, with the decisions about their tools.

    Raises Conflict as ``end_dependents`` where others have made records about its endpoint.
    """
    take_back_project(project=project, actor=actor)
    for endpoint in Endpoint.objects.filter(slug=make_endpoint_slug(Path(project.directory))):
        agents.delete_endpoint(endpoint=endpoint, actor=actor, rights=rights)
    audit.record_entry(
        kind="project_file.deleted", actor=actor, subject=f"directory:{project.directory}"
    )
    project.delete()


def get_shown_facts(project: ProjectFile) -> dict[str, Any]:
    """The facts that a person sees before the confirmation."""
    return {
        "directory": project.directory,
        "file": project.path,
        "servers": list(project.summary),
        "variables": dict(project.variables),
        "content": project.content,
        "problem": project.problem,
    }


def list_full_launches(project: ProjectFile) -> list[str]:
    """Commands and addresses in full, of the servers in whose line something is masked; only for
    who may confirm them."""
    launches = ((key, entry["launch"]) for key, entry in sorted(project.entries.items()))
    return [
        f"{key}: {launch}"
        for key, launch in launches
        if not any(launch in line for line in project.summary)
    ]


def list_full_environments(project: ProjectFile) -> list[str]:
    """The values of the servers' environments that are masked in their lines; only for who may
    confirm them."""
    found = ((key, entry.get("environment", "")) for key, entry in sorted(project.entries.items()))
    return [f"{key}: {environment}" for key, environment in found if environment]
