"""What a headend refuses, with the status that makes clients do the right thing.

Official clients send a request again by themselves on 408, 409, 429 and 5xx. A run that has been started must not be started twice
that way: so its failure is 422, and every refusal after the start says ``x-should-retry: false``, which both official clients obey.
"""

from __future__ import annotations

from mcpregistry.api.errors import status_of
from mcpregistry.domain.errors import Busy, Conflict, SlipsnisseError

_OF_CODE = {
    "NOT_FOUND": 404,
    "DENIED": 403,
    "ARGUMENTS_INVALID": 400,
    "RATE_LIMITED": 429,
    "BUDGET_SPENT": 403,
    "BUSY": 503,
    "NOT_RECORDED": 503,
    "CONFLICT": 409,
}
AGAIN = frozenset({409, 429, 503})  # nothing was started: the same request may come again


class Refused(Exception):
    """No answer. ``code`` is ours; ``started``: a run was begun, so the request must not be sent again by itself."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        run: str = "",
        started: bool = False,
        param: str = "",
        wait: float = 1,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.run, self.started, self.param, self.wait = run, started, param, wait

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Whether and when to come again, and whose run it was."""
        again = self.status in AGAIN and not self.started
        found = [(b"retry-after", b"%d" % max(1, round(self.wait)))] if again else [(b"x-should-retry", b"false")]
        return found + ([(b"x-slipsnisse-run", self.run.encode())] if self.run else [])


def of_error(error: SlipsnisseError, *, started: bool = False) -> Refused:
    """The refusal for one of our errors."""
    status = _OF_CODE.get(error.code) or status_of(error)
    if isinstance(error, Busy | Conflict):
        status = {503: 429}.get(status, status) if not started else 422
    return Refused(status, error.code, str(error), started=started, wait=getattr(error, "wait", 1))


def of_code(code: str, message: str, remedy: str, *, started: bool) -> Refused:
    """The refusal for a call that ended without a run."""
    status = 422 if started else _OF_CODE.get(code, 422)
    return Refused(status, code, f"{message} {remedy}".strip(), started=started or status == 422)
