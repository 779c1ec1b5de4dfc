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
from mcpregistry.domain.calls.ends import NOT_SENT
from mcpregistry.domain.lifecycle import State
from mcpregistry.models.invocation import Invocation
from mcpregistry.services.records import audit, bound, ending
from mcpregistry.services.records.audit import Chain, Fact
from mcpregistry.services.records.call_rows import Claim, Intent
from mcpregistry.services.records.ending import End
from mcpregistry.services.records.sql import moment, vendor

_FINISH = f"{ending.FINISH} AND dispatched_at = COALESCE(%s, dispatched_at)"


class Late(NamedTuple):
    """An end with its audit entry; ``begun``: only of the call that was dispatched at this very
    moment."""

    end: End
    fact: Fact
    begun: datetime | None = None


def write(ends: Sequence[Late], chain: Chain) -> tuple[Chain, list[bool]]:
    """End these calls, where they are as their ends say; returns the chain afterwards, and which
    were won."""
    won: list[bool] = []

    def rest(tried: list[bool]) -> ledger.Work:
        nonlocal chain
        won.extend(tried)
        told = zip(ends, answers, tried, strict=True)
        facts = [
            each.fact.adding(bound.of_end(each.end, *answer)) for each, answer, mine in told if mine
        ]
        chain, entries = chain.extended(facts, datetime.now(UTC))
        return [(audit.INSERT, [audit.values(entry) for entry in entries])]

    kept = [ending.keep_values(each.end) for each in ends if each.end["keep"]]
    answers = [ending.recorded(each.end["result"]) for each in ends]
    tries = [
        [*ending.finish_values(each.end, answer), moment(each.begun)]
        for each, answer in zip(ends, answers, strict=True)
    ]
    claims = ledger.Claims(tries, rest, _FINISH, [(ending.KEEP, kept)] if kept else [])
    ledger.BACKENDS[vendor()]([], claims)
    return chain, won


def correct(ends: Sequence[Late], chain: Chain) -> Chain:
    """Put these ends in the place of what the clock has supposed, where it has; returns the chain
    afterwards."""
    known = [
        Late(ending.correcting(end), ending.corrected(fact), begun) for end, fact, begun in ends
    ]
    return write(known, chain)[0] if known else chain


def stand(ends: Sequence[Late]) -> list[bool]:
    """Which of these are what the record says now."""
    rows = Invocation.objects.filter(pk__in=[each.end["id"] for each in ends]).order_by()
    found = {pk: said for pk, *said in rows.values_list("pk", "state", "error_code")}
    return [
        found.get(each.end["id"]) == [each.end["state"], each.end["error_code"]] for each in ends
    ]


def not_sent(row: Intent | Claim, fence: int, dispatched: Fact, *, code: str) -> Late:
    """Of a call that was not sent, because nobody heard whether its beginning was written. Should
    it have been, the record is to say the same. It may have been begun again under its id, by
    another process: that one is left alone."""
    now = datetime.now(UTC)
    ended = ending.ended(
        State.NOT_SENT, received_at=row["received_at"], now=now, reason=NOT_SENT, code=code
    )
    end: End = {
        **ended,
        "id": row["id"],
        "before": State.DISPATCHED.value,
        "fence": fence,
        "keep": False,
    }
    fact = ending.fact(row["id"], ended, actor=dispatched.actor, about=dispatched.facts)
    return Late(end, fact, row["dispatched_at"])
