"""The first run: two real servers, an agent and a token, so that an empty site can be used at once.

Everything goes through the ordinary verbs, in the name of "demo": nothing here is a back door. It
happens only on an empty registry, so a second run changes nothing.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.text.display import number_of
from mcpregistry.models import Agent, Endpoint, Server, ServerTest, Tool
from mcpregistry.models.server import Lifecycle, Transport
from mcpregistry.services.access import agents, grants, tokens
from mcpregistry.services.definitions import behaviour, decisions
from mcpregistry.services.policy import rules
from mcpregistry.services.servers import checks
from mcpregistry.services.servers.lifecycle import confirm_launch, save_server

ACTOR = "demo"
FIRST_RUN = "first run"
_PATIENCE = 60.0  # seconds for the worker to test both servers
_LOOK_EVERY = 0.25

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class DemoResult:
    """``token`` of the agent "local" is shown once and never again. ``approved``: tools by
    server."""

    token: str
    approved: dict[str, int]


def set_up_demo(
    *, say: Say, patience: float = _PATIENCE, resume: bool = False
) -> DemoResult | None:
    """Register, test, approve, grant, and say what runs without being asked. None, with nothing
    changed, unless the registry is empty.

    ``say`` gets one line of progress at a time. Needs a running worker; when it takes longer than
    ``patience`` seconds, the servers are left for a person to approve. ``resume`` finishes what an
    interrupted set-up has left: what it made is taken up, what other people made is left alone, and
    the token is a new one.
    """
    if not resume and (Server.objects.exists() or Agent.objects.exists()):
        say("the site already has servers or agents: no demo servers added")
        return None
    made = [_register(slug, command, say) for slug, command in _list_demo_commands(say)]
    servers = [server for server in made if server is not None]
    token = _admit(servers)
    say(f"asking the worker to test: {', '.join(server.slug for server in servers) or 'nothing'}")
    tests = [checks.request_test(server=server, actor=ACTOR) for server in servers]
    approved = {test.server.slug: _approve(test, say) for test in _wait_for_tests(tests, patience)}
    _add_demo_rules(say)
    return DemoResult(token, approved)


def _list_demo_commands(say: Say) -> list[tuple[str, list[str]]]:
    """The demo servers that can work here; says why one cannot."""
    found = []
    for slug, program, arguments in (
        ("time", "mcp-server-time", []),
        ("git", "mcp-server-git", ["--repository", str(settings.BASE_DIR)]),
    ):
        path = _find_program(program)
        if path is None:
            say(f"{slug}: left out, {program} is not installed (it comes with the extra 'demo')")
        elif slug == "git" and not (Path(settings.BASE_DIR) / ".git").exists():
            say(f"{slug}: left out, {settings.BASE_DIR} is not a git repository")
        elif slug == "git" and shutil.which("git") is None:
            say(f"{slug}: left out, git itself is not installed")
        else:
            found.append((slug, [path, *arguments]))
    return found


def _find_program(name: str) -> str | None:
    """Beside the interpreter that runs us: whatever PATH a host or a service gives us."""
    path = Path(sys.executable).parent / name
    return str(path) if path.exists() else None


def _register(slug: str, command: list[str], say: Say) -> Server | None:
    """The confirmed server; None where somebody else's server has that name."""
    server = Server.objects.filter(slug=slug).first()
    if server is None:
        server = Server(slug=slug, transport=Transport.STDIO, command=command, source="demo")
        server = save_server(server=server, actor=ACTOR)
    elif server.source != "demo":
        say(f"{slug}: left out, another server already has this name")
        return None
    if server.lifecycle != Lifecycle.DRAFT:
        return server
    return confirm_launch(server=server, actor=ACTOR, launch_hash=server.launch_hash())


def _admit(servers: list[Server]) -> str:
    """The endpoint "default", and the agent "local" with grants on the servers. Returns its
    token."""
    if not Endpoint.objects.filter(slug="default").exists():
        agents.save_endpoint(endpoint=Endpoint(slug="default"), actor=ACTOR)
    agent = Agent.objects.filter(slug="local").first() or agents.save_agent(
        agent=Agent(slug="local", description="Hosts on this machine."), actor=ACTOR
    )
    # shown to nobody, or we were not here
    for token in agent.tokens.filter(name=FIRST_RUN, revoked_at=None):
        tokens.revoke_token(token=token, actor=ACTOR)
    for server in servers:
        grants.grant_access(agent=agent, server=server, actor=ACTOR)
    return tokens.issue_token(name=FIRST_RUN, actor=ACTOR, agent=agent)[1]


def _wait_for_tests(tests: list[ServerTest], patience: float) -> list[ServerTest]:
    """The tests as they are once all have ended, or once patience has."""
    deadline = time.monotonic() + patience
    while True:
        now = list(
            ServerTest.objects.filter(pk__in=[test.pk for test in tests]).select_related("server")
        )
        open_ones = [test for test in now if test.finished_at is None]
        if not open_ones or time.monotonic() > deadline:
            return now
        time.sleep(_LOOK_EVERY)


def _approve(test: ServerTest, say: Say) -> int:
    """Approve what a passed test found. Returns how many tools."""
    slug = test.server.slug
    if test.verdict == ServerTest.Verdict.PASSED:
        decisions.approve_waiting(server=test.server, actor=ACTOR)
        count = Tool.objects.filter(server=test.server).exclude(pinned=None).count()
        say(f"{slug}: works, {number_of(count, 'tool')} approved")
        _confirm(test.server)
        return count
    if test.finished_at is None:
        say(f"{slug}: the worker has not tested it yet; approve its tools in the admin")
    else:
        say(f"{slug}: the test failed: {test.error}")
    return 0


def _confirm(server: Server) -> None:
    """What these two servers claim of their tools was read and is true; without that, reading would
    ask as well."""
    for tool in server.tools.select_related("server", "pinned"):
        if behaviour.read_claims(tool):
            behaviour.confirm_claims(tool=tool, actor=ACTOR)


def _add_demo_rules(say: Say) -> None:
    """With the starter rules, telling the time and reading the repository run at once; changing it
    asks."""
    try:
        rules.add_starter_rules(actor=ACTOR)
        say("rules: tools that only read run immediately, all others wait for an approval")
    except ConfigInvalid:
        say(
            "rules: none added, because no user can approve calls yet; all calls wait until a user can approve them"
        )
