"""What a server says about a call, with the secrets removed that we gave it to start or to reach
it.

Looked through before anybody else sees it: the host, the record, a run. Servers that were given no
secret cost nothing; a large answer is looked through in a thread, so that it holds up nobody.
"""

from __future__ import annotations

import asyncio
from typing import Any

from mcpregistry.domain.errors import DownstreamError, ToolRefused
from mcpregistry.domain.text.redaction import Redactor, count_characters
from mcpregistry.downstream.transports.server_request import ProgressCallback

LARGE = 64 * 1024  # characters


async def remove_secrets(result: dict[str, Any], redactor: Redactor) -> tuple[dict[str, Any], int]:
    """The result, and how many secrets were replaced in it; the very same object when there are
    none."""
    if not redactor:
        return result, 0
    if count_characters(result) <= LARGE:
        return redactor.clean(result)
    return await asyncio.to_thread(redactor.clean, result)


def clean_refusal(error: ToolRefused, redactor: Redactor) -> tuple[ToolRefused, int]:
    """A server's refusal without its secrets, and how many were replaced."""
    said, count = redactor.clean([error.message, error.data])
    if not count:
        return error, 0
    cleaned = ToolRefused(said[0], rpc_code=error.rpc_code, data=said[1])
    cleaned.remedy = error.remedy
    return cleaned, count


def clean_failure(error: DownstreamError, redactor: Redactor) -> None:
    """Replace the secrets in the message of a failure, which may quote the server."""
    error.message = redactor.text(error.message)


def clean_progress(
    on_progress: ProgressCallback | None, redactor: Redactor
) -> ProgressCallback | None:
    """A progress callback that passes messages on without secrets; None stays None."""
    if on_progress is None or not redactor:
        return on_progress

    def report_clean_progress(progress: float, total: float | None, message: str | None) -> None:
        on_progress(progress, total, redactor.text(message) if message else message)

    return report_clean_progress
