"""Idempotency-Key for writes whose effect is rows: sent again with the same key, a request has its
effect once.

The key, the effect and the answer are one transaction. So a process that dies leaves nothing done
and the key free; of two requests at once the second waits for the first, then gets its answer; a
refused request gives its key back. What is queued by a write (a woken run, a message) is sent on
commit. A tool call's effect lies outside of the database: ``calls.py`` takes its key ahead, and
asks the call's record.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

from django.db import transaction
from django.http import HttpRequest
from django.utils.crypto import salted_hmac
from ninja import Header, Status
from pydantic import BaseModel

from mcpregistry.api.auth import actor
from mcpregistry.api.errors import status_of
from mcpregistry.api.schemas.basics import Problem, Text
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.services.records import idempotency

IdempotencyKey = Annotated[
    Text | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="A request that is repeated with the same key within 24 hours gets the answer of the first one.",
    ),
]
View = Callable[..., Any]


def once(*, again: Callable[[Any], SlipsnisseError] | None = None) -> Callable[[View], View]:
    """Let an operation that is no coroutine take an Idempotency-Key; goes below ``@router.post``.

    ``again`` makes what a repetition is told from the first answer, where that holds a secret: then
    the answer itself is not kept.
    """

    def decorate(view: View) -> View:
        @wraps(view)
        def run_once(
            request: HttpRequest, *, idempotency_key: str | None = None, **given: Any
        ) -> Any:
            if idempotency_key is None:
                return view(request, **given)
            use = {"caller": actor(request), "key": idempotency_key}
            with transaction.atomic():
                kept = idempotency.claim(**use, fingerprint=_fingerprint(request)).kept
                if kept is not None and kept.status is not None:
                    return Status(kept.status, json.loads(kept.body))
                answer = view(request, **given)
                status, body = (
                    _split_answer(answer) if again is None else _describe_refusal(again(answer))
                )
                idempotency.keep(**use, status=status, body=body.model_dump_json(by_alias=True))
            return answer

        signature = inspect.signature(view, eval_str=True)
        key = inspect.Parameter(
            "idempotency_key",
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=IdempotencyKey,
        )
        run_once.__signature__ = signature.replace(parameters=[*signature.parameters.values(), key])  # type: ignore[attr-defined]
        return run_once

    return decorate


def _fingerprint(request: HttpRequest) -> str:
    """Keyed with the site's secret: a body may hold a password that could be guessed from its bare
    hash."""
    asked = b"\0".join(
        [str(request.method).encode(), request.get_full_path().encode(), request.body]
    )
    return salted_hmac("idempotency", asked, algorithm="sha256").hexdigest()


def _split_answer(answer: Any) -> tuple[int, BaseModel]:
    return (answer.status_code, answer.value) if isinstance(answer, Status) else (200, answer)


def _describe_refusal(error: SlipsnisseError) -> tuple[int, BaseModel]:
    return status_of(error), Problem(code=error.code, message=error.message, remedy=error.remedy)
