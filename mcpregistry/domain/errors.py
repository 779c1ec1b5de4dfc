"""One hierarchy of errors. REST, MCP and the pages show the same code, sentence and remedy.

Every error that a person or a model may see is a ``SlipsnisseError``: ``code`` is stable and
machine-readable, ``str(error)`` is one plain sentence, ``remedy`` says what to do next.
Nothing else may reach a caller as text: an unexpected exception can hold a secret.
"""

from __future__ import annotations

from typing import ClassVar


class SlipsnisseError(Exception):
    """The base of every error that a person or a model may see; see the module."""

    code: ClassVar[str] = "ERROR"

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".strip()


class ConfigInvalid(SlipsnisseError):
    """A setting, file or row cannot be used as it stands. Retrying cannot help."""

    code = "CONFIG_INVALID"


class AlreadyExists(ConfigInvalid):
    """Another record has this name. ``key`` is its slug, or its number where it has none.

    ``among``: the list of the REST API that has it, if that is another one than was posted to, as
    in ``servers``.
    """

    code = "ALREADY_EXISTS"

    def __init__(self, message: str, *, remedy: str, key: str, among: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.key = key
        self.among = among


class NotFound(SlipsnisseError):
    """Absent, or not granted: the two must look the same to a caller."""

    code = "NOT_FOUND"


class Conflict(SlipsnisseError):
    """The record is not in the state that the request needs."""

    code = "CONFLICT"


class ArgumentsInvalid(SlipsnisseError):
    """A call's arguments do not fit the tool's schema, or what a person typed is no JSON object."""

    code = "ARGUMENTS_INVALID"


class Denied(SlipsnisseError):
    """Policy, capability or permission refuses it; the message says which."""

    code = "DENIED"


class QueueFullError(SlipsnisseError):
    """A bounded queue is full; nothing was sent and trying again later is right."""

    code = "BUSY"


class Unavailable(SlipsnisseError):
    """Something that the site needs, such as its database, does not work now; trying again later is
    right."""

    code = "UNAVAILABLE"


class Interrupted(SlipsnisseError):
    """We were told to stop while it was under way; nothing is known against the server."""

    code = "INTERRUPTED"


class DownstreamError(SlipsnisseError):
    """A downstream server failed us.

    ``sent`` is the fact that decides the end of a call: False means that no byte of the request
    left this process (the call ends NOT_SENT), True means that it may have taken effect (the call
    ends UNKNOWN and is never repeated on its own). ``usual_remedy`` is said where the place that
    raises it knows no better one.
    """

    code = "CONNECTION_FAILED"
    usual_remedy: ClassVar[str] = (
        "Read the status on the page of the server, then press “Test server”."
    )

    def __init__(self, message: str, *, remedy: str = "", sent: bool = False) -> None:
        super().__init__(message, remedy=remedy or self.usual_remedy)
        self.sent = sent
        self.retry_after = 0.0  # seconds that the server asks to be left alone


class ConnectionFailed(DownstreamError):
    """The server could not be started or reached, or the connection to it was lost."""

    code = "CONNECTION_FAILED"


class SessionLost(ConnectionFailed):
    """The server has forgotten our session, for example because it was restarted. It did not look
    at the request."""


class StaleRevision(DownstreamError):
    """The server is no longer configured as it was when the call was decided on; nothing was
    sent."""

    code = "STALE_REVISION"
    usual_remedy = "Make the call again."


class DefinitionChanged(DownstreamError):
    """The server describes the tool otherwise than was approved; nothing was sent."""

    code = "DEFINITION_CHANGED"
    usual_remedy = "Ask an approver to review the new definition."


class AuthFailed(DownstreamError):
    """The server refused our credential (HTTP 401 or 403). Not retried."""

    code = "AUTH_FAILED"
    usual_remedy = "Enter a valid credential on the page of the server."


class ProtocolError(DownstreamError):
    """The server answered something that MCP does not allow."""

    code = "PROTOCOL_ERROR"
    usual_remedy = "Report this error to the developers of the server."


class ResourceLimit(DownstreamError):
    """The server sent more than its limits allow (line, body, list or item count)."""

    code = "RESOURCE_LIMIT"
    usual_remedy = "Request less data, or raise the limits on the page of the server."


class TimedOut(DownstreamError):
    """The server did not answer within its time limit."""

    code = "TIMEOUT"
    usual_remedy = (
        "Test the server. If it needs more time, raise its timeouts on the page of the server."
    )


class OutboundRefused(DownstreamError):
    """The guarded client will not go to that address."""

    code = "OUTBOUND_REFUSED"
    usual_remedy = "Correct the address. Or, if you trust the address, add its network to “Allowed networks” on the page of the server."


class ToolRefused(DownstreamError):
    """The server answered with a JSON-RPC error: it received the call and rejected it.

    ``rpc_code`` is the JSON-RPC code, ``data`` the server's own data (JSON value or None).
    """

    code = "TOOL_CALL_FAILED"

    def __init__(self, message: str, *, rpc_code: int, data: object = None) -> None:
        super().__init__(
            message, remedy="Correct the call as described in the server's message.", sent=True
        )
        self.rpc_code = rpc_code
        self.data = data


class InputNeeded(ToolRefused):
    """The server asks a question instead of answering, and the caller cannot be asked. It has done
    nothing yet."""

    code = "INPUT_NEEDED"

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message, rpc_code=0)
        self.remedy = remedy
