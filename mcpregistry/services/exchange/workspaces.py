"""Projects of a file as workspaces: the folder, and an endpoint that lists the servers of the
project.

An endpoint only narrows what an agent is granted, so a workspace grants nothing. A workspace that
exists keeps its endpoint and agent; if that endpoint lists servers, the project's are added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.formats.keys import make_slug
from mcpregistry.models import Agent, Endpoint, Grant, Server, Workspace
from mcpregistry.services.access.agents import save_endpoint, save_workspace
from mcpregistry.services.access.grants import save_grant
from mcpregistry.services.exchange.sections import ImportChange

if TYPE_CHECKING:
    from mcpregistry.domain.formats.document import Project
    from mcpregistry.domain.formats.notes import Action

KIND = "workspace"
EVERY = "all"
# What a person needs to make workspaces of projects: the endpoint of each lists servers by grants.
MAY_MAKE = ("mcpregistry.add_workspace", "mcpregistry.add_endpoint", "mcpregistry.add_grant")
Note = Callable[["Action", str, str, str], None]


@dataclass(frozen=True, slots=True)
class WorkspaceChoice:
    """The projects that become workspaces, by directory or ``all``, and the agent that hosts act as
    there."""

    directories: frozenset[str] = frozenset()
    agent: str = "local"
    may_be_missing: bool = False

    def includes(self, directory: str) -> bool:
        """Whether this project was chosen."""
        return EVERY in self.directories or directory in self.directories


@dataclass(frozen=True, slots=True)
class WorkspaceOffer:
    """A project and the workspace that it can become. ``exists``: the folder is a workspace
    already."""

    directory: str
    endpoint: str
    agent: str
    servers: tuple[str, ...]
    exists: bool = False


def take_projects(
    projects: Iterable[Project],
    rows: Mapping[str, Server],
    choice: WorkspaceChoice,
    *,
    actor: str,
    note: Note,
    changed: Callable[[ImportChange], None],
) -> tuple[WorkspaceOffer, ...]:
    """Make workspaces of the chosen projects, and return what every project can become.

    ``rows``: the servers of the file by the keys that the projects name them by. One that was left
    out is not among them.
    """
    offers = []
    places = {}
    taken = set(Endpoint.objects.values_list("slug", flat=True))
    for project in projects:
        offer = _make_offer(project, rows, choice.agent, taken)
        if offer is not None and offer.directory not in places:
            taken.add(offer.endpoint)
            offers.append(offer)
            places[offer.directory] = project.at
    _check_known(choice, places, note)
    for offer in offers:
        if choice.includes(offer.directory):
            try:
                changed(_make(offer, actor))
            except ConfigInvalid as error:
                note("refused", places[offer.directory], error.message, error.remedy)
    return tuple(offers)


def _make_offer(
    project: Project, rows: Mapping[str, Server], agent: str, taken: set[str]
) -> WorkspaceOffer | None:
    """None if no server of its own was imported."""
    if not any(key in rows for key in project.own):
        return None
    servers = tuple(rows[key].slug for key in (*project.own, *project.shared) if key in rows)
    old = (
        Workspace.objects.filter(directory=project.directory)
        .select_related("endpoint", "agent")
        .first()
    )
    if old is not None:
        return WorkspaceOffer(
            project.directory, old.endpoint.slug, old.agent.slug, servers, exists=True
        )
    return WorkspaceOffer(project.directory, _free_name(project.directory, taken), agent, servers)


def _free_name(directory: str, taken: set[str]) -> str:
    name = make_slug(PurePosixPath(directory).name) or "project"
    number = 2
    free = name
    while free in taken:
        free = f"{name[:58]}-{number}"
        number = number + 1
    return free


def _check_known(choice: WorkspaceChoice, places: Mapping[str, str], note: Note) -> None:
    for directory in sorted(choice.directories - {EVERY} - places.keys()):
        note(
            "left out" if choice.may_be_missing else "refused",
            "",
            f'This file has no project "{directory[:200]}" with servers.',
            f"Choose from: {', '.join([*places][:20])}."
            if places
            else "Import the file without --project. It has no projects with servers.",
        )


def _make(offer: WorkspaceOffer, actor: str) -> ImportChange:
    """Make the workspace, or add to the list of the one that exists."""
    endpoint = Endpoint.objects.filter(slug=offer.endpoint).first() if offer.exists else None
    before = _list_granted_servers(endpoint)
    if endpoint is None:
        endpoint = _make_workspace(offer, actor)
    if endpoint.scope == Endpoint.Scope.LISTED:
        _list_servers(endpoint, offer.servers, actor)
    after = _list_granted_servers(endpoint)
    if not offer.exists:
        return ImportChange(
            offer.directory, "created", {}, _describe_workspace(offer, after), kind=KIND
        )
    return ImportChange(
        offer.directory,
        "unchanged" if before == after else "changed",
        _describe_workspace(offer, before),
        _describe_workspace(offer, after),
        kind=KIND,
    )


def _make_workspace(offer: WorkspaceOffer, actor: str) -> Endpoint:
    agent = Agent.objects.filter(slug=offer.agent).first()
    if agent is None:
        raise ConfigInvalid(
            error_texts.say_not_found("agent", offer.agent),
            remedy="Enter the name of an existing agent. Hosts that start in the directories act as this agent.",
        )
    endpoint = Endpoint(slug=offer.endpoint, scope=Endpoint.Scope.LISTED)
    save_endpoint(endpoint=endpoint, actor=actor)
    save_workspace(
        workspace=Workspace(directory=offer.directory, endpoint=endpoint, agent=agent), actor=actor
    )
    return endpoint


def _list_servers(endpoint: Endpoint, slugs: Iterable[str], actor: str) -> None:
    """List everything that these servers offer, where no row of the endpoint is about the server
    yet."""
    there = set(endpoint.grants.filter(server__isnull=False).values_list("server__slug", flat=True))
    for server in Server.objects.filter(slug__in={*slugs} - there).order_by("slug"):
        save_grant(grant=Grant(endpoint=endpoint, server=server, kind=""), actor=actor)


def _list_granted_servers(endpoint: Endpoint | None) -> list[str]:
    if endpoint is None:
        return []
    rows = endpoint.grants.filter(server__isnull=False)
    return sorted(set(rows.values_list("server__slug", flat=True)))


def _describe_workspace(offer: WorkspaceOffer, servers: list[str]) -> dict[str, object]:
    return {"endpoint": offer.endpoint, "agent": offer.agent, "servers": servers}
