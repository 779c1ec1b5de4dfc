"""Serve headends on ports of their own, without the rest of the site."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from subagents.leased.turn_queue import LIMITS
from subagents.models import Headend, HeadendKind

_FLAGS = {
    "api": HeadendKind.REST,
    "openai": HeadendKind.OPENAI,
    "anthropic": HeadendKind.ANTHROPIC,
    "mcp": HeadendKind.MCP,
}


class Command(BaseCommand):
    """``manage.py runheadends``."""

    help = "Serves headends on separate ports. Requires a running worker (`manage.py up`)."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "headends",
            nargs="*",
            metavar="NAME[=PORT]",
            help="Names of the headends to serve, each with its own port. Without names, all headends are served on the port of --port.",
        )
        parser.add_argument(
            "--host",
            default="127.0.0.1",
            help="Address to listen on. Default: 127.0.0.1, which only this machine can reach.",
        )
        parser.add_argument(
            "--port",
            type=_port,
            default=8010,
            help="Port of the headends that are named without a port. Default: 8010.",
        )
        for flag, kind in _FLAGS.items():
            parser.add_argument(
                f"--{flag}-concurrency",
                type=_number,
                metavar="N",
                help=f"Maximum number of runs that each {kind.label.split(':')[0]} headend has at the same time. Default: the limit of the headend.",
            )

    def handle(self, *args: Any, **options: Any) -> None:
        ports = parse_ports(options["headends"], options["port"])
        LIMITS.update(
            {kind: n for flag, kind in _FLAGS.items() if (n := options[f"{flag}_concurrency"])}
        )
        sockets = [_bind_socket(options["host"], port) for port in ports]
        for port, names in ports.items():
            host = f"[{options['host']}]" if ":" in options["host"] else options["host"]
            self.stdout.write(f"http://{host}:{port}  {', '.join(sorted(names)) or 'all headends'}")
        serve(sockets, ports)


def parse_ports(named: list[str], port: int) -> dict[int, frozenset[str]]:
    """The names of headends by their ports; an empty set means all. Raises CommandError for an
    unknown name."""
    if not named:
        return {port: frozenset()}
    known = set(Headend.objects.filter(enabled=True).values_list("slug", flat=True))
    found: dict[int, set[str]] = {}
    for each in named:
        name, _, own = each.partition("=")
        if name not in known:
            raise CommandError(
                f'No enabled headend named "{name}". Available headends: {", ".join(sorted(known)) or "none"}.'
            )
        found.setdefault(_port(own) if own else port, set()).add(name)
    return {each: frozenset(names) for each, names in found.items()}


def serve(sockets: list[socket.socket], ports: Mapping[int, frozenset[str]]) -> None:
    """Answer on these sockets until told to stop."""
    import uvicorn

    from controlplane.asgi import HeadendShell
    from controlplane.request_guard import Guarded
    from controlplane.web import config_for

    uvicorn.Server(config_for(Guarded(HeadendShell(ports)))).run(sockets=sockets)


def _bind_socket(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
    except OSError as error:
        raise CommandError(
            f"Port {port} at {host} cannot be used: {error.strerror}. Choose another port with NAME=PORT or --port."
        ) from None


def _port(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) < 65_536:
        raise CommandError(f'"{text}" is not a valid port. Use a number from 1 to 65535.')
    return int(text)


def _number(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) <= 1_000:
        raise CommandError(f'"{text}" is not a valid number of runs. Use a number from 1 to 1000.')
    return int(text)
