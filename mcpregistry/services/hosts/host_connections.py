"""The way from a host to this site: the command line and environment that it starts, or the address
that it asks."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from django.conf import settings

from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import NotFound
from mcpregistry.domain.hosts.connection import (
    EndpointConnection,
    build_command_line,
    make_entry_name,
)
from mcpregistry.models import Agent, Endpoint
from mcpregistry.queries.setup_state import agents_of_hosts

VAR = "SLIPSNISSE_VAR"
# Without these `runmcp` is another site, or none. Only the names of files go into a host's file,
# never a secret.
_SECRET = (
    "DATABASE_URL",
    "SLIPSNISSE_KEYS",
    "SLIPSNISSE_SECRET_KEY",
    "SLIPSNISSE_AUDIT_KEYS",
    "CELERY_BROKER_URL",
)
_PLAIN = ("SLIPSNISSE_HOLD", "SLIPSNISSE_STDIO")
_URL = "SLIPSNISSE_URL"
_NAMED = (*(f"{name}_FILE" for name in _SECRET), *_PLAIN)
# in an entry these are ours: one that is not needed any more leads astray
OWN = frozenset({VAR, _URL, *_NAMED})


def build_connection(
    *, endpoint: str, agent: str, http: bool, token: str = "", key: str = ""
) -> EndpointConnection:
    """How a host reaches this endpoint as this agent. ``token`` empty: it reads one from its
    environment.

    ``endpoint`` empty: the host serves the project file of each directory (``runmcp --workspace``),
    over stdio.
    """
    key = key or make_entry_name(endpoint)
    if http:
        return EndpointConnection(
            key, endpoint, agent, url=build_endpoint_url(endpoint), token=token
        )
    return EndpointConnection(
        key,
        endpoint,
        agent,
        build_command_line(sys.executable, str(find_program()), endpoint, agent),
        build_environment(),
    )


def find_program() -> Path:
    """The file that a host starts; an absolute path."""
    return Path(settings.BASE_DIR) / "manage.py"


def build_endpoint_url(endpoint: str) -> str:
    """Where hosts reach an endpoint over HTTP."""
    return f"{settings.SITE_URL}/mcp/{endpoint}"


def build_environment() -> dict[str, str]:
    """The variables that a host must give to ``runmcp``, so that it is this site whatever the host
    was started with."""
    found = {VAR: str(settings.VAR_DIR)} | {
        name: os.environ[name] for name in _NAMED if os.environ.get(name)
    }
    kept = settings.KEPT_ADDRESS == settings.SITE_URL  # what `runmcp` takes by itself
    return found if kept else found | {_URL: settings.SITE_URL}


def list_withheld_variables() -> list[str]:
    """Names of variables that ``runmcp`` needs and that no file of a host may hold, because they
    are secrets."""
    return [name for name in _SECRET if os.environ.get(name) and not os.environ.get(f"{name}_FILE")]


def build_connect_command(host: str, connection: EndpointConnection) -> str:
    """The line that has ``manage.py connect`` write the entry, on the machine of this site."""
    words = [
        "env",
        f"{VAR}={settings.VAR_DIR}",
        sys.executable,
        str(find_program()),
        "connect",
        host,
    ]
    words += ["--endpoint", connection.endpoint] if connection.endpoint else ["--workspace"]
    words += ["--agent", connection.agent] if connection.agent else []
    words += ["--http"] if connection.http else []
    return shlex.join(words)


def check_names(*, endpoint: str, agent: str) -> None:
    """Raise ``NotFound``, which lists what there is, for a name that hosts could not use. An empty
    one is decided by the directory."""
    endpoints = {row.slug: row for row in Endpoint.objects.filter(enabled=True)}
    agents = {row.slug: row for row in agents_of_hosts()}
    if endpoint and endpoint not in endpoints:
        raise _make_not_found("endpoint", endpoint, endpoints)
    if agent and agent not in agents:
        raise _make_not_found("agent", agent, agents)


def _make_not_found(
    kind: str, name: str, there: dict[str, Endpoint] | dict[str, Agent]
) -> NotFound:
    listed = ", ".join(sorted(there))
    return NotFound(
        error_texts.say_not_found(f"enabled {kind}", name),
        remedy=f"Choose an existing {kind} with --{kind}. Available: {listed}."
        if listed
        else f"First enable an {kind}, or add one.",
    )
