"""One request to a headend from its place in the queue to the end of its run; every interface is served by this.

The call goes through the ordinary engine, as a host's that takes tasks: the run is a row that a worker works on, and the call's
record ends with it. So this process only watches. A client that leaves before its turn is removed from the queue; one that leaves
later has its run cancelled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import structlog
from django.conf import settings
from django.db import Error

from mcpregistry.calls.call import CallOutcome, CallRequest, Host
from mcpregistry.calls.catalog import Catalogue, Entry
from mcpregistry.calls.engine import Engine
from mcpregistry.calls.recorded import outcome_by_id
from mcpregistry.calls.watch.waiting import Watch
from mcpregistry.db import db_call
from mcpregistry.domain.errors import NotFound, SlipsnisseError
from mcpregistry.domain.lifecycle import State
from mcpregistry.domain.servers.sessions import nameless_session
from mcpregistry.domain.text.canonical import canonical, digest
from mcpregistry.models import ApprovalRequest
from subagents.domain.formats import ANY, FORMAT, SCHEMA, Wanted, takes_formats
from subagents.domain.lifecycle import Exit, RunState
from subagents.headends.errors import Refused, of_code, of_error
from subagents.leased.queue import Queue
from subagents.llm.tokens import REFERENCE, counter, estimated
from subagents.models import RUN_TOPIC, Run, ToolCall
from subagents.runs.answers import CUT, META_KEY, Seen, seen
from subagents.runs.tool_source import KIND, find_expert, with_any_format
from subagents.services.headends import places
from subagents.services.headends.configuring import HeadendSpec
from subagents.services.headends.places import Place

log = structlog.get_logger(__name__)

_LOOK_AGAIN = 20.0
_CUT_SHORT = {Exit.CUT, Exit.MAX_TURNS, Exit.TIME_LIMIT, Exit.BUDGET, Exit.ENERGY, Exit.TOKEN_LIMIT}
NOBODY_WAITS = asyncio.Event()


class Left(Exception):
    """The client has gone; nobody is there to be answered."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of all turns of the run. ``cached`` is part of ``input``, ``reasoning`` of ``output``."""

    input: int = 0
    output: int = 0
    cached: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """``finish``: stop, length (a limit ended the run before its model was done), or waiting (a person is still asked)."""

    run: str
    text: str
    structured: str = ""
    finish: str = "stop"
    usage: Usage = Usage()


@dataclass(frozen=True, slots=True)
class Question:
    """What a client asks: the model as it calls it, the expert tool's own arguments, and the form of the answer."""

    model: str
    expert: str
    arguments: Mapping[str, Any]
    token_hash: str
    wanted: Wanted = ANY
    client: str = ""
    key: str = ""  # the Idempotency-Key
    most: int | None = None  # tokens of the answer


@dataclass
class Desk:
    """What the sessions of a process share."""

    engine: Engine
    background: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.queue = Queue(self.engine.feed, self.engine.process)
        self.watch: Watch[Seen] = Watch(self.engine.feed, RUN_TOPIC, seen)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that nobody waits for."""
        task = asyncio.ensure_future(work)
        self.background.add(task)
        task.add_done_callback(self.background.discard)

    async def close(self) -> None:
        """The process stops: open requests are told so."""
        self.watch.stop()
        await self.queue.close()
        await asyncio.gather(*self.background, return_exceptions=True)


class Session:
    """Made for one request. ``enter`` takes the place, ``answer`` waits for the run; ``leave`` must follow, whatever happens."""

    def __init__(self, desk: Desk, headend: HeadendSpec, agent: str, question: Question) -> None:
        self._desk, self._headend, self._agent, self._question = desk, headend, agent, question
        self._place: Place | None = None
        self._given_back = False
        self._begun = False  # the call may have been made
        self._over = False  # the client was told an end, or that it is to ask again
        self.doing = "waiting for a place"  # in words, for clients that show it
        self.told: Callable[[str], None] | None = None

    @property
    def call(self) -> str:
        """The id of the call; known once ``enter`` has returned."""
        assert self._place is not None
        return self._place.call

    async def enter(self) -> None:
        """Take a place in the queue. Raises Refused, with nothing started."""
        asked, wanted = self._question, self._question.wanted
        fingerprint = digest(asked.expert, canonical(asked.arguments), wanted.format, canonical(wanted.schema or {}))
        try:
            self._catalogue()
            self._desk.engine.check_open()
            self._place = await self._desk.queue.enter(
                self._headend, agent=self._agent, fingerprint=fingerprint, key=asked.key
            )
        except SlipsnisseError as error:
            raise of_error(error) from None
        except Error:
            log.exception("headend.database_failed", headend=self._headend.slug)
            raise Refused(503, "UNAVAILABLE", "The database did not answer. Ask again in a moment.") from None

    async def answer(self, left: asyncio.Event) -> Reply:
        """Wait for the turn, make the call, and wait for the end of its run.

        Raises Left when the client has gone, Refused for everything else that is no answer.
        """
        working = asyncio.ensure_future(self._answer())
        leaving = asyncio.ensure_future(left.wait())
        try:
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                self._check_welcome()
                return await asyncio.to_thread(limited, working.result(), self._question.most)
            raise Left
        except SlipsnisseError as error:
            raise of_error(error, started=self._begun) from None
        except Error:
            log.exception("headend.database_failed", call=self.call)
            raise Refused(503, "UNAVAILABLE", "The database did not answer.", started=self._begun) from None
        finally:
            leaving.cancel()
            working.cancel()

    async def leave(self) -> None:
        """Give the place back, and cancel what was begun for a client that has heard no end. Again does nothing."""
        if self._place is None or self._given_back:
            return
        place, self._given_back = self._place, True
        if self._begun and not self._over:
            await self._withdrawn(place.call)
        await self._desk.queue.leave(place, joinable=self._over and self.doing == ASKED_AGAIN)

    async def _answer(self) -> Reply:
        assert self._place is not None
        await self._desk.queue.turn(self._headend, self._place, self._queued)
        if self._place.joins and (known := await self._joined(self._place.call)) is not None:
            return known
        self._begun = True
        outcome = await self._desk.engine.call(self._request())
        return await self._followed(outcome.invocation_id) if outcome.task_id else self._at_once(outcome)

    def _check_welcome(self) -> None:
        """A token that was revoked meanwhile gets no answer any more."""
        if self._desk.engine.agent_of(self._question.token_hash) is None:
            raise Refused(
                401, "UNAUTHENTICATED", "Access has ended meanwhile; the run is on record.", started=self._begun
            )

    def _queued(self, ahead: int) -> None:
        self._say(f"waiting: {ahead} before this one")

    def _say(self, doing: str) -> None:
        self.doing = doing
        if self.told is not None:
            self.told(doing)

    def _catalogue(self) -> tuple[Catalogue, Entry]:
        """The expert tool as this agent may call it. Raises NotFound, the same for what is absent and what is not granted."""
        catalogue = self._desk.engine.catalogue(self._headend.endpoint, self._agent)
        entry = catalogue.entries.get(self._question.expert)
        if entry is None or entry.offer.kind != KIND:
            raise NotFound(
                f"The model '{self._question.model}' does not exist.", remedy="List the models to see which do."
            )
        return catalogue, entry

    def _request(self) -> CallRequest:
        catalogue, entry = self._catalogue()
        expert = find_expert(self._desk.engine.live.current, entry.offer.tool.name)
        arguments, wanted = dict(self._question.arguments), self._question.wanted
        if expert is not None:
            catalogue = with_any_format(catalogue, entry, expert)
            if takes_formats(expert.input_schema):
                arguments |= {FORMAT: wanted.format} if wanted.format else {}
                arguments |= {SCHEMA: dict(wanted.schema)} if wanted.schema is not None else {}
        return CallRequest(
            catalogue, entry.name, arguments, self._headend.kind, host_name=self._question.client,
            host=Host(name=self._question.client, transport=self._headend.kind, tasks=True), call_id=self.call,
            session=nameless_session(self._headend.endpoint),
        )  # fmt: skip

    async def _joined(self, call: str) -> Reply | None:
        """The answer of the run that an earlier request has begun; None where it has begun none."""
        run = await db_call(Run.objects.filter(call_id=call).first)
        if run is not None:
            self._begun = True
            return await self._followed(call)
        outcome = await db_call(outcome_by_id, call)
        return self._at_once(outcome) if outcome is not None else None

    def _at_once(self, outcome: CallOutcome) -> Reply:
        """The end of a call that began no run of its own: it was refused, or an earlier answer is given again."""
        self._over = True
        if outcome.state is not State.SUCCEEDED or outcome.result is None:
            raise of_code(outcome.error_code, outcome.message, outcome.remedy, started=outcome.state is State.UNKNOWN)
        texts = [part["text"] for part in outcome.result.get("content", ()) if part.get("type") == "text"]
        meta = (outcome.result.get("_meta") or {}).get(META_KEY) or {}
        structured = outcome.result.get("structuredContent")
        return Reply(
            str(meta.get("run", "")), texts[0] if texts else "", "" if structured is None else canonical(structured)
        )

    async def _followed(self, call: str) -> Reply:
        run_id = await db_call(Run.objects.filter(call_id=call).values_list("pk", flat=True).get)
        now, waited = Seen(False, -1, -1, ""), 0.0
        while not now.ended:
            if now.waits and waited >= self._headend.patience:
                return await self._asked_again(run_id)
            rest = self._headend.patience - waited if now.waits else _LOOK_AGAIN
            since = time.monotonic()
            before, now = now, await self._desk.watch.until_not(run_id, now, min(rest, _LOOK_AGAIN))
            waited += time.monotonic() - since if before.waits else 0.0
            if self._desk.watch.stopping:
                raise Refused(503, "BUSY", "The site is shutting down; the run goes on.", run=run_id, started=True)
            if now != before:
                self._say(now.doing)
        run = await db_call(Run.objects.get, pk=run_id)
        self._over = True
        return reply_of(run)

    async def _asked_again(self, run_id: str) -> Reply:
        """Tell the client of the person who is asked; the run goes on, and the same question gets its answer."""
        text = await db_call(_waits_for, run_id)
        self._over, self.doing = True, ASKED_AGAIN
        return Reply(run_id, text, finish="waiting")

    async def _withdrawn(self, call: str) -> None:
        try:
            await db_call(places.withdraw, call)
        except Error:  # the sweep ends what nobody waits for once the place's lease is over
            log.exception("headend.run_not_cancelled", call=call)


ASKED_AGAIN = "a person is asked; ask again"


def reply_of(run: Run) -> Reply:
    """The end of a run. Raises Refused for one that has no answer."""
    usage = Usage(run.input_tokens, run.output_tokens, run.cached_tokens, run.reasoning_tokens)
    if run.state == RunState.DONE:
        text = f"{run.answer}\n\n{CUT}" if run.exit == Exit.CUT else run.answer
        return Reply(run.pk, text, run.structured, "length" if run.exit in _CUT_SHORT else "stop", usage)
    said = f" So far: {run.answer}" if run.answer and run.exit != Exit.INVALID_OUTPUT else ""
    raise Refused(
        422, run.exit or "run_failed", f"{run.error or 'The run was cancelled.'}{said}", run=run.pk, started=True
    )


def limited(reply: Reply, most: int | None) -> Reply:
    """With at most so many tokens, by one tokenizer for all models."""
    if most is None or estimated(reply.text) <= most or (count := counter(REFERENCE))(reply.text) <= most:
        return reply
    fits, too_many = 0, len(reply.text)
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        fits, too_many = (middle, too_many) if count(reply.text[:middle]) <= most else (fits, middle)
    return replace(reply, text=reply.text[:fits], structured="", finish="length")


def _waits_for(run_id: str) -> str:
    """What is waited for, with the page where it is decided."""
    calls = ToolCall.objects.filter(run=run_id, finished_at=None).exclude(invocation="")
    asked = ApprovalRequest.objects.filter(call__in=list(calls.values_list("invocation", flat=True)), decided_at=None)
    pages = [f"{settings.SITE_URL}/approvals/{pk}/" for pk in asked.values_list("pk", flat=True)]
    where = "\n".join(pages) or f"{settings.SITE_URL}/approvals/"
    return (
        f"A person has to approve a call before this can go on:\n{where}\n"
        "The work continues as soon as they have decided. Ask the same question again to get the answer."
    )
