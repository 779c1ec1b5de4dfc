"""The scenarios for clients, with our connections to servers as the client; OAuth's are left out
until we speak it."""

from __future__ import annotations

import asyncio

import pytest

from tests.conformance.client import answering
from tests.conformance.suite import Outcome, required_of_clients, run_client
from tests.fakes.stage import folder

pytestmark = [pytest.mark.e2e, pytest.mark.node, pytest.mark.one_database]

REVISIONS = ("2025-11-25", "2026-07-28")
NOT_SCORED = "json-schema-2020-12-preservation"  # came after the revisions were frozen
AT_ONCE = 2


@pytest.mark.exhaustive
@pytest.mark.parametrize("revision", REVISIONS)
async def test_what_is_required_of_clients_holds_for_our_connections(revision):
    one_more = asyncio.Semaphore(AT_ONCE)
    line = folder() / "line"

    async def played(scenario: str) -> Outcome:
        async with one_more:
            return await run_client(scenario, revision, line)

    scenarios = [*await asyncio.to_thread(required_of_clients, revision), NOT_SCORED]
    async with answering(line):
        found = dict(zip(scenarios, await asyncio.gather(*map(played, scenarios)), strict=True))
    assert {name: outcome.printed for name, outcome in found.items() if outcome.code != 0} == {}
    assert {name for name, outcome in found.items() if name not in outcome.passed()} == set()
    # The suite is content with a client that does nothing.
    for name, outcome in found.items():
        assert "SUCCESS" in outcome.statuses(name), outcome.printed
    assert {
        "tools_call",
        "sse-retry" if revision == "2025-11-25" else "http-custom-headers",
    } <= found.keys()
