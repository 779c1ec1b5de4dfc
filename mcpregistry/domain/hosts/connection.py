"""What a host has to be told, whatever host it is: which endpoint, as which agent, and the way
there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

BEARER_VARIABLE = "SLIPSNISSE_TOKEN"
_KEY = "slipsnisse"
_KEY_OF_WORKSPACE = "project-slipsnisse"  # no endpoint has an entry of this name
_DEFAULT_ENDPOINT = "default"


@dataclass(frozen=True, slots=True)
class EndpointConnection:
    """Over stdio ``command`` is the whole command line of ``runmcp``, over HTTP ``url`` is the
    endpoint's address.

    ``endpoint`` empty: that of the directory in which the host starts ``runmcp --workspace``.
    ``key`` names the entry in the host's file. ``token`` empty: the host reads it from
    ``SLIPSNISSE_TOKEN``.
    """

    key: str
    endpoint: str
    agent: str
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    url: str = ""
    token: str = field(default="", repr=False)

    @property
    def http(self) -> bool:
        """Whether the host comes over HTTP; else it starts ``runmcp``."""
        return bool(self.url)


def make_entry_name(endpoint: str) -> str:
    """The name of an endpoint's entry: short, because hosts put it before the name of each tool.
    Empty: see ``EndpointConnection``."""
    if not endpoint:
        return _KEY_OF_WORKSPACE
    return _KEY if endpoint == _DEFAULT_ENDPOINT else f"{_KEY}-{endpoint}"


def build_command_line(python: str, manage: str, endpoint: str, agent: str) -> tuple[str, ...]:
    """The command that a host starts; both paths are absolute, for it may start it anywhere.

    ``endpoint`` empty: that of the directory. ``agent`` may be empty then: that of the directory's
    workspace.
    """
    if not endpoint:
        return (python, manage, "runmcp", "--workspace", *(("--agent", agent) if agent else ()))
    return (python, manage, "runmcp", "--endpoint", endpoint, "--agent", agent)


def read_option(words: Sequence[str], option: str, default: str) -> str:
    """What ``--endpoint`` or ``--agent`` says on such a command line, as the command would take
    it."""
    for at, word in enumerate(words):
        if word == option and at + 1 < len(words):
            return words[at + 1]
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return default
