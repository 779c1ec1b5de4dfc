"""Ends that come late: the database did not take them at first, or the clock had given up their calls meanwhile.

The recorder calls these in its writer thread, each in one transaction. Unlike at the first time, an audit entry is
written only with an end that was won: nobody knows whether the first commit happened after all.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from mcpregistry.calls.recording import ledger
from mcpregistry.models.invocation import Invocation
from mcpregistry.services.records import audit, ending
from mcpregistry.services.records.audit import Chain, Fact
from mcpregistry.services.records.ending import End
from mcpregistry.services.records.sql import vendor

Late = tuple[End, Fact]


def write(ends: Sequence[Late], chain: Chain) -> tuple[Chain, list[bool]]:
    """End these calls, where they are as their ends say; returns the chain afterwards, and which were won."""
    won: list[bool] = []

    def rest(tried: list[bool]) -> ledger.Work:
        nonlocal chain
        won.extend(tried)
        facts = [fact for (_, fact), mine in zip(ends, tried, strict=True) if mine]
        chain, entries = chain.extended(facts, datetime.now(UTC))
        return [(audit.INSERT, [audit.values(entry) for entry in entries])]

    kept = [ending.keep_values(end) for end, _ in ends if end["keep"]]
    tries = [ending.finish_values(end) for end, _ in ends]
    claims = ledger.Claims(tries, rest, ending.FINISH, [(ending.KEEP, kept)] if kept else [])
    ledger.BACKENDS[vendor()]([], claims)
    return chain, won


def correct(ends: Sequence[Late], chain: Chain) -> Chain:
    """Put these ends in the place of what the clock has supposed, where it has; returns the chain afterwards."""
    known = [(ending.correcting(end), ending.corrected(fact)) for end, fact in ends]
    return write(known, chain)[0] if known else chain


def stand(ends: Sequence[End]) -> list[bool]:
    """Which of these are what the record says now."""
    rows = Invocation.objects.filter(pk__in=[end["id"] for end in ends]).order_by()
    found = {pk: said for pk, *said in rows.values_list("pk", "state", "error_code")}
    return [found.get(end["id"]) == [end["state"], end["error_code"]] for end in ends]
