"""One site for all hosts. Each host walks the way once, and the tests look at what came of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import StringIO
from typing import Any
from unittest.mock import patch

import psutil
import pytest
from django.conf import settings
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.db import connections
from django.test import override_settings

from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import ApprovalRequest, Invocation, PolicyRule, Server
from mcpregistry.services.approvals import votes
from tests.conftest import child_env
from tests.e2e.hosts.models import Models, Play, models_running
from tests.e2e.hosts.programs import PROGRAMS, Program
from tests.fakes.stage import Stage, Web, folder, fresh, listed, web
from tests.fakes.targets import SERVERS
from tests.origin import Origin
from tests.processes import alive, command_line
from tests.waiting import HANG_LIMIT, eventually, pauses

# what the entries are called in a host's file
PIPED = "slipsnisse"
ASKED = "slipsnisse-web"
NAMED = "slipsnisse-brief"
WAYS: dict[str, dict[str, Any]] = {
    PIPED: {},
    ASKED: {"endpoint": "web", "http": True},
    NAMED: {"endpoint": "brief", "http": True, "in_environment": True},
}
NEVER = -999  # stands for the exit code of a program that did not end
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_PLACES = ("CODEX_HOME", "CLAUDE_CONFIG_DIR", "COPILOT_HOME", "XDG_CONFIG_HOME")


@pytest.fixture(scope="module")
def stage(django_db_setup: Origin, django_db_blocker: Any) -> Iterator[Stage]:
    """An empty site whose rows live as long as these tests."""
    with django_db_blocker.unblock():
        try:
            yield Stage(child_env())
        finally:
            django_db_setup.restore()


@pytest.fixture(scope="module")
def models() -> Iterator[Models]:
    with models_running() as running:
        yield running


@pytest.fixture(scope="module")
def site(stage: Stage) -> Iterator[Web]:
    """Three endpoints that list everything: hosts start one over stdio, and reach two over HTTP, of
    which one holds calls briefly."""
    for slug in ("default", "web"):
        stage.endpoint(slug)
    stage.endpoint("brief", hold_seconds=1)
    with web(stage.env) as running, _default_database():
        yield running


@contextmanager
def _default_database() -> Iterator[None]:
    """What a host starts knows of the site what stands in the host's file: its folder, where the
    database has its usual name."""
    usual = settings.VAR_DIR / "slipsnisse.sqlite3"
    usual.symlink_to(connections["default"].settings_dict["NAME"])
    try:
        yield
    finally:
        usual.unlink()


@pytest.fixture(scope="module")
def servers(stage: Stage, site: Web) -> list[Server]:
    """An echo of which people are asked about some tools, about one at the host too, and a prompt
    and a resource."""
    tools = [
        *listed("echo", annotations={"readOnlyHint": True}),
        *listed("guard", "confirm", "later", "never"),
    ]
    echo = stage.fake("echo", tools)
    for tool in echo.tools.exclude(name="echo"):
        mine = tool.name == "confirm"
        outcome = "deny" if tool.name == "never" else "ask"
        PolicyRule.objects.create(
            name=tool.name, outcome=outcome, tool=tool, requester_may_confirm=mine
        )
    python = [sys.executable, "-S"]
    words = stage.real(
        "words",
        "review",
        command=[*python, str(SERVERS / "prompts.py")],
        connect_timeout=HANG_LIMIT,
    )
    docs = stage.real(
        "docs",
        "docs://guide",
        command=[*python, str(SERVERS / "resources.py")],
        connect_timeout=HANG_LIMIT,
    )
    return [echo, words, docs]


@pytest.fixture(scope="module")
def approver(servers: list[Server]) -> User:
    user = User.objects.create(username="ann", password="!")
    user.groups.add(Group.objects.get(name="approver"))
    return user


@dataclass
class Said:
    """How a program ended. ``left``: its processes that did not end with it, and were killed."""

    code: int
    text: str
    left: list[str] = field(default_factory=list)


class Walk:
    """One host with a home of its own, where `manage.py connect` has put three entries into its
    file."""

    def __init__(self, program: Program, approver: User, token: str) -> None:
        self.program = program
        self.approver = approver
        self.token = token
        self.home = folder()
        self.project = self.home / "project"
        for place in (self.project, self.home / "tmp"):
            place.mkdir()
        self.agent = program.slug

    def connect(self, site: Web, model: str) -> None:
        self.program.settings(self.home, model)
        for options in WAYS.values():
            self.manage(site, **options)

    def manage(self, site: Web, **options: Any) -> str:
        """What `manage.py connect` says to somebody who lives in this home."""
        places = {name: value for name, value in os.environ.items() if name not in _PLACES} | {
            "HOME": str(self.home)
        }
        said = StringIO()
        with (
            patch.dict(os.environ, places, clear=True),
            override_settings(SITE_URL=f"http://{site.address}"),
        ):
            call_command("connect", self.program.slug, agent=self.agent, stdout=said, **options)
        return said.getvalue()

    def run(self, words: Sequence[str], model: str) -> Said:
        """The program, until it ends; whatever it has held meanwhile is approved."""
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                self.program.command(words),
                cwd=self.project,
                env=self._environment(model),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                code = self._watched(process)
                left = self._left()
            finally:
                for each in self._processes():
                    with suppress(psutil.NoSuchProcess):
                        each.kill()
                process.wait()
            output.seek(0)
            return Said(code, _COLOURS.sub("", output.read()), left)

    def _environment(self, model: str) -> dict[str, str]:
        return self.program.environment(self.home, model) | {"SLIPSNISSE_TOKEN": self.token}

    def _watched(self, process: subprocess.Popen[bytes]) -> int:
        deadline = time.monotonic() + 4 * HANG_LIMIT
        for pause in pauses():
            with suppress(subprocess.TimeoutExpired):
                return process.wait(pause)
            self._approve()
            if time.monotonic() > deadline:
                return NEVER
        raise AssertionError

    def _approve(self) -> None:
        """What somebody waits for, or was told to ask for later. While the host's person is asked
        nobody waits, or with a question."""
        waiting = ApprovalRequest.objects.filter(
            call__agent_slug=self.agent, call__state=InvocationState.PENDING
        )
        later = waiting.filter(call__tool_name="later", waiting_as="away")
        now = (
            waiting.exclude(call__tool_name="later")
            .exclude(waiting_as="question")
            .exclude(seats=None)
        )
        for request in (*later, *now):
            votes.vote(request_id=request.pk, user=self.approver, approve=True, via="web")

    def _left(self) -> list[str]:
        with suppress(AssertionError):
            eventually(lambda: not self._processes())
        return [*map(command_line, alive(self._processes()))]

    def _processes(self) -> list[psutil.Process]:
        """All that were started in this home, whoever their parent is by now."""
        return [each for each in psutil.process_iter() if _home_of(each) == str(self.home)]


def _home_of(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return process.environ().get("HOME", "")
    return ""


@dataclass
class Walked:
    """What came of it. ``marks``: the argument of each call, by how it was made."""

    program: Program
    play: Play
    listing: Said | None
    turn: Said
    marks: dict[str, str]
    known: str  # what `connect --list` says once the host has run
    removed: list[str]  # what `connect --remove` says of each entry

    def call(self, way: str) -> Invocation:
        return self.calls(arguments__contains=self.marks[way])

    def told(self, way: str, *, last: bool = False) -> str:
        """What the model read of that call; ``last``: of the second one, where it called twice."""
        made = [
            at
            for at, (_, arguments) in enumerate(self.play.calls)
            if arguments.get("mark") == self.marks[way]
        ]
        assert len(self.play.results) == len(self.play.calls), self.turn.text
        return self.play.results[made[-1 if last else 0]].text

    def calls(self, **filters: Any) -> Invocation:
        """The one of these."""
        return Invocation.objects.get(agent_slug=self.program.slug, **filters)


class Walks:
    """Each host walks once, whichever of its tests comes first."""

    def __init__(
        self, stage: Stage, site: Web, servers: list[Server], approver: User, models: Models
    ) -> None:
        self._stage = stage
        self._site = site
        self._servers = servers
        self._approver = approver
        self._models = models
        self._walked: dict[str, Walked] = {}

    def of(self, slug: str) -> Walked:
        if slug not in self._walked:
            self._walked[slug] = self._walk(PROGRAMS[slug])
        return self._walked[slug]

    def _walk(self, program: Program) -> Walked:
        """It is connected, looks at its servers, and calls in one turn: over stdio, over HTTP, and
        what is held."""
        marks = {
            way: fresh(way)
            for way in ("piped", "asked", "named", "held", "confirmed", "later", "never")
        }
        model, play = self._models.play(*_calls(program, marks))
        walk = Walk(program, self._approver, self._stage.agent(program.slug, *self._servers))
        walk.connect(self._site, model)
        # it has seen the token in the host's file too
        self._site.wait_known(self._stage.agent(fresh("marker")))
        listing = walk.run(program.lists, model) if program.lists else None
        turn = walk.run(program.first(ASKED, "words__review", "a.py"), model)
        known = walk.manage(self._site, list=True)
        removed = [
            walk.manage(self._site, remove=True, endpoint=options.get("endpoint", "default"))
            for options in WAYS.values()
        ]
        return Walked(program, play, listing, turn, marks, known, removed)


def _calls(program: Program, marks: dict[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for key, tool, way in (
        (PIPED, "echo", "piped"),
        (ASKED, "echo", "asked"),
        (NAMED, "echo", "named"),
        (PIPED, "guard", "held"),
        (ASKED, "confirm", "confirmed"),
        (ASKED, "never", "never"),
        (NAMED, "later", "later"),
        (NAMED, "later", "later"),
    ):
        yield program.call(key, f"echo__{tool}"), {"mark": marks[way]}
    if program.reads:
        name, server = program.reads
        yield name, ({server: ASKED} if server else {}) | {"uri": "docs://guide"}


@pytest.fixture(scope="module")
def walks(stage: Stage, site: Web, servers: list[Server], approver: User, models: Models) -> Walks:
    return Walks(stage, site, servers, approver, models)


@pytest.fixture
def walked(request: pytest.FixtureRequest, walks: Walks) -> Walked:
    """Of the host in the test's parameter."""
    return walks.of(request.param)
