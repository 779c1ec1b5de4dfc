"""Errors of headends, with statuses that official clients handle correctly.

The clients of OpenAI and Anthropic retry on 408, 409, 429 and 5xx. A retry must not start a second
run: a failed run is reported as 422, and every error after the start of a run has the header
``x-should-retry: false``, which both clients obey.
"""

from __future__ import annotations

from mcpregistry.api.errors import status_of
from mcpregistry.domain.errors import Conflict, QueueFullError, SlipsnisseError
from mcpregistry.services.records.idempotency import KeyReused
from subagents.services.headends.queue_places import PlaceTaken

_OF_CODE = {
    "NOT_FOUND": 404,
    "DENIED": 403,
    "ARGUMENTS_INVALID": 400,
    "RATE_LIMITED": 429,
    "BUDGET_SPENT": 403,
    "BUSY": 503,
    "NOT_RECORDED": 503,
    "UNAVAILABLE": 503,
    "CONFLICT": 409,
}
_AGAIN = frozenset({409, 429, 503})  # clients may retry, if nothing was started


class HeadendError(Exception):
    """A request without an answer. ``code`` is ours.

    Clients must not retry if a run has started (``started``), or if the same request cannot succeed
    (``final``).
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        run: str = "",
        started: bool = False,
        final: bool = False,
        param: str = "",
        wait: float = 1,
    ) -> None:
        super().__init__(message)
        self.final = final
        self.status = status
        self.code = code
        self.message = message
        self.run = run
        self.started = started
        self.param = param
        self.wait = wait

    @property
    def may_retry(self) -> bool:
        """Whether clients may send the same request again."""
        return self.status in _AGAIN and not self.started and not self.final

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers for the retry logic of clients, and the id of the run."""
        wait = (b"retry-after", b"%d" % max(1, round(self.wait)))
        found = [wait] if self.may_retry else [(b"x-should-retry", b"false")]
        return found + ([(b"x-slipsnisse-run", self.run.encode())] if self.run else [])


def from_error(error: SlipsnisseError, *, started: bool = False) -> HeadendError:
    """Convert one of our errors."""
    status = _OF_CODE.get(error.code) or status_of(error)
    if isinstance(error, QueueFullError | Conflict):
        status = {503: 429}.get(status, status) if not started else 422
    final = isinstance(error, KeyReused | PlaceTaken)
    return HeadendError(
        status, error.code, str(error), started=started, final=final, wait=getattr(error, "wait", 1)
    )


def from_code(code: str, message: str, remedy: str, *, started: bool) -> HeadendError:
    """Convert the error of a call that started no run."""
    status = 422 if started else _OF_CODE.get(code, 422)
    return HeadendError(
        status, code, f"{message} {remedy}".strip(), started=started or status == 422
    )
