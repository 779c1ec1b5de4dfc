"""What two processes say to each other. An exchange begins with a frame that has one key: ``call``
(RelayedCall), ``word`` (RelayedWord), ``request`` (RelayedRequest), ``watch`` (RelayedWatch),
``notice`` (RelayedNotice), ``question`` (RelayedQuestion), ``end_session``, ``roots_changed`` or
``hello``.

A call: the owner of the session's connection answers ``taken`` or ``not_owner``. The other process
sends ``go``: before it, the owner does nothing. Then the owner sends events until the call has
ended, each an object with one key: ``sent``, ``progress``, ``log``, ``ask``, and at last ``result``
or ``error``. Answers to ``ask`` come back as ``answer``.

After a call without questions, a word, a notice, a question, the end of a session or changed
folders, the connection can be used for the next exchange. After all others it is closed.

A word: something for a host while none of its calls is out, sent to the process that serves the
host. It answers ``result`` or ``unanswered``.

A request of a host over HTTP, sent to the process that can answer it: that one authenticates it and
answers each event of ASGI as ``event``.

A notice: a notification for a host, sent to the processes one after the other until one answers
``sent`` with true: it has the stream.

A question: one for a host outside of its calls, sent in the same way. The process with the stream
answers ``result`` or ``unanswered``, the others ``elsewhere``.

``end_session``: the name of a session that has ended. The other process closes its connections and
answers ``done``.

``roots_changed``: the key of a host (``host_session``) whose folders have changed. The other
process notifies its servers and answers ``done``.

``hello``: a process has started, and can be followed for subscriptions. It is not answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from mcpregistry.domain import errors
from mcpregistry.domain.calls.forwarding import Forwarding
from mcpregistry.domain.errors import DownstreamError, SlipsnisseError
from mcpregistry.downstream.server_call import ServerCall


class RelayedHost(msgspec.Struct, frozen=True):
    """A ``Forwarding`` without its callbacks; see there. ``can_ask``: it can be asked while the
    call waits.

    ``channel``: the name of its channel at the process that serves it, and ``address`` where this
    process takes words; empty without one.
    """

    capabilities: dict[str, Any]
    answers: dict[str, Any]
    can_ask: bool
    rounds: bool
    log_level: str
    channel: str
    address: str


class RelayedCall(msgspec.Struct, frozen=True):
    """A ``ServerCall`` on its way to another process. ``owner``: the process that is asked, which
    must have the session."""

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
    granted_by: tuple[str, str] | None
    asks: list[str] | None
    wants_progress: bool
    wants_log: bool


# the fields that are the same in a ``ServerCall``
_SAME = [
    "name",
    "session",
    "caller",
    "kind",
    "timeout",
    "max_result_bytes",
    "idempotent",
    "revision",
    "definition",
    "granted_by",
]


def pack_call(call: ServerCall, owner: str, host: RelayedHost) -> RelayedCall:
    """Return the call as its owner gets it."""
    return RelayedCall(
        owner=owner,
        server=call.server_id,
        host=host,
        arguments=call.arguments.decode(),
        meta=None if call.meta is None else dict(call.meta),
        asks=None if call.asks is None else sorted(call.asks),
        wants_progress=call.on_progress is not None,
        wants_log=call.on_log is not None,
        **{name: getattr(call, name) for name in _SAME},
    )


def unpack_call(call: RelayedCall, host: Forwarding, callbacks: Mapping[str, Any]) -> ServerCall:
    """Return the call as the pool of its owner gets it. ``callbacks``: those of ``ServerCall``."""
    return ServerCall(
        call.server,
        arguments=call.arguments.encode(),
        host=host,
        meta=call.meta,
        asks=None if call.asks is None else frozenset(call.asks),
        **{name: getattr(call, name) for name in _SAME},
        **callbacks,
    )


class RelayedWatch(msgspec.Struct, frozen=True):
    """A link for subscriptions at a server; see ``links.py``. ``owner``: the process that is asked,
    which must have the session's connection; any process where everybody shares the server.
    ``caller``, ``host`` and ``asks``: see ``ServerCall``.
    """

    owner: str
    server: int
    session: str
    caller: str
    host: RelayedHost
    asks: list[str] | None


class RelayedNotice(msgspec.Struct, frozen=True):
    """A notification for the stream of a host's session."""

    session: str
    method: str
    params: dict[str, Any]


class RelayedQuestion(msgspec.Struct, frozen=True):
    """A request for the host, on the stream of its session."""

    session: str
    method: str
    params: dict[str, Any]


class RelayedWord(msgspec.Struct, frozen=True):
    """A method of ``HostChannel`` and its arguments; see there."""

    channel: str
    method: Literal["ask", "log", "complete"]
    arguments: list[Any]


class RelayedRequest(msgspec.Struct, frozen=True):
    """An HTTP request. Texts are ISO 8859-1, as the wire has them."""

    method: str
    path: str
    query: str
    headers: list[tuple[str, str]]
    body: bytes


class RelayedEvent(msgspec.Struct, frozen=True):
    """An event of its answer. ``status`` of ``http.response.start``, which has headers; 0:
    ``http.response.body``."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    more_body: bool


def pack_event(event: Mapping[str, Any]) -> RelayedEvent:
    """Return an event of ASGI for another process."""
    return RelayedEvent(
        int(event.get("status", 0)),
        pack_headers(event.get("headers", ())),
        bytes(event.get("body", b"")),
        more_body=bool(event.get("more_body", False)),
    )


def unpack_event(event: RelayedEvent) -> dict[str, Any]:
    """Return the event of ASGI that another process has packed."""
    if event.status:
        return {
            "type": "http.response.start",
            "status": event.status,
            "headers": unpack_headers(event.headers),
        }
    return {"type": "http.response.body", "body": event.body, "more_body": event.more_body}


def pack_headers(pairs: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """Return headers as text."""
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in pairs]


def unpack_headers(pairs: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    """Return headers as ASGI has them."""
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs]


def pack_host(host: Forwarding, channel: str, address: str) -> RelayedHost:
    """Return what another process needs to know of a host."""
    return RelayedHost(
        dict(host.capabilities),
        dict(host.answers),
        can_ask=host.ask is not None,
        rounds=host.rounds,
        log_level=host.log_level,
        channel=channel,
        address=address if channel else "",
    )


def pack_error(error: SlipsnisseError) -> dict[str, Any]:
    """Return an error as JSON. It has passed the owner's redaction."""
    kind = next(each for each in type(error).__mro__ if each.__module__ == errors.__name__)
    return {"type": kind.__name__} | {
        name: value for name, value in vars(error).items() if name in _ATTRIBUTES
    }


def unpack_error(found: Mapping[str, Any]) -> SlipsnisseError:
    """Return the error that another process has packed."""
    kind = getattr(errors, str(found.get("type")), DownstreamError)
    error: SlipsnisseError = kind.__new__(kind)
    Exception.__init__(error, found.get("message", ""))
    vars(error).update({name: found[name] for name in _ATTRIBUTES & found.keys()})
    return error


_ATTRIBUTES = {"message", "remedy", "sent", "retry_after", "rpc_code", "data", "wait"}
