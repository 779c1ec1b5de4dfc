"""One cycle: give the answers that are there, and have new ones made, as energy allows.

It waits for nothing: models are asked by runs, which it starts and finds ended. First it polls the
background sub-agent (what it tells, what it has used) and decides on its work; then it answers.
Each of the two is one transaction of whoever holds the lease, so a worker that dies leaves it
undone as a whole.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet, Subquery

from mcpregistry.db import read_database_now
from mcpregistry.domain.calls.requester import NOBODY, Requester
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.text.display import number_of
from mcpregistry.models import Conversation, EnergyPool, Message
from mcpregistry.models.conversation import LONGEST_MESSAGE, MessageKind
from mcpregistry.queries.conversations import list_latest_messages
from mcpregistry.services.conversations import messages
from subagents import energy
from subagents.domain.lifecycle import RunState
from subagents.domain.maintenance import RequestMessageKind as Told
from subagents.leased.leases import Lease, Leases
from subagents.maintenance import queue
from subagents.models import CycleLog, EffortAgent, Exchange, MaintenanceRequest
from subagents.services import runs
from subagents.services.experts import text_parameter

AGENTS = Leases(EffortAgent)
SUB_AGENT = "sub-agent"  # the author of what it tells, in a conversation
AT_ONCE = 3  # answers of one agent that are made beside each other
_SAID = 40  # messages that an answer sees
_LONGEST = 60_000  # characters of them


def list_due_agents(now: datetime) -> list[str]:
    """Agents that are switched on and that no worker drives."""
    free = Q(lease_until=None) | Q(lease_until__lt=now)
    return list(EffortAgent.objects.filter(free, enabled=True).values_list("pk", flat=True))


def take(key: str, *, worker: str) -> Lease | None:
    """The lease of its cycles, or None: another worker has it, or it is switched off."""
    fence = EffortAgent.objects.filter(pk=key, enabled=True).values_list("fence", flat=True).first()
    return (
        None if fence is None else AGENTS.take(key, fence, worker=worker, now=read_database_now())
    )


def renew(lease: Lease) -> bool:
    """Keep it. Returns whether it shall stop. Raises LostLease."""
    AGENTS.renew(lease)
    return not EffortAgent.objects.filter(pk=lease.key, enabled=True).exists()


@dataclass(frozen=True, slots=True)
class Cycle:
    """What a cycle needs to know: the agent, and how its energy stands once the sub-agent's is
    taken (None without a pool)."""

    agent: EffortAgent
    level: float | None
    critical: float

    @property
    def may_work(self) -> bool:
        """Whether there is energy to have an answer made."""
        if self.level is None:
            return True
        return self.level >= max(self.critical, self.agent.awaits_level or 0.0)


def turn(lease: Lease) -> float | None:
    """One cycle. Returns the seconds until the next; None: it was switched off. Raises
    LostLease."""
    began = time.monotonic()
    with transaction.atomic():  # by itself: calls of the agent wait for its pool meanwhile
        if renew(lease):
            return None
        before, polled, did = _poll(_load_agent(lease))
    with transaction.atomic():
        if renew(lease):
            return None
        agent = _load_agent(lease)
        pool = _find_pool(agent)
        level = _level(pool)
        cycle = Cycle(agent, level, pool.critical if pool else 0.0)
        did += _tell(cycle)
        waiting = _list_waiting(cycle)
        lacks_energy = bool(waiting) and not cycle.may_work
        did += _report_lack(agent, waiting) if lacks_energy else _begin(agent, waiting)
        if did or polled:
            CycleLog.objects.create(
                agent=agent,
                at=read_database_now(),
                level=before,
                level_after=level,
                polled=polled,
                took_ms=(time.monotonic() - began) * 1000,
                decision="; ".join(did)[:500],
                lacks_energy=lacks_energy,
            )
        return agent.cycle_seconds


def _load_agent(lease: Lease) -> EffortAgent:
    return EffortAgent.objects.select_related("expert__agent").get(pk=lease.key)


def _find_pool(agent: EffortAgent) -> EnergyPool | None:
    return EnergyPool.objects.with_reserved().filter(agents=agent.expert.agent_id).first()


def _level(pool: EnergyPool | None) -> float | None:
    return pool.stand.level_at(read_database_now()) if pool else None


def _poll(agent: EffortAgent) -> tuple[float | None, float, list[str]]:
    """Hear the sub-agent, take what it has used, and decide on its work. Returns the level before,
    what was used, what was done."""
    did = _relay_messages(agent)
    pool = _find_pool(agent)
    if pool is None:
        return None, 0.0, did
    before = _level(pool)
    used = energy.charge(agent.expert.agent.slug, pool.pk)
    return before, used, did + energy.decide(_find_pool(agent) or pool)


def _relay_messages(agent: EffortAgent) -> list[str]:
    """What the sub-agent tells is written where the agent asked, if that goes on: then it answers
    to it."""
    heard = queue.poll_messages(MaintenanceRequest.objects.filter(agent=agent.expert.agent.slug))
    open_ones = Conversation.objects.open().filter(agent=agent.expert.agent)
    for each in heard:
        talk = (
            open_ones.filter(pk=each.request.conversation).first()
            if each.kind != Told.STATUS
            else None
        )
        if talk is not None:
            text = f"{each.request}: {each.kind} {json.dumps(each.data, ensure_ascii=False)}"[
                :LONGEST_MESSAGE
            ]
            messages.add_message(
                conversation=talk, kind=MessageKind.IN, text=text, author=SUB_AGENT
            )
    return (
        [f"received {len(heard)} message{'s' * (len(heard) > 1)} from the sub-agent"]
        if heard
        else []
    )


def _tell(cycle: Cycle) -> list[str]:
    """Write the answers of runs that have ended into their conversations, each once."""
    open_ones = Exchange.objects.filter(told_at=None, conversation__agent=cycle.agent.expert.agent)
    ended = open_ones.filter(run__finished_at__isnull=False).select_related(
        "conversation__agent", "run"
    )
    return [_send_answer(exchange) for exchange in ended]


def _send_answer(exchange: Exchange) -> str:
    run = exchange.run
    conversation = exchange.conversation
    assert run is not None  # one that could not be started was told at once
    Exchange.objects.filter(pk=exchange.pk).update(told_at=read_database_now())
    if not Conversation.objects.filter(pk=conversation.pk).open().exists():
        return f"{conversation.pk}: the conversation has ended, so the answer was not sent"
    said = (
        run.answer
        if run.state == RunState.DONE
        else f"I could not answer: {run.error or run.exit or run.state}"
    )
    if said.strip():
        messages.add_message(
            conversation=conversation,
            kind=MessageKind.OUT,
            text=said[:LONGEST_MESSAGE],
            author=f"agent:{conversation.agent.slug}",
        )
    return f"{conversation.pk}: answered"


def _list_waiting(cycle: Cycle) -> list[Conversation]:
    """Conversations whose answers can be started now, the oldest first."""
    started = Exchange.objects.filter(
        told_at=None, conversation__agent=cycle.agent.expert.agent
    ).count()
    unanswered = _find_unanswered(cycle.agent)
    selected = _find_selected(cycle.agent)
    if selected is not None:
        _tell_others(unanswered.exclude(pk=selected.pk), selected)
        unanswered = unanswered.filter(pk=selected.pk)
    return list(unanswered[: max(0, AT_ONCE - started)])


def _begin(agent: EffortAgent, waiting: list[Conversation]) -> list[str]:
    """Start an answer for each conversation."""
    if waiting and agent.awaits_level is not None:
        EffortAgent.objects.filter(pk=agent.pk).update(awaits_level=None)
    return [_begin_answer(agent, conversation) for conversation in waiting]


def _report_lack(agent: EffortAgent, waiting: list[Conversation]) -> list[str]:
    """Say that there is not enough energy, unless the newest decision already said it."""
    last = CycleLog.objects.filter(agent=agent).exclude(decision="").first()
    if last is not None and last.lacks_energy:
        return []
    return [f"{number_of(len(waiting), 'conversation waits', 'conversations wait')} for energy"]


def _find_unanswered(agent: EffortAgent) -> QuerySet[Any]:
    """Open conversations with a message that no answer has seen; each with ``newest``, its
    number."""
    now = read_database_now()
    read = Exchange.objects.filter(conversation=OuterRef("pk"))
    rows = Conversation.objects.open().filter(
        Q(snoozed_until=None) | Q(snoozed_until__lte=now), agent=agent.expert.agent
    )
    asked = Message.objects.filter(conversation=OuterRef("pk"), kind=MessageKind.IN).order_by("-id")
    newest = Subquery(asked.values("id")[:1])
    found: QuerySet[Any] = rows.annotate(newest=newest).filter(newest__isnull=False)
    seen = Exists(read.filter(told_at=None)), Exists(read.filter(read_to__gte=OuterRef("newest")))
    return found.exclude(seen[0]).exclude(seen[1]).order_by("newest").select_related("agent")


def _find_selected(agent: EffortAgent) -> Conversation | None:
    """The only conversation that it answers. One that has ended is given up."""
    if not agent.focus:
        return None
    found = Conversation.objects.open().filter(pk=agent.focus).first()
    if found is None:
        EffortAgent.objects.filter(pk=agent.pk, focus=agent.focus).update(focus="")
        agent.focus = ""
    return found


def _tell_others(unanswered: QuerySet[Any], selected: Conversation) -> None:
    """Say once in each conversation that waits, after its newest message, why nobody answers."""
    last = Message.objects.filter(conversation=OuterRef("pk")).order_by("-id").values("kind")[:1]
    waiting = unanswered.annotate(last=Subquery(last)).filter(last=MessageKind.IN)
    for conversation in waiting[:AT_ONCE]:
        text = f'For now, I answer only in the conversation "{selected}". I will answer here when that conversation has ended.'
        messages.add_message(
            conversation=conversation,
            kind=MessageKind.OUT,
            text=text,
            author=f"agent:{conversation.agent.slug}",
        )


def _begin_answer(agent: EffortAgent, conversation: Any) -> str:
    said = list_latest_messages(conversation, _SAID)
    try:
        with transaction.atomic():
            run = runs.start(
                expert=agent.expert.name,
                arguments={text_parameter(agent.expert): transcript(said)},
                origin="talk",
                requester=_asker(said),
                conversation=conversation.pk,
            )
            Exchange.objects.create(conversation=conversation, run=run, read_to=conversation.newest)
    except SlipsnisseError as error:
        return _say_refusal(conversation, error)
    return f"{conversation.pk}: started an answer"


def _say_refusal(conversation: Any, error: SlipsnisseError) -> str:
    """No run could be started. It is said once, not tried again every second."""
    text = f"I could not answer: {error}"[:LONGEST_MESSAGE]
    author = f"agent:{conversation.agent.slug}"
    messages.add_message(conversation=conversation, kind=MessageKind.OUT, text=text, author=author)
    Exchange.objects.create(
        conversation=conversation, read_to=conversation.newest, told_at=read_database_now()
    )
    return f"{conversation.pk}: {error.code}"


def transcript(said: Sequence[Message]) -> str:
    """What was said, as the model reads it: the newest that fits, the oldest of that first."""
    names = {
        MessageKind.IN: "Person",
        MessageKind.OUT: "You",
        MessageKind.THOUGHT: "You, to yourself",
    }
    lines: list[str] = []
    room = _LONGEST
    for each in reversed(said):
        who = (
            "The background sub-agent"
            if each.author == SUB_AGENT
            else names[MessageKind(each.kind)]
        )
        line = f"{who}: {each.text}"
        room -= len(line)
        if room < 0 and lines:
            break
        lines.append(line)
    return "\n\n".join(reversed(lines))


def _asker(said: Sequence[Message]) -> Requester:
    """The person who wrote last. Nobody who has written in the conversation approves what the
    answer's calls ask for."""
    for each in reversed(said):
        if each.kind == MessageKind.IN and each.author_id is not None:
            return Requester(each.author_id, each.author.removeprefix("user:"))
    return NOBODY
