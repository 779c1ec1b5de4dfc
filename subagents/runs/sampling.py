"""What a server asks of a model, answered by a run of the expert tool that the server's row names:
one turn of its model.

The messages were written by a server, so the expert tool must use no tools: then they can move
nothing. The run is the calling agent's, as one that it had called itself: its budgets and energy
bear it, and it is cancelled with the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from django.db import Error, transaction

from mcpregistry.calls.call import Call
from mcpregistry.calls.engine import Engine
from mcpregistry.calls.sampling import Sampler
from mcpregistry.calls.watch.state_watch import StateWatch
from mcpregistry.db import db_call
from mcpregistry.domain import error_texts
from mcpregistry.domain.calls.forwarding import HostUnansweredError
from mcpregistry.domain.errors import ConfigInvalid, SlipsnisseError
from subagents.domain.lifecycle import Exit, RunState
from subagents.models import RUN_TOPIC, ExpertTool, Run
from subagents.runs.run_answers import RunProgress, read_progress
from subagents.services import runs
from subagents.services.experts import text_parameter

_LOOK_AGAIN = 20.0
_LONGEST = 200_000  # characters of what is asked


def sampler(engine: Engine) -> Sampler:
    """The answerer for an engine; registered with ``subagents.extension``."""
    return Sampled(engine)


class Sampled:
    """Starts a run for each question, and waits for its end."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._watch: StateWatch[RunProgress] = StateWatch(engine.feed, RUN_TOPIC, read_progress)

    async def __call__(self, call: Call, params: Mapping[str, Any]) -> dict[str, Any]:
        """MCP's result of ``sampling/createMessage``. Raises Unanswered."""
        text = build_question(params)
        try:
            agent = await db_call(_agent, call.entry.offer.server.sampling_expert)
            if self._engine.get_run_catalogue(agent).entries:
                raise HostUnansweredError(
                    "The expert tool that answers questions of servers must not have tools."
                )
            beginning = asyncio.ensure_future(db_call(_begin, call, text))
        except SlipsnisseError as error:
            raise HostUnansweredError(error.message) from None
        except Error:
            raise HostUnansweredError("The database is unavailable.") from None
        try:
            return await db_call(_answer, await self._wait_for_end(await asyncio.shield(beginning)))
        except SlipsnisseError as error:
            raise HostUnansweredError(error.message) from None
        except Error:
            await asyncio.shield(_cancel_begun_run(beginning, call))
            raise HostUnansweredError("The database is unavailable.") from None
        except asyncio.CancelledError:
            await asyncio.shield(_cancel_begun_run(beginning, call))
            raise

    async def _wait_for_end(self, run_id: str) -> str:
        now = RunProgress(False, -1, -1, "")
        while not now.ended:
            now = await self._watch.wait_for_change(run_id, now, _LOOK_AGAIN)
        return run_id


def build_question(params: Mapping[str, Any]) -> str:
    """The messages as one text. Raises Unanswered for what a text cannot say: pictures, sounds,
    tools."""
    if params.get("tools") or params.get("toolChoice"):
        raise HostUnansweredError(
            "The request contains tools. The model that answers it cannot use tools of a server."
        )
    messages = params.get("messages")
    said = [_read_message(message) for message in (messages if isinstance(messages, list) else [])]
    if not said:
        raise HostUnansweredError("The request does not contain a message.")
    system = params.get("systemPrompt")
    parts = [f"Instructions:\n{system}"] if isinstance(system, str) and system else []
    parts += (
        [text for _, text in said]
        if len(said) == 1
        else [f"{role}:\n{text}" for role, text in said]
    )
    if len(whole := "\n\n".join(parts)) > _LONGEST:
        raise HostUnansweredError(
            f"The messages must have at most {_LONGEST:,} characters together."
        )
    return whole


def _read_message(message: object) -> tuple[str, str]:
    role, content = (
        (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
    )
    parts = content if isinstance(content, list) else [content]
    texts = [
        part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"
    ]
    if (
        role not in ("user", "assistant")
        or len(texts) != len(parts)
        or not all(isinstance(each, str) for each in texts)
    ):
        raise HostUnansweredError(
            "The messages contain something other than text. The model that answers them reads only text."
        )
    return str(role).capitalize(), "\n".join(map(str, texts))


def _find_expert(name: str) -> ExpertTool:
    found = ExpertTool.objects.filter(name=name, enabled=True).select_related("agent").first()
    if found is None:
        raise ConfigInvalid(
            error_texts.say_not_found("enabled expert tool", name),
            remedy="Enable it, or choose another expert tool.",
        )
    return found


def _agent(name: str) -> str:
    return _find_expert(name).agent.slug


@transaction.atomic
def _begin(call: Call, text: str) -> str:
    catalogue = call.request.catalogue
    request = call.request
    expert = _find_expert(call.entry.offer.server.sampling_expert)
    return runs.start(
        expert=expert.name,
        arguments={text_parameter(expert): text},
        origin=runs.SAMPLING,
        caller=catalogue.agent.slug,
        endpoint=catalogue.endpoint.slug,
        call_id=call.id,
        parent=request.request_id if request.origin == "run" else "",
        requester=request.requester,
        conversation=request.conversation,
    ).pk


def _answer(run_id: str) -> dict[str, Any]:
    run = Run.objects.get(pk=run_id)
    if run.state != RunState.DONE:
        raise HostUnansweredError(
            f"The run of the expert tool ended without an answer: {run.exit or run.state}."
        )
    turn = run.turns.order_by("-number").first()
    return {
        "role": "assistant",
        "content": {"type": "text", "text": run.answer},
        "model": turn.model_name if turn is not None else run.expert_name,
        "stopReason": "maxTokens" if run.exit == Exit.CUT else "endTurn",
    }


async def _cancel_begun_run(beginning: asyncio.Future[str], call: Call) -> None:
    """The call is over: what it has begun is cancelled."""
    try:
        await db_call(
            runs.cancel,
            run_id=await beginning,
            actor=call.request.catalogue.agent.slug,
            reason="caller left",
        )
    except (SlipsnisseError, Error):
        # nothing was begun, or the clock cancels it once the call has ended
        return
