"""The one door to models: ``complete`` makes one turn, whoever the provider is.

Only this module imports litellm, inside functions and in the worker alone: the import takes four
seconds and 180 MB. What litellm would do by itself is switched off, because it hides attempts,
costs or secrets: its retries, callbacks, price look-ups in the network, tokenizer downloads,
``.env`` files, and keys from our environment. Its requests go out through ``guarded``. Turns are
never streamed: a stream that was cut looks complete to it. ``tests/subagents/llm/test_client.py``
holds each of these to the installed version.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mcpregistry.garbage_collection import freeze_afterwards
from subagents.domain.model_errors import ErrorKind, ModelError
from subagents.llm import anthropic, chat
from subagents.llm.failures import translate_error
from subagents.llm.model_values import Message, ModelReply, ModelTarget, Tool
from subagents.llm.text_parts import join_parts

if TYPE_CHECKING:
    from mcpregistry.downstream.http_client.httpx_transport import ObservedRequest

# Before the import: afterwards they change nothing.
_SWITCHES = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_LOCAL_BLOG_POSTS": "True",
    "LITELLM_MODE": "PRODUCTION",  # the default reads a .env file into our environment
    "LITELLM_RUST": "0",  # its native core does not survive a fork
    "HF_HUB_OFFLINE": "1",
}
_NO_KEY = "none"  # with no key at all litellm would take one from our environment and send it there


async def complete(
    target: ModelTarget,
    messages: Sequence[Message],
    tools: Sequence[Tool] = (),
    *,
    response_schema: Mapping[str, Any] | None = None,
    trace: Callable[[ModelTarget, Sequence[ObservedRequest]], Awaitable[None]] | None = None,
) -> ModelReply:
    """One turn. Messages and tools are in OpenAI's shape. Raises ModelError; cancelling drops the
    line.

    ``trace`` is called with the HTTP requests of this turn, also if it fails. They contain secrets.

    ``tools`` empty means that the model cannot call any: some providers ignore ``tool_choice``. A
    message may have two keys of our own (see ``values``): the ``state`` of an answer of this very
    model, and that a tool has failed.
    """
    litellm = await ready()
    from subagents.llm import guarded_transport  # brings httpx along, which is litellm's

    wire, ask = (
        (anthropic, litellm.anthropic_messages)
        if target.kind == "anthropic"
        else (chat, litellm.acompletion)
    )
    request = wire.request(target, messages, tools, response_schema) | _common(target)
    observed: list[ObservedRequest] = []
    way = guarded_transport.GuardedRoute(
        target.networks, join_parts, observed if trace is not None else None
    )
    try:
        with way.activate_route():
            # some adapters ignore the timeout they are given
            async with asyncio.timeout(target.timeout + 1):
                response = await ask(**request)
    except TimeoutError:
        raise ModelError(
            ErrorKind.TIMEOUT,
            f"The provider did not answer within {target.timeout:g} s.",
            status=408,
        ) from None
    except Exception as error:  # noqa: BLE001 - whatever an adapter raises, the run must hear it in our words
        raise (
            guarded_transport.failure(way) or translate_error(error, target, way.status)
        ) from None
    finally:
        if trace is not None:
            await trace(target, observed)
    try:
        return wire.reply(response, target)
    except (AttributeError, KeyError, IndexError, TypeError):
        raise ModelError(
            ErrorKind.UNREADABLE, "The answer of the provider does not contain a message."
        ) from None


async def ready() -> ModuleType:
    """litellm, imported in a thread if that is still to do: leases are kept on this loop
    meanwhile."""
    return load_litellm() if is_loaded() else await asyncio.to_thread(load_litellm)


def is_loaded() -> bool:
    """Whether a turn can begin at once, or waits for the import of litellm first: a second or
    two."""
    return bool(load_litellm.cache_info().currsize)


@lru_cache(maxsize=1)
def load_litellm() -> ModuleType:
    """litellm, imported once with everything off that would act behind our back. Takes seconds."""
    os.environ.update(_SWITCHES)
    with freeze_afterwards():
        import litellm
        import openai.resources.chat  # noqa: F401 - else the first request does, on the event loop
        from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler

        from subagents.llm import guarded_transport

    # Where tiktoken finds its tables; it would download them. litellm says so itself only with one
    # of 50 MB loaded.
    os.environ["TIKTOKEN_CACHE_DIR"] = str(
        Path(litellm.__file__).parent / "litellm_core_utils" / "tokenizers"
    )
    litellm.suppress_debug_info = True  # it prints help texts to standard output
    litellm.disable_hf_tokenizer_download = True
    litellm.telemetry = False
    # it warns about models it has not heard of, on every call
    logging.getLogger("LiteLLM").setLevel(logging.ERROR)
    for hooks in ("callbacks", "success_callback", "failure_callback", "_async_success_callback"):
        getattr(litellm, hooks, []).clear()
    guarded_transport.install(litellm, AsyncHTTPHandler)
    litellm.ModelResponse()  # its types are put together now, not within the first answer
    return litellm


async def close() -> None:
    """Close the connections of this loop; the worker calls it once, when it stops."""
    if is_loaded():
        await load_litellm().close_litellm_async_clients()


def _common(target: ModelTarget) -> dict[str, Any]:
    common: dict[str, Any] = {
        "api_key": target.key or _NO_KEY,
        "timeout": target.timeout,
        "stream": False,
        "max_retries": 0,
        "num_retries": 0,
        "drop_params": True,  # of our own: a temperature, for models that have none
        "extra_headers": {"Accept": "application/json", **target.headers},
    }
    if target.base_url:
        common["api_base"] = _base(target)
    return common


def _base(target: ModelTarget) -> str:
    """The address in the form that the adapter wants: the one for Google adds no version by
    itself."""
    base = target.base_url.rstrip("/")
    if target.kind == "google" and not re.search(r"/v\d\w*$", base):
        return f"{base}/v1beta"
    return base
