"""What two processes say to each other. The first frame on a connection is ``{"call": RelayedCall}`` or ``{"word": RelayedWord}``.

A call: the owner of the session's connection answers ``taken`` or ``not_owner``. The other process sends ``go``: before it, the owner does
nothing. Then the owner sends events until the call has ended, each an object with one key: ``sent``, ``progress``, ``log``, ``ask``, and
at last ``result`` or ``error``. Answers to ``ask`` come back as ``answer``.

A word: something for a host while none of its calls is out, sent to the process that serves the host. It answers ``result`` or ``unanswered``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from mcpregistry.domain import errors
from mcpregistry.domain.calls.forwarding import Forwarding
from mcpregistry.domain.errors import DownstreamError, SlipsnisseError


class RelayedHost(msgspec.Struct, frozen=True):
    """A ``Forwarding`` without its callbacks; see there. ``can_ask``: it can be asked while the call waits.

    ``channel``: the name of its channel at the process that serves it, and ``address`` where this process takes words; empty without one.
    """

    capabilities: dict[str, Any]
    answers: dict[str, Any]
    can_ask: bool
    rounds: bool
    log_level: str
    channel: str
    address: str


class RelayedCall(msgspec.Struct, frozen=True):
    """The arguments of ``Pool.call``; see there. ``owner``: the process that is asked, which must have the session."""

    owner: str
    server: int
    name: str
    arguments: str
    session: str
    caller: str
    kind: str
    host: RelayedHost
    meta: dict[str, Any] | None
    timeout: float | None
    max_result_bytes: int | None
    idempotent: bool
    revision: int | None
    definition: str | None
    by: tuple[str, str] | None
    asks: list[str] | None
    wants_progress: bool
    wants_log: bool


class RelayedWord(msgspec.Struct, frozen=True):
    """A method of ``HostChannel`` and its arguments; see there."""

    channel: str
    method: Literal["ask", "log", "complete"]
    arguments: list[Any]


def pack_host(host: Forwarding, channel: str, address: str) -> RelayedHost:
    """Return what another process needs to know of a host."""
    return RelayedHost(
        dict(host.capabilities), dict(host.answers), can_ask=host.ask is not None, rounds=host.rounds, log_level=host.log_level,
        channel=channel, address=address if channel else "",
    )  # fmt: skip


def pack_error(error: SlipsnisseError) -> dict[str, Any]:
    """Return an error as JSON. It has passed the owner's redaction."""
    kind = next(each for each in type(error).__mro__ if each.__module__ == errors.__name__)
    return {"type": kind.__name__} | {name: value for name, value in vars(error).items() if name in _ATTRIBUTES}


def unpack_error(found: Mapping[str, Any]) -> SlipsnisseError:
    """Return the error that another process has packed."""
    kind = getattr(errors, str(found.get("type")), DownstreamError)
    error: SlipsnisseError = kind.__new__(kind)
    Exception.__init__(error, found.get("message", ""))
    vars(error).update({name: found[name] for name in _ATTRIBUTES & found.keys()})
    return error


_ATTRIBUTES = {"message", "remedy", "sent", "retry_after", "rpc_code", "data", "wait"}
