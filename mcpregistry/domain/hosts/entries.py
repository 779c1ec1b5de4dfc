"""How each host spells the entry of one MCP server in its file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.hosts.connection import BEARER_VARIABLE, EndpointConnection

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Spelling:
    """The names that a host gives to the parts of an entry.

    ``url`` empty: its file knows no remote servers. ``variable`` is how it names a variable of its
    environment, with ``{}`` for the name; empty if it cannot. ``whole_command``: command and
    arguments are one list. ``always`` stands in every entry; ``at_first`` too, until somebody says
    otherwise.
    """

    url: str = "url"
    variable: str = "${{{}}}"
    env: str = "env"
    stdio_type: str = ""
    http_type: str = ""
    whole_command: bool = False
    always: Mapping[str, Any] = field(default_factory=dict)
    at_first: Mapping[str, Any] = field(default_factory=dict)

    def entry(self, connection: EndpointConnection) -> Entry:
        """What stands in the file for this connection. Raises ``ConfigInvalid`` where the file
        cannot say it."""
        if connection.http:
            return self._build_remote(connection)
        return (
            self._build_type_key(self.stdio_type)
            | self._build_command(connection.command)
            | self._build_env(connection)
            | self._build_fixed_keys()
        )

    def read(self, entry: Mapping[str, Any]) -> tuple[tuple[str, ...], dict[str, str], str, str]:
        """Command line, environment, address and ``Authorization`` header of an entry that somebody
        has written."""
        command = entry.get("command")
        env = entry.get(self.env)
        if isinstance(command, list):
            words = command
        elif command:
            words = [command, *_list_or_empty(entry.get("args"))]
        else:
            words = []
        headers: Mapping[str, Any] = next(
            (
                entry[name]
                for name in ("headers", "http_headers")
                if isinstance(entry.get(name), dict)
            ),
            {},
        )
        url = next(
            (entry[name] for name in (self.url, "url") if isinstance(entry.get(name), str)), ""
        )
        texts = (
            {str(name): str(value) for name, value in env.items()} if isinstance(env, dict) else {}
        )
        return tuple(map(str, words)), texts, url, str(headers.get("Authorization", ""))

    def keys(self) -> frozenset[str]:
        """What we may write in an entry; all else there is somebody else's, and is kept."""
        return frozenset(
            {
                "type",
                "command",
                "args",
                self.env,
                self.url,
                "url",
                "headers",
                *self.always,
                *self.at_first,
            }
            - {""}
        )

    def _build_remote(self, connection: EndpointConnection) -> Entry:
        if not self.url:
            raise ConfigInvalid(
                "The configuration file of this host can only list local programs.",
                remedy="Choose stdio, and run the host on the same machine as this site.",
            )
        return (
            self._build_type_key(self.http_type)
            | {self.url: connection.url}
            | self._build_headers(connection)
            | self._build_fixed_keys()
        )

    def _build_headers(self, connection: EndpointConnection) -> Entry:
        token = connection.token or self.variable.format(BEARER_VARIABLE)
        if not token:
            raise ConfigInvalid(
                "This host cannot read the token from an environment variable.",
                remedy="Without --in-environment, `manage.py connect` writes the token itself into the file of the host.",
            )
        return {"headers": {"Authorization": f"Bearer {token}"}}

    def _build_command(self, words: tuple[str, ...]) -> Entry:
        return (
            {"command": [*words]}
            if self.whole_command
            else {"command": words[0], "args": [*words[1:]]}
        )

    def _build_env(self, connection: EndpointConnection) -> Entry:
        return {self.env: dict(connection.env)} if connection.env else {}

    def _build_fixed_keys(self) -> Entry:
        return {**self.always, **self.at_first}

    def _build_type_key(self, kind: str) -> Entry:
        return {"type": kind} if kind else {}


@dataclass(frozen=True, slots=True)
class CodexSpelling(Spelling):
    """Codex names the variable instead of writing a header with a placeholder."""

    def keys(self) -> frozenset[str]:
        """Those of the others, and the two ways of Codex to sign in."""
        return Spelling.keys(self) - {"headers", "type"} | {"bearer_token_env_var", "http_headers"}

    def _build_headers(self, connection: EndpointConnection) -> Entry:
        if connection.token:
            return {"http_headers": {"Authorization": f"Bearer {connection.token}"}}
        return {"bearer_token_env_var": BEARER_VARIABLE}


def _list_or_empty(value: object) -> list[object]:
    return value if isinstance(value, list) else []
