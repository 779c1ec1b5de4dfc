"""Requests to models go out through the guarded client: litellm gets its transport for all clients
that it makes.

What the guard has refused or run into is kept on the request's ``Way``, because litellm makes
nameless errors of it.
"""

from __future__ import annotations

from types import ModuleType

from mcpregistry.domain.errors import DownstreamError, OutboundRefused, ResourceLimit, TimedOut
from mcpregistry.downstream.http_client.httpx_transport import (
    GuardedRoute,
    GuardedTransport,
    NotJsonError,
    NoTransport,
    RedirectedError,
    WebPageError,
)
from subagents.domain.model_errors import ErrorKind, ModelError

__all__ = ["GuardedRoute", "failure", "install"]

_WORDS: tuple[tuple[type[DownstreamError], ErrorKind, str], ...] = (
    (
        RedirectedError,
        ErrorKind.REFUSED,
        "The provider redirects to another address. Redirects are not followed. If the other address is correct, enter it as the "
        "base URL.",
    ),
    (
        OutboundRefused,
        ErrorKind.REFUSED,
        "Nothing was sent, because the address of the provider is private, reserved, or not an http or https address. If you "
        "trust this address, add its network to the field Allowed networks of the provider, then confirm the provider again.",
    ),
    (
        WebPageError,
        ErrorKind.BAD_REQUEST,
        "The provider answered with a web page instead of a message. Check its base URL, and whether it requires a login.",
    ),
    (
        NotJsonError,
        ErrorKind.UNREADABLE,
        "The answer of the provider is not valid JSON, or incomplete. Check its base URL, and whether a proxy truncates answers.",
    ),
    (TimedOut, ErrorKind.TIMEOUT, "The provider did not answer in time."),
    (
        ResourceLimit,
        ErrorKind.UNREADABLE,
        "The answer of the provider is too large to be an answer of a model. Check its base URL.",
    ),
    (
        DownstreamError,
        ErrorKind.NETWORK,
        "The provider cannot be reached, or the connection was lost. Check the base URL of the provider, and that the provider is running.",
    ),
)


def failure(way: GuardedRoute) -> ModelError | None:
    """Why the guard has ended the request that went this way, in our words; None if it has not."""
    return next(
        (ModelError(kind, text) for error, kind, text in _WORDS if isinstance(way.error, error)),
        None,
    )


def install(litellm: ModuleType, handler: type) -> None:
    """Make every HTTP client that litellm will make use our transport; ``handler`` is its
    ``AsyncHTTPHandler``.

    Called once, before the first request. Nothing of ours asks synchronously; litellm would, on the
    side, for what it likes to know of a model.
    """

    def transport(**_: object) -> GuardedTransport:
        return GuardedTransport()

    for name in ("create_async_transport", "_create_async_transport"):
        setattr(handler, name, staticmethod(transport))
    litellm.sync_transport = NoTransport()  # type: ignore[attr-defined]
