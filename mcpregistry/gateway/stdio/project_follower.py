"""Follow the project file of the directory of ``runmcp --workspace``: changes of the file, and its
confirmation."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import structlog
from django.conf import settings
from django.db import DatabaseError

from mcpregistry.calls.engine import Engine
from mcpregistry.db import long_db_call
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.project_files import PROJECT_FILES
from mcpregistry.domain.snapshot_specs import ProjectSpec
from mcpregistry.services.exchange.project_setup import (
    ACTOR,
    list_project_variables,
    set_up_project,
)
from mcpregistry.services.exchange.projects import note_project

log = structlog.get_logger(__name__)

_LOOK_SECONDS = 0.5


def pass_variables(names: Iterable[str]) -> None:
    """Let servers of this process be given these variables of its environment; it serves one
    directory."""
    settings.PASS_ENV = sorted({*settings.PASS_ENV, *names})


class ProjectFollower:
    """Looks at the files of one directory, and sets the servers up as soon as a person has
    confirmed them."""

    def __init__(self, directory: Path, agent: str) -> None:
        self._directory = directory
        self._agent = agent
        self._stamps = self._read_stamps()
        self._tried = ""  # the content whose servers were set up last, while it stays confirmed

    async def run(self, engine: Engine) -> None:
        """Follow until cancelled."""
        while True:
            try:
                await self._check_files(engine)
            except (DatabaseError, SlipsnisseError, OSError) as error:
                log.warning("workspace.not_followed", cause=type(error).__name__)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _check_files(self, engine: Engine) -> None:
        if (stamps := self._read_stamps()) != self._stamps:
            await long_db_call(self._record_files)
            self._stamps = stamps
        project = self._find_project(engine)
        if project is None or not project.is_confirmed:
            self._tried = ""
        elif not project.is_served and self._tried != project.content:
            self._tried = project.content
            await long_db_call(
                lambda: set_up_project(directory=self._directory, environ=os.environ)
            )
            names = await long_db_call(lambda: list_project_variables(project.path))
            pass_variables(names)

    def _record_files(self) -> None:
        note_project(directory=self._directory, agent=self._agent, environ=os.environ, actor=ACTOR)

    def _find_project(self, engine: Engine) -> ProjectSpec | None:
        endpoints = engine.live.current.endpoints.values()
        projects = (each for endpoint in endpoints for each in endpoint.projects)
        return next((each for each in projects if each.directory == str(self._directory)), None)

    def _read_stamps(self) -> list[tuple[str | int, ...]]:
        """What tells of a change in any file or in the permissions of its folder, which reading the
        file checks as well."""
        stamps: list[tuple[str | int, ...]] = []
        for name in PROJECT_FILES:
            with suppress(OSError):
                facts = (self._directory / name).stat()
                times = facts.st_mtime_ns, facts.st_ctime_ns
                stamps.append(
                    (name, *times, facts.st_size, facts.st_ino, facts.st_mode, facts.st_uid)
                )
        for folder in sorted({(self._directory / name).parent for name in PROJECT_FILES}):
            with suppress(OSError):
                facts = folder.stat()
                stamps.append((str(folder), facts.st_mode, facts.st_uid))
        return stamps
