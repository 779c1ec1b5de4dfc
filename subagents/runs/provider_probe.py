"""Whether a provider answers: one of its models is asked for a word, in the worker, outside of any
run."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import structlog

from mcpregistry.db import db_call
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.text.display import number_of
from subagents.domain.model_errors import ErrorKind, ModelError
from subagents.llm import client
from subagents.models import LanguageModel
from subagents.runs.targets import build_target
from subagents.services import providers

log = structlog.get_logger(__name__)

_QUESTION = [{"role": "user", "content": "Answer with the single word: ready"}]
# tokens: some models think before they say a word, and Claude takes half of these for it
_MOST_OUTPUT = 2_048
_PATIENCE = 30.0  # seconds
_REMEDIES = {
    ErrorKind.AUTH: "Enter the key again: it may be wrong or expired, or not allow this model.",
    ErrorKind.QUOTA: "The account has no credit left. Add credit at the provider.",
    ErrorKind.NOT_FOUND: "Check the name of the model and the base URL: the provider does not know one of them.",
    ErrorKind.TIMEOUT: "Check the base URL, and that this machine can reach it.",
}
_going: set[asyncio.Task[None]] = set()


def begin(provider_id: int, model_id: int) -> None:
    """Ask soon. Call it on the loop's thread."""
    task = asyncio.ensure_future(probe(provider_id, model_id))
    _going.add(task)
    task.add_done_callback(_going.discard)


async def probe(provider_id: int, model_id: int) -> None:
    """Ask the model once and note what came; an error is noted with what to do about it."""
    began = time.monotonic()
    try:
        text = await _ask_model(model_id)
        error = ""
    except ModelError as failed:
        text = ""
        error = f"{failed.message} {_REMEDIES.get(failed.kind, '')}".strip()
    except (SlipsnisseError, LanguageModel.DoesNotExist) as failed:
        text = ""
        error = str(failed)
    except Exception:
        log.exception("provider.test_crashed", provider=provider_id)
        text = ""
        error = "The test failed because of an internal error. See the log of the worker for the reason."
    took = (time.monotonic() - began) * 1000
    await db_call(
        providers.note_test, provider_id=provider_id, answer=text, error=error, took_ms=took
    )


async def _ask_model(model_id: int) -> str:
    await client.ready()
    target = await db_call(build_target, model_id, temperature=0.0, at_most=_PATIENCE)
    reply = await client.complete(
        replace(target, max_output=min(target.max_output, _MOST_OUTPUT)), _QUESTION
    )
    return reply.text or f"({number_of(len(reply.calls), 'tool call')} and no text)"
