"""What a server says about a call, without the secrets that we gave it to start or to reach it.

Looked through before anybody else sees it: the host, the record, a run. Servers that were given no
secret cost nothing; a large answer is looked through in a thread, so that it holds up nobody.
"""

from __future__ import annotations

import asyncio
from typing import Any

from mcpregistry.domain.errors import ToolRefused
from mcpregistry.domain.redaction import Blotter, characters
from mcpregistry.downstream.wire import ProgressCallback

LARGE = 64 * 1024  # characters


async def without_secrets(result: dict[str, Any], blotter: Blotter) -> tuple[dict[str, Any], int]:
    """The result, and how many secrets were replaced in it; the very same object when there are none."""
    if not blotter:
        return result, 0
    if characters(result) <= LARGE:
        return blotter.clean(result)
    return await asyncio.to_thread(blotter.clean, result)


def refusal_without_secrets(error: ToolRefused, blotter: Blotter) -> tuple[ToolRefused, int]:
    said, count = blotter.clean([error.message, error.data])
    if not count:
        return error, 0
    return ToolRefused(said[0], rpc_code=error.rpc_code, data=said[1]), count


def progress_without_secrets(on_progress: ProgressCallback | None, blotter: Blotter) -> ProgressCallback | None:
    if on_progress is None or not blotter:
        return on_progress

    def told(progress: float, total: float | None, message: str | None) -> None:
        on_progress(progress, total, blotter.text(message) if message else message)

    return told
