"""The budgets that a call concerns: what it will spend is set aside before anybody is asked or
anything is sent.

Only for calls of agents and by endpoints that have budgets, or of runs that such a one has caused;
others ask nothing. A call that people are asked about keeps what is set aside for it, so that they
never approve what could not be paid.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import structlog

from mcpregistry.calls.call import Call, CallOutcome
from mcpregistry.calls.catalog import DownstreamTools
from mcpregistry.calls.rates import NotCountedError
from mcpregistry.db import db_call
from mcpregistry.domain import error_texts
from mcpregistry.domain.budgets import Unit
from mcpregistry.domain.lifecycle import TERMINAL
from mcpregistry.domain.offer_kinds import TOOL
from mcpregistry.domain.policy.decision import RuleOutcome
from mcpregistry.services.budgets import spending
from mcpregistry.services.budgets.books import Kind
from mcpregistry.services.budgets.spending import Needs

log = structlog.get_logger(__name__)

_SERVERS = DownstreamTools().kind


async def reserve(call: Call) -> Call:
    """Set aside what the call will spend. Returns it with what its agent is to be told, once in
    each period.

    Raises BudgetSpent with the time when there is more, and NotCounted.
    """
    needs = _compute_needs(call)
    if needs is None:
        return call
    try:
        answer = await db_call(spending.reserve, kind=Kind.CALL, reference=call.id, needs=needs)
    except Exception as error:  # whatever it was, nothing was sent, and the record shall say so
        log.exception("budgets.not_reserved", call=call.id)
        raise NotCountedError(
            "The call was not made: its cost could not be reserved in the budgets.",
            remedy=error_texts.ASK_OPERATOR,
        ) from error
    if answer.refusal is not None:
        raise answer.refusal
    return replace(call, remarks=answer.remarks)


async def add_remarks(call: Call) -> Call:
    """A call that people were asked about, with what its agent is to be told: now it goes out, and
    there will be an answer.

    Before, nobody knew whether anybody would hear it: its caller may have left, or been told that
    it is pending.
    """
    asked = call.permit or call.decision.outcome is RuleOutcome.ASK
    if call.remarks or not asked or not _has_room(call) or (needs := _compute_needs(call)) is None:
        return call
    try:
        return replace(call, remarks=await db_call(spending.list_remarks, needs))
    except Exception:  # the next call tells it
        log.exception("budgets.warning_not_read", call=call.id)
        return call


async def settle(call: Call, outcome: CallOutcome) -> None:
    """Write down what the call has spent, if it has ended; or nothing, if it was not made as a call
    of its own.

    What the database does not take now, the clock does from the record.
    """
    if _compute_needs(call) is None:
        return
    try:
        if outcome.invocation_id != call.id:
            await db_call(spending.release, kind=Kind.CALL, reference=call.id)
        elif outcome.state in TERMINAL:
            await db_call(spending.settle, call_id=call.id)
    except Exception:  # the call has ended, and that is told whatever fails here
        log.exception("budgets.not_settled", call=call.id)


def add_remarks_to_outcome(call: Call, outcome: CallOutcome) -> CallOutcome:
    """The outcome with what its caller is told of its budgets: in the answer that is recorded, or
    in what to do next."""
    if not call.remarks:
        return outcome
    remark = " ".join(each.said for each in call.remarks)
    if outcome.result is None:
        return replace(outcome, remedy=f"{outcome.remedy} {remark}".strip())
    content = outcome.result.get("content")
    if not isinstance(content, list):
        return outcome
    return replace(
        outcome, result=outcome.result | {"content": [*content, _make_text_part(remark)]}
    )


async def restore_call_remarks(call: Call) -> None:
    """The call has become a task, whose handle has no room for words and whose answer others bring:
    the next call tells."""
    if not call.remarks:
        return
    try:
        await db_call(spending.restore_remarks, call.remarks)
    except Exception:
        # then it is not told in this period: people were, and the hard limit tells it
        log.exception("budgets.warning_not_reset", call=call.id)


def _has_room(call: Call) -> bool:
    # prompts and resources have no room for words of ours
    return call.entry.offer.tool.kind == TOOL


def _make_text_part(remark: str) -> dict[str, Any]:
    return {"type": "text", "text": f"({remark})"}


def _compute_needs(call: Call) -> Needs | None:
    """None: no budget is concerned. A tool of ours that tells a caller about itself costs
    nothing."""
    offer = call.entry.offer
    agent = call.request.catalogue.agent
    door = call.request.catalogue.endpoint
    if offer.kind != _SERVERS and not offer.spends:
        return None
    amounts = {Unit.CALLS: 1} | ({Unit.MONEY: offer.tool.cost} if offer.tool.cost else {})
    left = frozenset({Unit.MONEY, Unit.TOKENS}) if offer.spends else frozenset()
    units = {*amounts, *left}
    payers = frozenset(
        each.payer for each in (agent, door, *call.request.behind) if each.budgets & units
    )
    hears = _has_room(call) and call.decision.outcome is not RuleOutcome.ASK
    return Needs(agent.slug, payers, amounts, left, hears, door=door.payer) if payers else None
