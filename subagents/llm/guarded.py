"""Requests to models go out through the guarded client: litellm gets its transport for all clients that it makes.

What the guard has refused or run into is kept on the request's ``Way``, because litellm makes nameless errors of it.
"""

from __future__ import annotations

from types import ModuleType

from mcpregistry.domain.errors import DownstreamError, OutboundRefused, ResourceLimit, TimedOut
from mcpregistry.downstream.http_client.httpx_transport import (
    GuardedTransport,
    NotJson,
    NoTransport,
    Redirected,
    Way,
    WebPage,
)
from subagents.domain.model_errors import ErrorKind, ModelError

__all__ = ["Way", "failure", "install"]

_WORDS: tuple[tuple[type[DownstreamError], ErrorKind, str], ...] = (
    (
        Redirected, ErrorKind.REFUSED,
        "The provider redirects to another address, which is not followed. If that is where it lives, enter it as its "
        "base URL.",
    ),
    (
        OutboundRefused, ErrorKind.REFUSED,
        "The provider's address is private, reserved, or no plain http or https address, so nothing was sent there. If it "
        "is yours, add its network to the provider's allowed networks; then somebody who may confirm it does.",
    ),
    (
        WebPage, ErrorKind.BAD_REQUEST,
        "The provider answered with a web page instead of a message. Is its base URL right, and does it need a log-in?",
    ),
    (
        NotJson, ErrorKind.UNREADABLE,
        "The provider's answer is not JSON, or only a part of it. Is its base URL right, and does a proxy cut answers off?",
    ),
    (TimedOut, ErrorKind.TIMEOUT, "The provider did not answer in time."),
    (ResourceLimit, ErrorKind.UNREADABLE, "The provider's answer is larger than any real one."),
    (
        DownstreamError, ErrorKind.NETWORK,
        "The provider cannot be reached, or the line broke. Is its address right, and is it running?",
    ),
)  # fmt: skip


def failure(way: Way) -> ModelError | None:
    """Why the guard has ended the request that went this way, in our words; None if it has not."""
    return next((ModelError(kind, text) for error, kind, text in _WORDS if isinstance(way.error, error)), None)


def install(litellm: ModuleType, handler: type) -> None:
    """Make every HTTP client that litellm will make use our transport; ``handler`` is its ``AsyncHTTPHandler``.

    Called once, before the first request. Nothing of ours asks synchronously; litellm would, on the side, for what it
    likes to know of a model.
    """

    def transport(**_: object) -> GuardedTransport:
        return GuardedTransport()

    for name in ("create_async_transport", "_create_async_transport"):
        setattr(handler, name, staticmethod(transport))
    litellm.sync_transport = NoTransport()  # type: ignore[attr-defined]
