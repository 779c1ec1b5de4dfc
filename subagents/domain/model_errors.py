"""What can go wrong with a model request, in our own few words, whatever the provider calls it."""

from __future__ import annotations

from enum import StrEnum


class ErrorKind(StrEnum):
    """Why a request failed, which decides what happens next (see ``after``)."""

    AUTH = "auth"  # the key is wrong or may not use this model
    QUOTA = "quota"  # the account has no money left
    RATE_LIMITED = "rate_limited"
    OVERLOADED = "overloaded"  # 5xx
    TIMEOUT = "timeout"
    NETWORK = "network"  # refused, dropped, cut off
    REFUSED = "refused_address"  # its address is none to which requests may go
    CONTEXT = "context"  # the request does not fit into the model's window
    POLICY = "content_policy"
    NOT_FOUND = "not_found"  # no such model there
    BAD_REQUEST = "bad_request"
    EMPTY = "empty"  # asked twice, it has said nothing
    UNREADABLE = "unreadable"  # an answer that is none


class After(StrEnum):
    """What the fallback does: try this target again, or leave it out of this turn."""

    RETRY = "retry"
    SKIP = "skip"


_AFTER = {
    ErrorKind.AUTH: After.SKIP,
    ErrorKind.QUOTA: After.SKIP,
    ErrorKind.NOT_FOUND: After.SKIP,
    ErrorKind.REFUSED: After.SKIP,
    ErrorKind.POLICY: After.SKIP,
    ErrorKind.CONTEXT: After.SKIP,
    # mostly of this model alone: no tools, no temperature, another schema
    ErrorKind.BAD_REQUEST: After.SKIP,
    ErrorKind.EMPTY: After.SKIP,
    ErrorKind.RATE_LIMITED: After.RETRY,
    ErrorKind.OVERLOADED: After.RETRY,
    ErrorKind.TIMEOUT: After.RETRY,
    ErrorKind.NETWORK: After.RETRY,
    ErrorKind.UNREADABLE: After.RETRY,
}
assert set(_AFTER) == set(ErrorKind)


class ModelError(Exception):
    """A request to a model that failed. ``message`` holds no key; ``retry_after`` is in seconds."""

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        *,
        status: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.status = status
        self.retry_after = retry_after

    @property
    def after(self) -> After:
        return _AFTER[self.kind]


_BY_STATUS = {
    400: ErrorKind.BAD_REQUEST,
    401: ErrorKind.AUTH,
    402: ErrorKind.QUOTA,
    403: ErrorKind.AUTH,
    404: ErrorKind.NOT_FOUND,
    408: ErrorKind.TIMEOUT,
    413: ErrorKind.CONTEXT,
    422: ErrorKind.BAD_REQUEST,
    429: ErrorKind.RATE_LIMITED,
}
_BY_NAME = {
    "AuthenticationError": ErrorKind.AUTH,
    "PermissionDeniedError": ErrorKind.AUTH,
    "PaymentRequiredError": ErrorKind.QUOTA,
    "NotFoundError": ErrorKind.NOT_FOUND,
    "ContextWindowExceededError": ErrorKind.CONTEXT,
    "ContentPolicyViolationError": ErrorKind.POLICY,
    "RateLimitError": ErrorKind.RATE_LIMITED,
    "Timeout": ErrorKind.TIMEOUT,
    "APIConnectionError": ErrorKind.NETWORK,
    "APIResponseValidationError": ErrorKind.UNREADABLE,
    "ServiceUnavailableError": ErrorKind.OVERLOADED,
    "BadGatewayError": ErrorKind.OVERLOADED,
}
_DROPPED = (
    "cannot connect",
    "connection refused",
    "connect call failed",
    "connection error",
    "server disconnected",
    "payload is not completed",
    "connection closed",
    "connection reset",
    "incomplete chunked read",
)
_NO_MONEY = ("insufficient_quota", "exceeded your current quota", "credit balance is too low")


def classify(name: str, status: int | None, text: str) -> ErrorKind:
    """Which error it is, from the exception's class name, HTTP status and text: classes differ
    between providers."""
    lowered = text.lower()
    if name not in ("ContextWindowExceededError", "ContentPolicyViolationError"):
        if any(phrase in lowered for phrase in _NO_MONEY):
            return ErrorKind.QUOTA
        if any(phrase in lowered for phrase in _DROPPED):
            return ErrorKind.NETWORK
        if status in (402, 403, 413):  # each provider's adapter names these differently
            return _BY_STATUS[status]
    # of the library, which could not read the answer
    if "traceback (most recent call last)" in lowered:
        name = "APIResponseValidationError"
    if name in _BY_NAME:
        return _BY_NAME[name]
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return ErrorKind.OVERLOADED if status is None or status >= 500 else ErrorKind.BAD_REQUEST
