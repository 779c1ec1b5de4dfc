"""The built-in tools of a hosted agent, besides the tools of servers. Each changes a row or two."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

from django.db import transaction

from mcpregistry.calls.call import Call
from mcpregistry.calls.catalog import ToolOffer, ToolSource
from mcpregistry.calls.execution import Dispatcher
from mcpregistry.db import db_call, read_database_now
from mcpregistry.domain.errors import ArgumentsInvalid, Denied, SlipsnisseError
from mcpregistry.domain.snapshot import Snapshot
from mcpregistry.domain.snapshot_specs import RUNS, AgentSpec, EndpointSpec
from mcpregistry.models import Conversation
from mcpregistry.models.conversation import LONGEST_MESSAGE, MessageKind
from mcpregistry.services.conversations import lifecycle, messages
from subagents import own_tools
from subagents.models import EffortAgent
from subagents.own_tools import listing, make_result
from subagents.services.offers import speaks

KIND = "effort"
_SERVER = own_tools.server(-4, "conversation", "Conversation")
_TEXT = {"type": "string", "minLength": 1, "maxLength": LONGEST_MESSAGE}


LISTINGS: tuple[Mapping[str, Any], ...] = (
    listing(
        "respond",
        "Sends a message to the user immediately, in addition to your final answer.",
        text=_TEXT,
    ),
    listing("think", "Stores a thought for yourself. Only you can read it.", text=_TEXT),
    listing(
        "end_conversation",
        "Ends this conversation permanently. No more messages can be written in it.",
    ),
    listing(
        "snooze_conversation",
        "Ignores this conversation for this number of seconds, even if there are new messages.",
        seconds={"type": "integer", "minimum": 1, "maximum": 30 * 86_400},
    ),
    listing(
        "select_conversation",
        "Answers only this conversation from now on. An empty id selects all conversations again.",
        id={"type": "string", "maxLength": 32},
    ),
    listing(
        "await_energy",
        "Pauses all answers until your energy pool has reached this level.",
        level={"type": "number", "minimum": 0},
    ),
)


_OFFERS = tuple(
    own_tools.offer(KIND, _SERVER, -30 - number, listed) for number, listed in enumerate(LISTINGS)
)


class ConversationTools:
    """Both the source of the tools and what serves them."""

    kind = KIND

    def list_offers(
        self, snapshot: Snapshot, endpoint: EndpointSpec, agent: AgentSpec, now: float
    ) -> Iterable[ToolOffer]:
        """All of them, in runs of hosted agents."""
        return _OFFERS if endpoint.slug == RUNS.slug and speaks(snapshot, agent.slug) else ()

    async def __call__(self, call: Call, *, on_sent: Callable[[], None]) -> dict[str, Any]:
        """Do it and say so. A refusal is a result marked as an error, with its remedy."""
        agent = call.request.catalogue.agent.slug
        conversation = call.request.conversation
        try:
            return make_result(
                {
                    "done": await db_call(
                        _run_tool,
                        call.entry.offer.tool.name,
                        agent,
                        conversation,
                        call.request.arguments,
                    )
                }
            )
        except SlipsnisseError as error:
            return own_tools.make_refusal(error)


def effort_source(engine: object) -> tuple[ToolSource, Dispatcher]:
    """The source and its dispatcher for an engine; registered with
    ``subagents.extension``."""
    served = ConversationTools()
    return served, served


@transaction.atomic
def _run_tool(name: str, agent: str, conversation: str, given: Mapping[str, Any]) -> str:
    row = (
        Conversation.objects.select_related("agent")
        .filter(pk=conversation, agent__slug=agent)
        .first()
    )
    if row is None:
        raise Denied(
            "This run does not belong to one of your conversations.",
            remedy="Answer without this tool.",
        )
    match name:
        case "respond":
            messages.add_message(
                conversation=row, kind=MessageKind.OUT, text=given["text"], author=f"agent:{agent}"
            )
            return "The message was sent."
        case "think":
            messages.add_message(
                conversation=row,
                kind=MessageKind.THOUGHT,
                text=given["text"],
                author=f"agent:{agent}",
            )
            return "The thought was stored."
        case "end_conversation":
            lifecycle.end_conversation(conversation=row, actor=f"agent:{agent}")
            return "The conversation has ended."
        case "snooze_conversation":
            until = read_database_now() + timedelta(seconds=given["seconds"])
            Conversation.objects.filter(pk=row.pk).update(snoozed_until=until)
            return f"The conversation is ignored until {until.isoformat(timespec='seconds')}."
        case "select_conversation":
            return _select_conversation(agent, given["id"])
        case _:
            return _list_awaiting(agent, given["level"])


def _select_conversation(agent: str, conversation: str) -> str:
    if (
        conversation
        and not Conversation.objects.open().filter(pk=conversation, agent__slug=agent).exists()
    ):
        raise ArgumentsInvalid(
            "You have no open conversation with this id.",
            remedy="Use the id of an open conversation, or an empty string.",
        )
    EffortAgent.objects.filter(expert__agent__slug=agent).update(focus=conversation)
    return (
        "Only this conversation is answered." if conversation else "All conversations are answered."
    )


def _list_awaiting(agent: str, level: float) -> str:
    loop = EffortAgent.objects.select_related("expert__agent__energy_pool").get(
        expert__agent__slug=agent
    )
    pool = loop.expert.agent.energy_pool
    if pool is None or level > pool.capacity:
        held = (
            "You do not have an energy pool."
            if pool is None
            else f"Your energy pool holds at most {pool.capacity:g} units, so its level cannot reach {level:g}."
        )
        raise ArgumentsInvalid(held, remedy="Continue without waiting, or use a lower level.")
    EffortAgent.objects.filter(pk=loop.pk).update(awaits_level=level)
    return f"Answers are paused until your energy pool has reached {level:g} units."
