"""Every way of waiting, once approved and once refused: the drivers of which the matrix of faults
is made."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mcpregistry.domain.lifecycle import InvocationState
from tests.fakes.stage import Stage
from tests.fault.ways import WAYS, Way
from tests.gateway.conftest import stage
from tests.gateway.held.conftest import Case, approver, brisk, case, journal, site, token
from tests.tasks import worker

__all__ = ["approver", "brisk", "case", "journal", "site", "stage", "token"]  # fixtures

pytestmark = [pytest.mark.fault, pytest.mark.e2e, pytest.mark.one_database]


@pytest.fixture(scope="module", autouse=True)
def _worker(stage: Stage, broker: str) -> Iterator[None]:
    """Tasks are run by it."""
    worker.empty_broker()
    with worker.running(stage.env):
        yield


@pytest.mark.exhaustive(one_in=4)
@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_approved_it_runs_once_and_the_caller_has_the_result(
    stage, site, brisk, token, case: Case, way: Way
):
    async with way.open(stage, site, brisk, token) as waiter:
        await waiter.begin("echo__mine" if way.may_confirm else "echo__ask", case.arguments)
        assert case.sent() == []
        await case.approve()
        end = await waiter.end()
    assert not end.is_error
    assert end.structured["arguments"] == case.arguments
    assert len(case.sent()) == 1
    (call,) = await case.calls()
    assert call.state == InvocationState.SUCCEEDED


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_refused_it_never_runs_and_the_caller_has_the_reason(
    stage, site, brisk, token, case: Case, way: Way
):
    async with way.open(stage, site, brisk, token) as waiter:
        await waiter.begin("echo__mine" if way.may_confirm else "echo__ask", case.arguments)
        await case.reject("the ledger is closed")
        end = await waiter.end()
    assert end.is_error
    assert "REJECTED by Ann Lee: the ledger is closed" in end.text
    assert case.sent() == []
    (call,) = await case.calls()
    assert call.state == InvocationState.REJECTED


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", [way for way in WAYS if way.kind == "question"], ids=str)
async def test_the_person_at_the_host_confirms(stage, site, brisk, token, case: Case, way: Way):
    async with way.open(stage, site, brisk, token) as waiter:
        await waiter.begin("echo__mine", case.arguments)
        await waiter.confirm()
        end = await waiter.end()
    assert end.structured["arguments"] == case.arguments
    assert len(case.sent()) == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "way", [way for way in WAYS if way.kind in ("task", "rest") or way.stays], ids=str
)
async def test_a_caller_that_cancels_ends_the_request(
    stage, site, brisk, token, case: Case, way: Way
):
    async with way.open(stage, site, brisk, token) as waiter:
        await waiter.begin("echo__mine" if way.may_confirm else "echo__ask", case.arguments)
        await waiter.cancel()
        await case.until(InvocationState.CANCELLED)
    assert case.sent() == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", [way for way in WAYS if way.stays], ids=str)
async def test_a_caller_that_vanishes_ends_the_request(
    stage, site, brisk, token, case: Case, way: Way
):
    async with way.open(stage, site, brisk, token) as waiter:
        await waiter.begin("echo__mine" if way.may_confirm else "echo__ask", case.arguments)
        await waiter.kill()
        await case.until(InvocationState.CANCELLED)
    assert case.sent() == []
