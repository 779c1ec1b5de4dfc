"""One cycle: give the answers that are there, and have new ones made, as energy allows.

It waits for nothing: models are asked by runs, which it starts and finds ended. All of it is one transaction of whoever
holds the lease, so a worker that dies leaves a whole cycle undone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet, Subquery

from mcpregistry.db import database_now
from mcpregistry.domain.calls.requester import NOBODY, Requester
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.models import Conversation, Message
from mcpregistry.models.conversation import LONGEST_MESSAGE, MessageKind
from mcpregistry.queries.conversations import latest_messages
from mcpregistry.services.conversations import messages
from subagents.domain.lifecycle import RunState
from subagents.effort.agents import parameter
from subagents.leased.leases import Lease, Leases
from subagents.models import CycleLog, EffortAgent, Exchange
from subagents.services import runs

AGENTS = Leases(EffortAgent)
AT_ONCE = 3  # answers of one agent that are made beside each other
_SAID = 40  # messages that an answer sees
_LONGEST = 60_000  # characters of them


def due(now: datetime) -> list[str]:
    """Agents that are switched on and that no worker drives."""
    free = Q(lease_until=None) | Q(lease_until__lt=now)
    return list(EffortAgent.objects.filter(free, enabled=True).values_list("pk", flat=True))


def take(key: str, *, worker: str) -> Lease | None:
    """The lease of its cycles, or None: another worker has it, or it is switched off."""
    fence = EffortAgent.objects.filter(pk=key, enabled=True).values_list("fence", flat=True).first()
    return None if fence is None else AGENTS.take(key, fence, worker=worker, now=database_now())


def renew(lease: Lease) -> bool:
    """Keep it. Returns whether it shall stop. Raises LostLease."""
    AGENTS.renew(lease)
    return not EffortAgent.objects.filter(pk=lease.key, enabled=True).exists()


@dataclass(frozen=True, slots=True)
class Cycle:
    """What a cycle needs to know: the agent, and how its energy stands (None without a pool)."""

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
    """One cycle. Returns the seconds until the next; None: it was switched off. Raises LostLease."""
    with transaction.atomic():
        if renew(lease):
            return None
        agent = EffortAgent.objects.select_related("expert__agent__energy_pool").get(pk=lease.key)
        pool = agent.expert.agent.energy_pool
        level = pool.stand.level_at(database_now()) if pool else None
        cycle = Cycle(agent, level, pool.critical if pool else 0.0)
        if did := [*_tell(cycle), *_begin(cycle)]:
            CycleLog.objects.create(agent=agent, at=database_now(), level=level, decision="; ".join(did)[:500])
        return agent.cycle_seconds


def _tell(cycle: Cycle) -> list[str]:
    """Write the answers of runs that have ended into their conversations, each once."""
    open_ones = Exchange.objects.filter(told_at=None, conversation__agent=cycle.agent.expert.agent)
    ended = open_ones.filter(run__finished_at__isnull=False).select_related("conversation__agent", "run")
    return [_answered(exchange) for exchange in ended]


def _answered(exchange: Exchange) -> str:
    run, conversation = exchange.run, exchange.conversation
    assert run is not None  # one that could not be started was told at once
    Exchange.objects.filter(pk=exchange.pk).update(told_at=database_now())
    if not Conversation.objects.filter(pk=conversation.pk).open().exists():
        return f"{conversation.pk}: ended meanwhile"
    said = run.answer if run.state == RunState.DONE else f"I could not answer: {run.error or run.exit or run.state}"
    if said.strip():
        messages.say(
            conversation=conversation, kind=MessageKind.OUT, text=said[:LONGEST_MESSAGE],
            author=f"agent:{conversation.agent.slug}",
        )  # fmt: skip
    return f"{conversation.pk}: answered"


def _begin(cycle: Cycle) -> list[str]:
    """Have answers made to what nobody has answered, the oldest first."""
    going = Exchange.objects.filter(told_at=None, conversation__agent=cycle.agent.expert.agent).count()
    waiting = list(_unanswered(cycle.agent)[: max(0, AT_ONCE - going)])
    if waiting and not cycle.may_work:
        return [f"{len(waiting)} wait for energy"] if not _said_before(cycle.agent) else []
    if waiting and cycle.agent.awaits_level is not None:
        EffortAgent.objects.filter(pk=cycle.agent.pk).update(awaits_level=None)
    return [_begun(cycle.agent, conversation) for conversation in waiting]


def _said_before(agent: EffortAgent) -> bool:
    last = CycleLog.objects.filter(agent=agent).first()
    return last is not None and "wait for energy" in last.decision


def _unanswered(agent: EffortAgent) -> QuerySet[Any]:
    """Open conversations with a message that no answer has seen; each with ``newest``, its number."""
    now = database_now()
    read = Exchange.objects.filter(conversation=OuterRef("pk"))
    rows = Conversation.objects.open().filter(
        Q(snoozed_until=None) | Q(snoozed_until__lte=now), agent=agent.expert.agent
    )
    if agent.focus:
        rows = rows.filter(pk=agent.focus)
    asked = Message.objects.filter(conversation=OuterRef("pk"), kind=MessageKind.IN).order_by("-id")
    newest = Subquery(asked.values("id")[:1])
    found: QuerySet[Any] = rows.annotate(newest=newest).filter(newest__isnull=False)
    seen = Exists(read.filter(told_at=None)), Exists(read.filter(read_to__gte=OuterRef("newest")))
    return found.exclude(seen[0]).exclude(seen[1]).order_by("newest").select_related("agent")


def _begun(agent: EffortAgent, conversation: Any) -> str:
    said = latest_messages(conversation, _SAID)
    try:
        with transaction.atomic():
            run = runs.start(
                expert=agent.expert.name, arguments={parameter(agent.expert): transcript(said)}, origin="talk",
                requester=_asker(said), conversation=conversation.pk,
            )  # fmt: skip
            Exchange.objects.create(conversation=conversation, run=run, read_to=conversation.newest)
    except SlipsnisseError as error:
        return _refused(conversation, error)
    return f"{conversation.pk}: asks its model"


def _refused(conversation: Any, error: SlipsnisseError) -> str:
    """No run could be started. It is said once, not tried again every second."""
    text = f"I could not answer: {error}"[:LONGEST_MESSAGE]
    author = f"agent:{conversation.agent.slug}"
    messages.say(conversation=conversation, kind=MessageKind.OUT, text=text, author=author)
    Exchange.objects.create(conversation=conversation, read_to=conversation.newest, told_at=database_now())
    return f"{conversation.pk}: {error.code}"


def transcript(said: Sequence[Message]) -> str:
    """What was said, as the model reads it: the newest that fits, the oldest of that first."""
    names = {MessageKind.IN: "Person", MessageKind.OUT: "You", MessageKind.THOUGHT: "You, to yourself"}
    lines: list[str] = []
    room = _LONGEST
    for each in reversed(said):
        line = f"{names[MessageKind(each.kind)]}: {each.text}"
        room -= len(line)
        if room < 0 and lines:
            break
        lines.append(line)
    return "\n\n".join(reversed(lines))


def _asker(said: Sequence[Message]) -> Requester:
    """The person who wrote last: they may not approve what the answer's calls ask for."""
    for each in reversed(said):
        if each.kind == MessageKind.IN and each.author_id is not None:
            return Requester(each.author_id, each.author.removeprefix("user:"))
    return NOBODY
