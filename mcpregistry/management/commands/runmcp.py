"""``manage.py runmcp``: the MCP server process that a host starts over stdio."""

from __future__ import annotations

import asyncio
import os
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, connections

from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.snapshot import Snapshot
from mcpregistry.gateway.stdio.preload import claim_pipe
from mcpregistry.management.site_check import must_be_a_site
from mcpregistry.services.configuration.snapshot import load_snapshot
from mcpregistry.services.upkeep import completeness

if TYPE_CHECKING:
    from mcpregistry.gateway.caller_identity import Caller
    from mcpregistry.gateway.stdio.project_follower import ProjectFollower
    from mcpregistry.services.exchange.trusted_files import Served


class Command(BaseCommand):
    """Serves one endpoint as one agent to the host at standard input and output."""

    help = "Serves an endpoint to one host over stdio. Hosts start this command; `manage.py connect` configures them."
    # they would load every app of the site while the host waits
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--endpoint",
            help="Endpoint to serve. Default: the endpoint of the workspace, or default if the directory is not a workspace.",
        )
        parser.add_argument(
            "--agent",
            help="Agent that the host acts as. Default: the agent of the workspace, or local if the directory is not a workspace.",
        )
        parser.add_argument(
            "--config",
            metavar="FILE",
            help="Serve the expert tools of this Slipsnisse file (YAML or JSON).",
        )
        parser.add_argument(
            "--workspace",
            action="store_true",
            help="Serve the MCP servers of the project file in the directory, after a user has confirmed the file.",
        )
        parser.add_argument(
            "--conversation",
            metavar="ID",
            default="",
            help="ID of an open conversation of the agent. All calls are added to this conversation.",
        )
        parser.add_argument(
            "--cwd",
            default=os.getcwd(),
            help="Directory of the project. Default: the current directory.",
        )
        parser.add_argument(
            "--era",
            choices=["auto", "legacy"],
            default="auto",
            help="Protocol versions that the host can use. auto: all versions. legacy: only versions up to 2025-11-25, for hosts that "
            "mix older and newer versions on one connection. Default: auto.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        must_be_a_site()
        preload = claim_pipe(settings.VAR_DIR, sys.argv[2:])
        try:
            completeness.require_complete()
            served = self._serve_file(options) if options["config"] else None
            if served is not None:
                preload.set_variables(served.variables)
                options |= {"endpoint": served.endpoint, "agent": served.agent}
            project = self._read_project(options) if options["workspace"] else None
            endpoint, agent = choose_identity(
                load_snapshot(tools=()), options["endpoint"], options["agent"], options["cwd"]
            )
            caller = _caller(agent, endpoint, options["conversation"])
        except completeness.IncompleteDatabaseError as error:
            raise CommandError(str(error)) from None
        except DatabaseError as error:
            raise CommandError(
                "The database cannot be read. Check DATABASE_URL, and run `manage.py migrate` (or `make run`) once."
            ) from error
        # what serves asks in threads of its own, and this one's pages take 3 MB
        connections.close_all()
        from mcpregistry.gateway.stdio.stdio_server import serve_stdio

        with _run_worker(served):
            asyncio.run(serve_stdio(preload, caller, era=options["era"], project=project))

    def _read_project(self, options: dict[str, Any]) -> ProjectFollower | None:
        """Read the directory's file and save its state. None of its servers is started here."""
        if options["endpoint"] or options["config"]:
            raise CommandError(
                "--workspace cannot be combined with --endpoint or --config, because the directory determines the endpoint. "
                "To use --endpoint or --config, add a separate entry to the host."
            )
        from mcpregistry.gateway.stdio.project_follower import ProjectFollower, pass_variables
        from mcpregistry.services.exchange.project_files import resolve_directory
        from mcpregistry.services.exchange.project_setup import list_project_variables
        from mcpregistry.services.exchange.projects import note_project

        agent = options["agent"] or ""
        try:
            directory = resolve_directory(options["cwd"])
            # before the file is read, so that no change is missed
            follower = ProjectFollower(directory, agent)
            row = note_project(directory=directory, agent=agent, environ=os.environ, actor="runmcp")
        except SlipsnisseError as error:
            raise CommandError(str(error)) from None
        if row is None:
            self.stderr.write(
                f"{directory} does not contain a configuration file with MCP servers. The default endpoint is served."
            )
            return None
        if row.problem or row.state == "waiting":
            self.stderr.write(
                row.problem
                or f"{row.path} waits for confirmation. Run `manage.py confirmworkspace {directory}`."
            )
        options |= {"endpoint": row.endpoint_slug, "agent": row.agent_slug}
        pass_variables(list_project_variables(row.path))
        return follower

    def _serve_file(self, options: dict[str, Any]) -> Served:
        """The file is as good as the word of whoever wrote it on this command line."""
        from mcpregistry.services.exchange.trusted_files import FileRefusedError, serve_file

        try:
            served = serve_file(
                path=Path(options["config"]),
                agent=options["agent"] or "local",
                endpoint=options["endpoint"] or "",
                actor="runmcp",
                environ=os.environ,
            )
        except FileRefusedError as error:
            for problem in error.problems:
                self.stderr.write(problem)
            raise CommandError(
                f"{options['config']} is not served. The problems are listed above."
            ) from None
        except SlipsnisseError as error:
            raise CommandError(f"{options['config']} is not served: {error}") from None
        for note in served.notes:
            self.stderr.write(note)
        return served


def _caller(agent: str, endpoint: str, conversation: str) -> Caller:
    """Raises ``CommandError`` for a conversation that is not the agent's, or has ended."""
    from mcpregistry.gateway.caller_identity import Caller

    if conversation:
        from mcpregistry.services.conversations.conversation_scope import enter_conversation

        try:
            enter_conversation(conversation, agent)
        except SlipsnisseError as error:
            raise CommandError(str(error)) from None
    return Caller(agent, endpoint, "stdio", conversation)


@contextmanager
def _run_worker(served: Served | None) -> Iterator[None]:
    """Expert tools need a worker; what serves a file brings its own where the site has none
    running."""
    if served is None:
        yield
        return
    from mcpregistry.gateway.stdio.own_worker import OwnWorker, list_unseen_variables

    ours = sorted(name for name in served.variables if name in os.environ)
    if unseen := list_unseen_variables(ours):
        names = ",".join(unseen)
        raise CommandError(
            f"The file refers to the variables {names}, but the worker of the site does not have these variables. "
            f"Set them and SLIPSNISSE_PASS_ENV={names} for the site, then restart the site. Or enter the keys in the admin."
        )
    worker = OwnWorker(served.variables)
    worker.start()
    try:
        yield
    finally:
        worker.stop()


def choose_identity(
    snapshot: Snapshot, endpoint: str | None, agent: str | None, cwd: str
) -> tuple[str, str]:
    """The endpoint and agent to serve: as named, else by the workspace, else "default" and "local".

    Raises ``CommandError`` that lists what there is.
    """
    workspace = snapshot.find_workspace(os.path.abspath(cwd))
    endpoint = endpoint or (workspace.endpoint if workspace else "default")
    agent = agent or (workspace.agent if workspace else "local")
    for kind, name, known in (
        ("endpoint", endpoint, snapshot.endpoints),
        ("agent", agent, snapshot.agents),
    ):
        if name not in known:
            there = ", ".join(sorted(known)) or "none"
            raise CommandError(
                f"{error_texts.say_not_found(f'enabled {kind}', name)} Available: {there}. Choose one with --{kind}."
            )
    return endpoint, agent
