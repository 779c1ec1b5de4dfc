"""A throw-away site for measuring: its own var/, one agent, one endpoint, servers under test."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def prepare() -> Path:
    """Make the site's folder and database, and point this process at it. Call before anything of
    Django."""
    var = Path(tempfile.mkdtemp(prefix="slipsnisse-bench-"))
    os.environ |= {"SLIPSNISSE_VAR": str(var), "DJANGO_SETTINGS_MODULE": "controlplane.settings"}
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    return var


def register(
    slug: str,
    listed: list[dict[str, Any]],
    others: dict[str, list[dict[str, Any]]] | None = None,
    **fields: Any,
) -> None:
    """An active server whose listed tools, and ``others`` by kind, are approved and granted to the
    agent 'bench'."""
    from mcpregistry.models import Agent, Endpoint, Grant, Server
    from mcpregistry.services.access import agents, grants
    from mcpregistry.services.definitions import behaviour, decisions, observe
    from mcpregistry.services.servers import lifecycle

    server = lifecycle.save_server(server=Server(slug=slug, **fields), actor="bench")
    server = lifecycle.confirm_launch(
        server=server, actor="bench", launch_hash=server.launch_hash()
    )
    observe.observe(server=server, listed=listed, others=others)
    decisions.approve_waiting(server=server, actor="bench")
    for tool in server.tools.all():
        behaviour.confirm_annotations(
            tool=tool, actor="bench", read_only=True, destructive=False, open_world=False
        )
    agent = Agent.objects.filter(slug="bench").first() or agents.save_agent(
        agent=Agent(slug="bench"), actor="bench"
    )
    grants.save_grant(grant=Grant(agent=agent, server=server, kind=""), actor="bench")
    if not Endpoint.objects.filter(slug="bench").exists():
        agents.save_endpoint(endpoint=Endpoint(slug="bench"), actor="bench")
        _rules()


def _rules() -> None:
    """The starter rules let the tools under test run, after a rule that looks at the arguments of
    every call."""
    from django.contrib.auth.models import User

    from mcpregistry.models import PolicyRule
    from mcpregistry.services.policy import rules

    User.objects.create_superuser("bench")  # the rule that asks needs somebody to ask
    condition = 'has(args.path) && args.path.startsWith("/etc")'
    rules.save_rule(
        rule=PolicyRule(name="Not /etc", outcome="deny", condition=condition), actor="bench"
    )
    rules.add_starter_rules(actor="bench")


def token() -> str:
    from mcpregistry.models import Agent
    from mcpregistry.services.access import tokens

    return tokens.issue_token(name="bench", actor="bench", agent=Agent.objects.get(slug="bench"))[1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def child(argv: list[str], port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A server process that listens on ``port``; ended at the end."""
    process = subprocess.Popen([sys.executable, *argv], cwd=ROOT, env=dict(os.environ))
    try:
        wait_for(port, process)
        yield process
    finally:
        process.terminate()
        process.wait(20)


@contextmanager
def gateway(port: int, *, processes: int = 1, before: str = "") -> Iterator[Gateway]:
    """Web processes on one socket, as `manage.py up` starts them; ``before`` is Python that each
    runs first."""
    os.environ["SLIPSNISSE_LOG_LEVEL"] = "WARNING"
    with socket.create_server(("127.0.0.1", port), backlog=1024) as listener:
        code = f"import sys; {before or 'pass'}\nfrom controlplane.web import main; main()"
        argv = [sys.executable, "-c", code, "--fd", str(listener.fileno())]
        children = [
            subprocess.Popen(
                argv,
                cwd=ROOT,
                env=os.environ | {"SLIPSNISSE_PROCESS": "web"},
                pass_fds=[listener.fileno()],
            )
            for _ in range(processes)
        ]
        try:
            _wait_ready(port, children)
            yield Gateway([child.pid for child in children])
        finally:
            for child in children:
                child.terminate()
            for child in children:
                child.wait(30)


@dataclass(frozen=True)
class Gateway:
    """The web processes under test."""

    pids: list[int]

    @property
    def pid(self) -> int:
        """The first of them, or the only one."""
        return self.pids[0]


def _wait_ready(port: int, children: list[subprocess.Popen[bytes]]) -> None:
    """The socket listens before anybody serves it, so ask; several are given the time that the
    first took, again."""
    began = time.monotonic()
    while time.monotonic() < began + 60:
        if codes := [child.poll() for child in children if child.poll() is not None]:
            raise RuntimeError(f"a web process ended with {codes}")
        try:
            get(f"http://127.0.0.1:{port}/readyz")
        except OSError:
            time.sleep(0.02)
        else:
            time.sleep(time.monotonic() - began if len(children) > 1 else 0)
            return
    raise RuntimeError("the site did not start within 60 seconds")


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise RuntimeError("the server did not start within 60 seconds")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far (Linux: /proc)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_mb(pid: int) -> float:
    """Largest resident size of a process so far, in MB (Linux: /proc)."""
    line = next(
        x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmHWM")
    )
    return int(line.split()[1]) / 1024


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return bytes(answer.read())
