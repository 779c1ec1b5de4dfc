"""One shape for every refusal: ``{code, message, remedy}`` with the status that fits.

Sentences come only from ``SlipsnisseError`` or from here. The text of any other exception may hold
a secret, so it is logged and the caller learns nothing but that it happened.
"""

from __future__ import annotations

from typing import Any

import structlog
from django.conf import settings
from django.core.exceptions import RequestDataTooBig, TooManyFieldsSent
from django.db import Error
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.urls import reverse
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, HttpError, ValidationError

from mcpregistry.database_errors import fault_facts, is_passing, make_unavailable_error
from mcpregistry.domain import error_texts, errors

log = structlog.get_logger(__name__)


class BadRequest(errors.SlipsnisseError):
    """400: the request is malformed, before any rule of ours was asked."""

    code = "BAD_REQUEST"


class TooLarge(errors.SlipsnisseError):
    """413: more than one request may bring."""

    code = "TOO_LARGE"


class Unauthorized(errors.SlipsnisseError):
    """401: no credential, or one that is not good."""

    code = "UNAUTHORIZED"


class MethodNotAllowed(errors.SlipsnisseError):
    """405. ``allow``: the methods that the address takes, as HTTP's Allow header has them."""

    code = "METHOD_NOT_ALLOWED"

    def __init__(self, message: str, *, remedy: str, allow: str) -> None:
        super().__init__(message, remedy=remedy)
        self.allow = allow


class TooManyRequests(errors.SlipsnisseError):
    """429. ``wait``: seconds until another attempt is looked at."""

    code = "TOO_MANY_REQUESTS"

    def __init__(self, message: str, *, remedy: str, wait: float) -> None:
        super().__init__(message, remedy=remedy)
        self.wait = wait


# The nearest class in an error's family decides.
STATUS: dict[type[BaseException], int] = {
    BadRequest: 400,
    TooLarge: 413,
    Unauthorized: 401,
    errors.Denied: 403,
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.AlreadyExists: 409,
    errors.ConfigInvalid: 422,
    errors.ArgumentsInvalid: 422,
    MethodNotAllowed: 405,
    TooManyRequests: 429,
    errors.DownstreamError: 502,
    errors.TimedOut: 504,
    errors.QueueFullError: 503,
    errors.Unavailable: 503,
    errors.SlipsnisseError: 500,
}


def status_of(error: errors.SlipsnisseError) -> int:
    """The HTTP status for an error, by its class and those above it."""
    return next(STATUS[family] for family in type(error).__mro__ if family in STATUS)


def refusal(error: errors.SlipsnisseError) -> HttpResponse:
    """The answer for an error: ``{code, message, remedy}`` with its status and headers."""
    status = status_of(error)
    body = {"code": error.code, "message": error.message, "remedy": error.remedy}
    headers = {}
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="Slipsnisse"'
    if isinstance(error, MethodNotAllowed):
        headers["Allow"] = error.allow
    if status in (429, 503):
        headers["Retry-After"] = str(max(1, round(getattr(error, "wait", 1))))
    return JsonResponse(body, status=status, headers=headers)


def add_handlers(api: NinjaAPI) -> None:
    """Register the answers for our errors, for validation errors and for anything unexpected."""
    api.add_exception_handler(errors.SlipsnisseError, lambda _, error: refusal(error))  # type: ignore[arg-type]
    api.add_exception_handler(errors.AlreadyExists, _already_exists)
    api.add_exception_handler(AuthenticationError, lambda *_: refusal(make_unauthorized()))
    api.add_exception_handler(ValidationError, lambda _, error: refusal(_invalid(error)))  # type: ignore[arg-type]
    api.add_exception_handler(HttpError, lambda _, error: refusal(_unreadable(error)))  # type: ignore[arg-type]
    api.add_exception_handler(RequestDataTooBig, lambda *_: refusal(_too_large()))
    api.add_exception_handler(TooManyFieldsSent, lambda *_: refusal(_too_many()))
    api.add_exception_handler(Http404, lambda *_: refusal(no_address()))
    api.add_exception_handler(Error, _handle_database_error)
    api.add_exception_handler(Exception, _handle_unexpected)


def _already_exists(
    request: HttpRequest, error: errors.AlreadyExists | type[errors.AlreadyExists]
) -> HttpResponse:
    """Says where the other one is: in the list that the error names, below the one that was posted
    to, or next to what was to be changed."""
    assert isinstance(error, errors.AlreadyExists)
    if error.among:
        siblings = reverse("api:api-root") + error.among
    else:
        siblings = request.path if request.method == "POST" else request.path.rpartition("/")[0]
    return refusal(
        errors.AlreadyExists(
            error.message,
            remedy=f"The existing record is at {siblings}/{error.key}. {error.remedy}",
            key=error.key,
        )
    )


def make_unauthorized() -> Unauthorized:
    """The refusal for a missing or wrong credential; it does not say which of the two."""
    return Unauthorized(
        "This request requires authentication.",
        remedy="Log in, or send a valid token as 'Authorization: Bearer …'.",
    )


def no_address() -> errors.NotFound:
    """The refusal of an address that the API does not have."""
    return errors.NotFound(
        "The API does not have this address.", remedy="See /api/v1/docs for all addresses."
    )


def _unreadable(error: HttpError) -> errors.SlipsnisseError:
    """What our parser found is said in its own words; of any other cause nothing is repeated."""
    if isinstance(error.__cause__, errors.SlipsnisseError):
        return error.__cause__
    return BadRequest(
        "The body of the request could not be read.", remedy="Send one JSON value in UTF-8."
    )


def _too_large() -> TooLarge:
    return TooLarge(
        f"The request is larger than the limit of {settings.DATA_UPLOAD_MAX_MEMORY_SIZE:,} bytes.",
        remedy="Send less data. Store large data where the tool can read it, and send the address of the data.",
    )


def _too_many() -> TooLarge:
    return TooLarge(
        f"The request has more than {settings.DATA_UPLOAD_MAX_NUMBER_FIELDS:,} parameters.",
        remedy="Send fewer parameters.",
    )


def _invalid(error: ValidationError) -> errors.ArgumentsInvalid:
    """Names what is wrong, never the value: it may be the very secret that was misplaced."""
    problems = "; ".join(
        f"{_place(item)}: {item.get('msg', 'invalid')}" for item in error.errors[:20]
    )
    return errors.ArgumentsInvalid(
        f"The request is not valid: {problems}.",
        remedy="Correct these values. /api/v1/docs describes the values of each request.",
    )


def _place(item: dict[str, Any]) -> str:
    return ".".join(str(part)[:100] for part in item.get("loc", ()) if part != "payload")


def _handle_database_error(
    request: HttpRequest, error: Exception | type[Exception]
) -> HttpResponse:
    if not isinstance(error, Error) or not is_passing(error):
        return _handle_unexpected(request, error)
    log.error("api.database_failed", path=request.path, **fault_facts(error), exc_info=error)
    return refusal(make_unavailable_error(error))


def _handle_unexpected(request: HttpRequest, error: Exception | type[Exception]) -> HttpResponse:
    log.error("api.failed", path=request.path, exc_info=error)
    return refusal(
        errors.SlipsnisseError(
            "The request failed because of an internal error.",
            remedy=error_texts.ASK_OPERATOR,
        )
    )
