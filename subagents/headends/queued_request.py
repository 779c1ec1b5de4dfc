"""One request to a headend, from its place in the queue to the end of its run. All interfaces use
it.

The call goes through the ordinary engine as a task: a worker executes the run, and the end of the
run ends the record of the call. This process only watches the run. If a client disconnects before
its turn, its request is removed from the queue. If it disconnects later, its run is cancelled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import structlog
from django.conf import settings
from django.db import Error

from mcpregistry.calls.call import CallHost, CallOutcome, CallRequest
from mcpregistry.calls.catalog import Catalogue, CatalogueEntry
from mcpregistry.calls.engine import Engine
from mcpregistry.calls.recorded_outcomes import load_outcome
from mcpregistry.calls.watch.state_watch import StateWatch
from mcpregistry.db import db_call
from mcpregistry.domain.errors import NotFound, SlipsnisseError
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.servers.sessions import name_implicit_session
from mcpregistry.domain.text.canonical import encode_canonical_json
from mcpregistry.gateway.caller_identity import Caller
from mcpregistry.gateway.http.access import Access
from mcpregistry.models import ApprovalRequest, Invocation
from mcpregistry.models.signing import compute_keyed_digest
from subagents.domain.formats import FORMAT, JSON, OWN_FORMAT, SCHEMA, AnswerFormat, takes_formats
from subagents.domain.lifecycle import Exit, RunState
from subagents.headends.chat_arguments import WAITING
from subagents.headends.errors import HeadendError, from_code, from_error
from subagents.leased.turn_queue import Queue
from subagents.llm.tokens import REFERENCE, counter, estimate_tokens
from subagents.models import RUN_TOPIC, HeadendKind, Run, ToolCall
from subagents.runs.run_answers import CUT, META_KEY, RunProgress, read_progress
from subagents.runs.tool_source import KIND, find_expert, with_any_format
from subagents.services.headends import queue_places
from subagents.services.headends.configuring import HeadendSpec
from subagents.services.headends.queue_places import QueuePlace

log = structlog.get_logger(__name__)

_LOOK_AGAIN = 20.0
_CUT_SHORT = {Exit.CUT, Exit.MAX_TURNS, Exit.TIME_LIMIT, Exit.BUDGET, Exit.ENERGY, Exit.TOKEN_LIMIT}


class ClientLeftError(Exception):
    """The client has disconnected."""


@dataclass(frozen=True, slots=True)
class RunUsage:
    """Tokens of all turns of a run. ``cached`` is part of ``input``, ``reasoning`` is part of
    ``output``."""

    input: int = 0
    output: int = 0
    cached: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class RunReply:
    """The answer of a run. ``finish``: stop, length (a limit ended the run early), or waiting (for
    an approval)."""

    run: str
    text: str
    structured: str = ""
    finish: str = "stop"
    usage: RunUsage = RunUsage()


@dataclass(frozen=True, slots=True)
class HeadendQuestion:
    """A request of a client. ``model`` is the id in the request, ``arguments`` are those of the
    expert tool."""

    model: str
    expert: str
    arguments: Mapping[str, Any]
    token_hash: str
    answer_format: AnswerFormat = OWN_FORMAT
    client: str = ""
    key: str = ""  # the Idempotency-Key
    is_retry: bool = False  # the client has sent the same request before, and got no answer
    max_tokens: int | None = None  # of the answer


@dataclass
class SharedState:
    """State that all sessions of a process share."""

    engine: Engine

    def __post_init__(self) -> None:
        self.queue = Queue(self.engine.feed, self.engine.process)
        self.watch: StateWatch[RunProgress] = StateWatch(self.engine.feed, RUN_TOPIC, read_progress)
        self.access = Access(self.engine)
        self.access.start()

    def begin_stop(self) -> None:
        """End all open requests. Their runs continue."""
        self.watch.stop()
        self.queue.begin_stop()

    async def close(self) -> None:
        """Stop watching, and stop renewing leases."""
        self.begin_stop()
        self.access.close()
        await self.queue.close()


class QueuedRequest:
    """One request. Call ``enter``, then ``answer``, and ``leave`` in any case."""

    def __init__(
        self, shared: SharedState, headend: HeadendSpec, agent: str, question: HeadendQuestion
    ) -> None:
        self._shared = shared
        self._headend = headend
        self._agent = agent
        self._question = question
        self._place: QueuePlace | None = None
        self._is_released = False
        self._begun = False  # the call may have been made
        self._calling: asyncio.Future[CallOutcome] | None = None
        self.is_joinable = False  # the same question gets the answer of this run
        self._over = False  # the client gets an answer or an error
        self.status = "waiting for a place in the queue"  # a phrase, for clients that show it
        self.caller = Caller(agent, headend.endpoint, headend.kind)
        self.token_hash = question.token_hash
        self.session = b""  # for ``Access``: it belongs to no session of a host
        self._access_ended = asyncio.Event()

    @property
    def call(self) -> str:
        """The id of the call. Available after ``enter``."""
        assert self._place is not None
        return self._place.call

    async def enter(self) -> None:
        """Join the queue. Raises HeadendError; then nothing was started."""
        asked = self._question
        answer_format = self._question.answer_format
        try:
            fingerprint = compute_keyed_digest(
                "question",
                asked.expert,
                encode_canonical_json(asked.arguments),
                answer_format.format,
                encode_canonical_json(answer_format.schema or {}),
            )
            self._catalogue()
            self._shared.engine.check_open()
            self._place = await self._shared.queue.join(
                self._headend,
                agent=self._agent,
                fingerprint=fingerprint,
                key=asked.key,
                is_retry=asked.is_retry,
            )
        except SlipsnisseError as error:
            raise from_error(error) from None
        except ValueError:
            raise HeadendError(
                400,
                "invalid_request",
                "The request contains a value that JSON does not support (NaN or infinity).",
            ) from None
        except Error:
            log.exception("headend.database_failed", headend=self._headend.slug)
            raise HeadendError(
                503,
                "UNAVAILABLE",
                "The database is unavailable. No run was started. Try again in a moment.",
            ) from None

    async def answer(self, left: asyncio.Event) -> RunReply:
        """Wait for the turn, make the call, and wait for the end of the run.

        Raises ClientLeftError if the client disconnects, and HeadendError in all other cases
        without an answer.
        """
        working = asyncio.ensure_future(self._answer())
        ending = [asyncio.ensure_future(event.wait()) for event in (left, self._access_ended)]
        self._shared.access.add(self)
        try:
            await asyncio.wait({working, *ending}, return_when=asyncio.FIRST_COMPLETED)
            if left.is_set() and not working.done():
                raise ClientLeftError
            self._check_access()
            return await asyncio.to_thread(truncate, working.result(), self._question.max_tokens)
        except SlipsnisseError as error:
            raise from_error(error, started=self._begun) from None
        except Error:
            log.exception("headend.database_failed", call=self.call)
            raise HeadendError(
                503,
                "UNAVAILABLE",
                "The database is unavailable. It is not known whether a run has started: check the list under Expert tools, Runs.",
                started=self._begun,
            ) from None
        finally:
            self._shared.access.remove(self)
            for task in (working, *ending):
                task.cancel()
            if self._calling is not None and self._question.key:
                await asyncio.gather(
                    self._calling, return_exceptions=True
                )  # a repeated request joins the run, so it has to exist

    def end(self, why: str) -> None:
        """End the request, because its access has ended; see ``Access``."""
        self._access_ended.set()

    async def leave(self) -> None:
        """Release the place. A second call does nothing.

        If the client gets no answer, its run is cancelled, unless a later request can get the
        answer with the same key.
        """
        if self._place is None or self._is_released:
            return
        place = self._place
        self._is_released = True
        if self._begun and not self._over and not self._question.key:
            await self._abandon(place)
        await self._shared.queue.leave(place, joinable=self.is_joinable)

    async def _answer(self) -> RunReply:
        assert self._place is not None
        await self._shared.queue.wait_for_turn(self._headend, self._place, self._report_position)
        self._check_access()
        if self._place.joins and (known := await self._join_run(self._place.call)) is not None:
            return known
        self._begun = True
        self._calling = asyncio.ensure_future(self._shared.engine.call(self._request()))
        outcome = await (asyncio.shield(self._calling) if self._question.key else self._calling)
        return (
            await self._follow_run(outcome.invocation_id)
            if outcome.task_id
            else self._read_outcome(outcome)
        )

    def _check_access(self) -> None:
        """Raise HeadendError (401) if the access of the client has ended in the meantime."""
        if not self._access_ended.is_set() and self._shared.access.has_access(self):
            return
        state = (
            "The run is still listed under Expert tools, Runs."
            if self._begun
            else "No run was started."
        )
        raise HeadendError(
            401,
            "UNAUTHENTICATED",
            "The token has expired or was revoked in the meantime, or its agent or endpoint was disabled or deleted. "
            + state,
            started=self._begun,
        )

    def _report_position(self, ahead: int) -> None:
        self._set_status(f"waiting in the queue, position {ahead}")

    def _set_status(self, status: str) -> None:
        self.status = status

    def _catalogue(self) -> tuple[Catalogue, CatalogueEntry]:
        """Find the expert tool in the agent's catalogue. Raises NotFound."""
        catalogue = self._shared.engine.get_catalogue(self._headend.endpoint, self._agent)
        entry = catalogue.entries.get(self._question.expert)
        if entry is None or entry.offer.kind != KIND:
            raise NotFound(
                f'No model named "{self._question.model}".',
                remedy="List the models with GET /models.",
            )
        return catalogue, entry

    def _request(self) -> CallRequest:
        catalogue, entry = self._catalogue()
        expert = find_expert(self._shared.engine.live.current, entry.offer.tool.name)
        arguments = dict(self._question.arguments)
        answer_format = self._question.answer_format
        if expert is not None:
            catalogue = with_any_format(catalogue, entry, expert)
            if takes_formats(expert.input_schema):
                arguments |= {FORMAT: answer_format.format} if answer_format.format else {}
                arguments |= (
                    {SCHEMA: dict(answer_format.schema)} if answer_format.schema is not None else {}
                )
        return CallRequest(
            catalogue,
            entry.name,
            arguments,
            self._headend.kind,
            host_name=self._question.client,
            host=CallHost(name=self._question.client, transport=self._headend.kind, tasks=True),
            call_id=self.call,
            session=name_implicit_session(self._headend.endpoint),
        )

    async def _join_run(self, call: str) -> RunReply | None:
        """Return the answer of the run that an earlier request started, or None if it made no call.

        Raises HeadendError (503) if the process of that request died before it started the run.
        """
        outcome = await db_call(load_outcome, call)
        if await db_call(_find_run, call) is not None:
            self._begun = True
            return await self._follow_run(call)
        if await db_call(_has_no_run_yet, call):
            raise HeadendError(
                503,
                "BUSY",
                "The process of the first request ended before the run was started. Repeat the request.",
            )
        return self._read_outcome(outcome) if outcome is not None else None

    def _read_outcome(self, outcome: CallOutcome) -> RunReply:
        """Return the result of a call that started no run: it was refused, or a cached answer is
        used."""
        self._over = True
        if outcome.state is not InvocationState.SUCCEEDED or outcome.result is None:
            raise from_code(
                outcome.error_code,
                outcome.message,
                outcome.remedy,
                started=outcome.state is InvocationState.UNKNOWN,
            )
        texts = [
            part["text"] for part in outcome.result.get("content", ()) if part.get("type") == "text"
        ]
        meta = (outcome.result.get("_meta") or {}).get(META_KEY) or {}
        structured = outcome.result.get("structuredContent")
        return RunReply(
            str(meta.get("run", "")),
            texts[0] if texts else "",
            "" if structured is None else encode_canonical_json(structured),
        )

    async def _follow_run(self, call: str) -> RunReply:
        run_id = (await db_call(_get_run, call)).pk
        now = RunProgress(False, -1, -1, "")
        waited = 0.0
        while not now.ended:
            if now.waits and waited >= self._headend.patience:
                return await self._report_waiting(run_id)
            rest = self._headend.patience - waited if now.waits else _LOOK_AGAIN
            since = time.monotonic()
            before = now
            now = await self._shared.watch.wait_for_change(run_id, now, min(rest, _LOOK_AGAIN))
            waited += time.monotonic() - since if before.waits else 0.0
            if self._shared.watch.stopping:
                self._over = True
                self.is_joinable = True
                raise HeadendError(
                    503,
                    "BUSY",
                    "The site is shutting down. The run continues. Repeat the request to get its answer.",
                    run=run_id,
                )
            if now != before:
                self._set_status(now.doing)
        run = await db_call(_get_run, call)
        self._over = True
        return read_reply(run)

    async def _report_waiting(self, run_id: str) -> RunReply:
        """Return a text about the approval. The run continues, and the same question gets its
        answer later.

        Raises HeadendError (409) if the client would read the text as JSON.
        """
        text = await db_call(_describe_approvals, run_id)
        self._over = True
        self.is_joinable = True
        if self._question.answer_format.format == JSON and self._headend.kind != HeadendKind.REST:
            raise HeadendError(409, "WAITING_FOR_APPROVAL", text, run=run_id, started=True)
        return RunReply(run_id, text, finish="waiting")

    async def _abandon(self, place: QueuePlace) -> None:
        try:
            await db_call(queue_places.abandon, place)
        except Error:  # the sweep cancels the run after the end of the lease
            log.exception("headend.run_not_cancelled", call=place.call)


def read_reply(run: Run) -> RunReply:
    """Return the answer of a run that has ended. Raises HeadendError if it has none."""
    usage = RunUsage(run.input_tokens, run.output_tokens, run.cached_tokens, run.reasoning_tokens)
    if run.state == RunState.DONE:
        text = f"{run.answer}\n\n{CUT}" if run.exit == Exit.CUT else run.answer
        return RunReply(
            run.pk, text, run.structured, "length" if run.exit in _CUT_SHORT else "stop", usage
        )
    said = f" So far: {run.answer}" if run.answer and run.exit != Exit.INVALID_OUTPUT else ""
    raise HeadendError(
        422,
        run.exit or "run_failed",
        f"{run.error or 'The run was cancelled.'}{said}",
        run=run.pk,
        started=True,
    )


def truncate(reply: RunReply, max_tokens: int | None) -> RunReply:
    """Cut the text after ``max_tokens``, counted with the same tokenizer for all models. A link to
    an approval is not cut."""
    if (
        max_tokens is None
        or reply.finish == "waiting"
        or estimate_tokens(reply.text) <= max_tokens
        or (count := counter(REFERENCE))(reply.text) <= max_tokens
    ):
        return reply
    fits = 0
    too_many = len(reply.text)
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        fits, too_many = (
            (middle, too_many) if count(reply.text[:middle]) <= max_tokens else (fits, middle)
        )
    return replace(reply, text=reply.text[:fits], structured="", finish="length")


def _find_run(call: str) -> Run | None:
    return Run.objects.filter(call_id=call).first()


def _has_no_run_yet(call: str) -> bool:
    """Whether the call was made, and its run can start only if its process still lives."""
    return Invocation.objects.filter(
        pk=call, state=InvocationState.DISPATCHED
    ).exists() or queue_places.was_lost(call)


def _get_run(call: str) -> Run:
    return Run.objects.get(call_id=call)


def _describe_approvals(run_id: str) -> str:
    """Return a text with the links of the approvals that the run waits for."""
    calls = ToolCall.objects.filter(run=run_id, finished_at=None).exclude(invocation="")
    asked = ApprovalRequest.objects.filter(
        call__in=list(calls.values_list("invocation", flat=True)), decided_at=None
    )
    pages = [f"{settings.SITE_URL}/approvals/{pk}/" for pk in asked.values_list("pk", flat=True)]
    where = "\n".join(pages) or f"{settings.SITE_URL}/approvals/"
    return f"{WAITING}\n{where}\nThe run continues after the decision. Ask the same question again to get the answer."
