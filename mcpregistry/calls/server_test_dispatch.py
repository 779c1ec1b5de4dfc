"""Calls of tests and trials of servers: they go through the pipeline, and to the server by the
connection of that test.

Their records name the agent and the endpoint "(tests)", and the person who asked for the test as
the requester. They use nobody's energy, budgets or calls per minute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

from mcpregistry.calls.call import Call, CallOutcome, CallRequest
from mcpregistry.calls.catalog import Catalogue, CatalogueEntry, ToolOffer
from mcpregistry.calls.execution import Execution
from mcpregistry.calls.in_flight import InFlight
from mcpregistry.calls.pipeline import Pipeline
from mcpregistry.calls.recording.recorder import Recorder
from mcpregistry.calls.refusal_records import RefusalRecords
from mcpregistry.calls.remote_tasks.adoption import check_result_kind
from mcpregistry.db import db_call
from mcpregistry.domain.calls.forwarding import NOTHING
from mcpregistry.domain.errors import Denied, DownstreamError, SlipsnisseError
from mcpregistry.downstream.pool.server_probe import Send
from mcpregistry.services.servers.server_test_calls import (
    TESTS,
    OrderedTestCall,
    PreparedCall,
    prepare_call,
)

_KIND = "tests"


class CallNotMadeError(Denied):
    """The call was refused, or could not be recorded. Nothing was sent; its record says the same,
    if there is one."""


async def make_call(recorder: Recorder, order: OrderedTestCall, send: Send) -> dict[str, Any]:
    """Make the call, with a record from its intent to its end, and return the server's raw result.

    Call it on the recorder's event loop. Raises Conflict if the server is not active, NotMade, and
    DownstreamError.
    """
    prepared = await db_call(prepare_call, order)
    sender = _TestSender(send)
    nobody = _NoApprovals()
    in_flight = InFlight()
    pipeline = Pipeline(
        recorder=recorder,
        policy=lambda _: prepared.decision,
        permits=nobody,
        holder=nobody,
        execution=Execution(
            recorder=recorder, dispatchers={_KIND: sender}, permits=nobody, in_flight=in_flight
        ),
        refusals=RefusalRecords(recorder, in_flight),
    )
    judged = pipeline.judge(_build_request(order, prepared))
    if prepared.refusal is not None:
        judged = replace(judged, refusal=prepared.refusal)
    outcome = await pipeline.proceed(judged)
    if sender.failure is not None:
        raise sender.failure
    if outcome.result is None:
        raise _make_error(outcome)
    return outcome.result


def _build_request(order: OrderedTestCall, prepared: PreparedCall) -> CallRequest:
    entry = CatalogueEntry(
        order.tool, ToolOffer(_KIND, prepared.server, prepared.tool), prepared.tool.data
    )
    catalogue = Catalogue(TESTS, prepared.agent, {order.tool: entry}, None)
    return CallRequest(
        catalogue,
        order.tool,
        order.arguments,
        order.origin,
        request_id=order.request_id,
        requester=order.requester,
    )


def _make_error(outcome: CallOutcome) -> SlipsnisseError:
    error = CallNotMadeError(outcome.message, remedy=outcome.remedy)
    error.code = outcome.error_code  # type: ignore[misc]  # the code that the record has
    return error


class _TestSender:
    """The dispatcher of one call. It keeps the server's error as it was raised, for the report of
    the test."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.failure: DownstreamError | None = None

    async def __call__(self, call: Call, *, on_sent: Callable[[], None]) -> dict[str, Any]:
        """Send the call by the connection of the test."""
        try:
            result = await self._send(call.arguments_json.encode(), on_sent)
            check_result_kind(result, NOTHING)
        except DownstreamError as error:
            self.failure = error
            raise
        return result


class _NoApprovals:
    """Nobody is asked about these calls: one about which a rule asks was refused before it came
    here."""

    async def take_use(self, call: Call) -> None:
        """Return no permit: only people give one, to an agent."""

    def give_back(self, call: Call) -> None:
        """Do nothing: no permit was used."""

    def drop(self, call: Call) -> None:
        """Do nothing: nobody waits."""

    async def hold(self, call: Call) -> NoReturn:
        """Refuse to wait for people."""
        raise Denied(
            "This call needs an approval, and a test cannot ask for an approval.",
            remedy="To ask for an approval, open the page of the tool, press “Try tool”, and call the tool as an agent.",
        )
