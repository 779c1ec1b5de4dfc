"""What can go wrong with a model request, in our own few words, whatever the provider calls it."""

from __future__ import annotations

from enum import StrEnum


class Trouble(StrEnum):
    """Why a request failed, which decides what happens next (see ``after``)."""

    AUTH = "auth"  # the key is wrong or may not use this model
    QUOTA = "quota"  # the account has no money left
    RATE_LIMITED = "rate_limited"
    OVERLOADED = "overloaded"  # 5xx
    TIMEOUT = "timeout"
    NETWORK = "network"  # refused, dropped, cut off
    CONTEXT = "context"  # the request does not fit into the model's window
    POLICY = "content_policy"
    NOT_FOUND = "not_found"  # no such model there
    BAD_REQUEST = "bad_request"
    UNREADABLE = "unreadable"  # an answer that is none


class After(StrEnum):
    """What the fallback does: try this target again, leave it out of this run, or end the run."""

    RETRY = "retry"
    SKIP = "skip"
    ABORT = "abort"


_AFTER = {
    Trouble.AUTH: After.SKIP,
    Trouble.QUOTA: After.SKIP,
    Trouble.NOT_FOUND: After.SKIP,
    Trouble.POLICY: After.SKIP,
    Trouble.CONTEXT: After.SKIP,
    Trouble.BAD_REQUEST: After.ABORT,
    Trouble.RATE_LIMITED: After.RETRY,
    Trouble.OVERLOADED: After.RETRY,
    Trouble.TIMEOUT: After.RETRY,
    Trouble.NETWORK: After.RETRY,
    Trouble.UNREADABLE: After.RETRY,
}
assert set(_AFTER) == set(Trouble)


class ModelError(Exception):
    """A request to a model that failed. ``message`` holds no key; ``retry_after`` is in seconds."""

    def __init__(
        self, trouble: Trouble, message: str, *, status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.trouble = trouble
        self.message = message
        self.status = status
        self.retry_after = retry_after

    @property
    def after(self) -> After:
        return _AFTER[self.trouble]


_BY_STATUS = {
    400: Trouble.BAD_REQUEST,
    401: Trouble.AUTH,
    402: Trouble.QUOTA,
    403: Trouble.AUTH,
    404: Trouble.NOT_FOUND,
    408: Trouble.TIMEOUT,
    413: Trouble.CONTEXT,
    422: Trouble.BAD_REQUEST,
    429: Trouble.RATE_LIMITED,
}
_BY_NAME = {
    "AuthenticationError": Trouble.AUTH,
    "PermissionDeniedError": Trouble.AUTH,
    "PaymentRequiredError": Trouble.QUOTA,
    "NotFoundError": Trouble.NOT_FOUND,
    "ContextWindowExceededError": Trouble.CONTEXT,
    "ContentPolicyViolationError": Trouble.POLICY,
    "RateLimitError": Trouble.RATE_LIMITED,
    "Timeout": Trouble.TIMEOUT,
    "APIConnectionError": Trouble.NETWORK,
    "APIResponseValidationError": Trouble.UNREADABLE,
    "ServiceUnavailableError": Trouble.OVERLOADED,
    "BadGatewayError": Trouble.OVERLOADED,
}
_DROPPED = (
    "cannot connect", "connection refused", "connect call failed", "connection error", "server disconnected",
    "payload is not completed", "connection closed", "connection reset", "incomplete chunked read",
)  # fmt: skip
_NO_MONEY = ("insufficient_quota", "exceeded your current quota", "credit balance is too low")


def classify(name: str, status: int | None, text: str) -> Trouble:
    """From the exception's class name, HTTP status and text. Classes are not uniform over providers."""
    lowered = text.lower()
    if name not in ("ContextWindowExceededError", "ContentPolicyViolationError"):
        if any(phrase in lowered for phrase in _NO_MONEY):
            return Trouble.QUOTA
        if any(phrase in lowered for phrase in _DROPPED):
            return Trouble.NETWORK
        if status in (402, 403, 413):  # each provider's adapter names these differently
            return _BY_STATUS[status]
    if name in _BY_NAME:
        return _BY_NAME[name]
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return Trouble.OVERLOADED if status is None or status >= 500 else Trouble.BAD_REQUEST
