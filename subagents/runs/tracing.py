"""Records the HTTP requests of traced runs to model providers, without secrets. ``mcprun
--trace-llm`` prints them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import structlog
from django.db import Error

from mcpregistry.db import db_call
from mcpregistry.domain.text.canonical import clean_text
from mcpregistry.domain.text.redaction import (
    MASK,
    Redactor,
    find_secrets,
    mask_log_event,
    mask_words,
)
from mcpregistry.domain.text.secret_names import is_secret_name
from subagents.llm.model_values import ModelTarget
from subagents.models import TracedRequest

if TYPE_CHECKING:
    from mcpregistry.downstream.http_client.httpx_transport import ObservedRequest

log = structlog.get_logger(__name__)

LONGEST_BODY = 64 * 1024  # characters of a body, after the secrets were removed
_SHORTEST_SECRET = 4  # characters
_LONGEST = 2**31  # characters: nothing is cut before the secrets are removed
# headers of ours that are public
_ATTRIBUTION = frozenset({"http-referer", "x-openrouter-title", "user-agent"})
_COOKIES = frozenset({"cookie", "set-cookie"})


async def record(run: str, target: ModelTarget, observed: Sequence[ObservedRequest]) -> None:
    """Store the requests of one turn. If the database fails, the run continues without this part of
    its trace."""
    try:
        await db_call(store, run, target, observed)
    except Error:
        log.exception("run.trace_not_written", run=run)


def store(run: str, target: ModelTarget, observed: Sequence[ObservedRequest]) -> None:
    """Remove the secrets, and write one row for each request."""
    TracedRequest.objects.bulk_create(
        TracedRequest(
            run_id=run, at=each.began, text=json.dumps(describe(target, each), ensure_ascii=False)
        )
        for each in observed
    )


def describe(target: ModelTarget, observed: ObservedRequest) -> dict[str, Any]:
    """Return the request and its answer as a JSON object without secrets.

    The key, the values of the provider's own headers and the password of its address are removed
    from all parts, also if they are encoded. Other secrets are recognised by the names of headers
    and parameters.
    """
    own = {
        name.lower(): value
        for name, value in target.headers.items()
        if name.lower() not in _ATTRIBUTION
    }
    secrets = {target.key, *own.values(), *find_secrets(pairs=own, url=target.base_url)}
    redactor = Redactor(secrets, shortest=_SHORTEST_SECRET)

    def clean(text: str) -> str:
        return clean_text(str(mask_log_event({"text": redactor.text(text)})["text"]), _LONGEST)

    def clean_headers(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
        hidden = own.keys() | _COOKIES
        return {
            clean(name): MASK
            if name.lower() in hidden or is_secret_name(name)
            else clean_address(value)
            for name, value in headers
        }

    def clean_address(text: str) -> str:
        return clean(mask_words([text])[0])

    def clean_body(body: bytes | bytearray) -> str:
        text = clean(body.decode("utf-8", "replace"))
        if len(text) <= LONGEST_BODY:
            return text
        return f"{text[:LONGEST_BODY]}… ({len(body)} bytes in total)"

    return {
        "at": observed.began.isoformat(),
        "model": target.model,
        "method": observed.method,
        "url": clean_address(observed.url),
        "headers": clean_headers(observed.headers),
        "body": clean_body(observed.body),
        "status": observed.status,
        "responseHeaders": clean_headers(observed.answer_headers),
        "responseBody": clean_body(observed.answer),
        "seconds": round(observed.seconds, 3),
        "error": observed.error,
    }
