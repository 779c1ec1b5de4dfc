"""Ends that come late: the database did not take them at first, or the clock had given up their
calls meanwhile.

The recorder calls these in its writer thread, each in one transaction. Unlike at the first time, an
audit entry is written only with an end that was won: nobody knows whether the first commit happened
after all.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from mcpregistry.calls.recording import ledger
from mcpregistry.domain.calls.outcome_texts import NOT_SENT
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models.invocation import Invocation
from mcpregistry.services.records import audit, ending, signed_calls
from mcpregistry.services.records.audit import AuditFact, Chain
from mcpregistry.services.records.call_rows import Claim, Intent
from mcpregistry.services.records.ending import End
from mcpregistry.services.records.sql import adapt_moment, get_vendor

_FINISH = f"{ending.FINISH} AND dispatched_at = COALESCE(%s, dispatched_at)"


class LateEnd(NamedTuple):
    """An end with its audit entry; ``begun``: only of the call that was dispatched at this very
    moment."""

    end: End
    fact: AuditFact
    begun: datetime | None = None


def write(ends: Sequence[LateEnd], chain: Chain) -> tuple[Chain, list[bool]]:
    """End these calls, where they are as their ends say; returns the chain afterwards, and which
    were won."""
    won: list[bool] = []

    def build_rest(tried: list[bool]) -> ledger.Work:
        nonlocal chain
        won.extend(tried)
        told = zip(ends, answers, tried, strict=True)
        facts = [
            each.fact.add_facts(signed_calls.build_end_facts(each.end, *answer))
            for each, answer, mine in told
            if mine
        ]
        chain, entries = chain.extend_chain(facts, datetime.now(UTC))
        return [(audit.INSERT, [audit.list_insert_values(entry) for entry in entries])]

    kept = [ending.list_keep_values(each.end) for each in ends if each.end["keep"]]
    answers = [ending.encode_result(each.end["result"]) for each in ends]
    tries = [
        [*ending.list_finish_values(each.end, answer), adapt_moment(each.begun)]
        for each, answer in zip(ends, answers, strict=True)
    ]
    claims = ledger.Claims(tries, build_rest, _FINISH, [(ending.KEEP, kept)] if kept else [])
    ledger.BACKENDS[get_vendor()]([], claims)
    return chain, won


def correct(ends: Sequence[LateEnd], chain: Chain) -> Chain:
    """Put these ends in the place of what the clock has supposed, where it has; returns the chain
    afterwards."""
    known = [
        LateEnd(ending.make_correcting_end(end), ending.make_corrected_fact(fact), begun)
        for end, fact, begun in ends
    ]
    return write(known, chain)[0] if known else chain


def match_recorded_ends(ends: Sequence[LateEnd]) -> list[bool]:
    """Which of these are what the record says now."""
    rows = Invocation.objects.filter(pk__in=[each.end["id"] for each in ends]).order_by()
    found = {pk: said for pk, *said in rows.values_list("pk", "state", "error_code")}
    return [
        found.get(each.end["id"]) == [each.end["state"], each.end["error_code"]] for each in ends
    ]


def make_not_sent_end(
    row: Intent | Claim, fence: int, dispatched: AuditFact, *, code: str
) -> LateEnd:
    """Of a call that was not sent, because nobody heard whether its beginning was written. Should
    it have been, the record is to say the same. It may have been begun again under its id, by
    another process: that one is left alone."""
    now = datetime.now(UTC)
    ended = ending.build_end_columns(
        InvocationState.NOT_SENT,
        received_at=row["received_at"],
        now=now,
        reason=NOT_SENT,
        code=code,
    )
    end: End = {
        **ended,
        "id": row["id"],
        "before": InvocationState.DISPATCHED.value,
        "fence": fence,
        "keep": False,
    }
    fact = ending.build_end_fact(row["id"], ended, actor=dispatched.actor, about=dispatched.facts)
    return LateEnd(end, fact, row["dispatched_at"])
