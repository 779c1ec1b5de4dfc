"""A commit that was not heard of may have happened: it is looked up before anything is said, and
nothing is done twice."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import User
from django.db import OperationalError, connection

from mcpregistry import failpoints
from mcpregistry.calls.approvals import background_writes
from mcpregistry.calls.call import CallHost, CallOutcome
from mcpregistry.calls.recording import late_ends, ledger
from mcpregistry.database_errors import is_outcome_unknown
from mcpregistry.db import db_call
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import ApprovalRequest, AuditEntry, Invocation, Permit, Server
from mcpregistry.services.approvals import held_calls
from mcpregistry.services.policy import permits
from tests.calls.conftest import Site, journal, only_call, site
from tests.calls.conftest import told as log_of
from tests.calls.test_approvals import asking, bob, calling, seated, until, vote
from tests.calls.test_approvals_changed import permitted
from tests.calls.test_own_faults import given, uses_left
from tests.calls.test_pipeline import echo
from tests.fault.agreement import agrees
from tests.fault.database import failing
from tests.fault.database import until as soon
from tests.waiting import HANG_LIMIT

__all__ = ["asking", "bob", "echo", "journal", "site"]  # fixtures

pytestmark = pytest.mark.fault
Make = Callable[..., Any]
SILENT = psycopg.OperationalError("server closed the connection unexpectedly")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_writes, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(background_writes, "CLOSING_SECONDS", 0.5)


def breaking(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, written: bool = True, times: int = 1
) -> None:
    """The connection breaks while the function commits, so often; ``written``: the commit happens
    all the same."""
    real = getattr(owner, name)
    left = [times]

    def function(*args: Any, **kwargs: Any) -> Any:
        if not left[0]:
            return real(*args, **kwargs)
        left[0] -= 1
        if written:
            real(*args, **kwargs)
        raise OperationalError(str(SILENT)) from SILENT

    # Under its own name, by which cells know it.
    function.__name__ = real.__name__
    function.__module__ = real.__module__
    function.__qualname__ = real.__qualname__
    monkeypatch.setattr(owner, name, function)


# -- which errors leave a doubt --------------------------------------------------------------------


def from_driver(cause: BaseException) -> OperationalError:
    error = OperationalError(str(cause))
    error.__cause__ = cause
    return error


def test_only_a_connection_that_broke_leaves_a_doubt() -> None:
    assert is_outcome_unknown(SILENT)
    assert is_outcome_unknown(from_driver(SILENT))
    assert is_outcome_unknown(from_driver(psycopg.errors.AdminShutdown("terminating connection")))
    for sure in (
        psycopg.errors.DiskFull("full"),
        psycopg.errors.LockNotAvailable("locked"),
        psycopg.InterfaceError("x"),
    ):
        assert not is_outcome_unknown(from_driver(sure)), sure
    assert not is_outcome_unknown(OperationalError("database is locked"))
    assert not is_outcome_unknown(ValueError("x"))


def test_where_nothing_answers_at_all_there_is_none() -> None:
    with pytest.raises(psycopg.OperationalError) as refused:
        psycopg.connect("host=127.0.0.1 port=1")
    assert not is_outcome_unknown(from_driver(refused.value))


def test_a_session_that_was_ended_in_its_transaction_leaves_a_doubt(live_db: None) -> None:
    connection.ensure_connection()
    raw: Any = connection.connection
    if connection.vendor == "sqlite":
        assert not is_outcome_unknown(OperationalError("disk I/O error")), (
            "it was this process that did not commit"
        )
        return
    end_session(raw)
    with pytest.raises(OperationalError) as ended:
        Invocation.objects.count()
    connection.close()
    assert is_outcome_unknown(ended.value)


async def test_the_recorders_own_connection_leaves_one_when_it_breaks(
    site: Make, echo: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a transaction, as nearly as a test can: the session is ended, and the driver
    finds out."""
    here: Site = await site()
    real = ledger.BACKENDS[connection.vendor]
    errors = list[Exception]()

    def looked(raw: Any) -> bool:
        if not errors:
            end_session(raw)  # a moment after it was seen to stand
        return False

    def commit(work: ledger.Work, *claims: ledger.Claims) -> ledger.Changed:
        if not errors and connection.vendor == "sqlite":
            end_session(connection.connection)
        try:
            return real(work, *claims)
        except Exception as error:
            errors.append(error)
            raise

    assert (
        await here.call("echo__echo", {"n": 1})
    ).state == InvocationState.SUCCEEDED  # it is connected
    monkeypatch.setattr(ledger, "_is_session_ended", looked)
    monkeypatch.setitem(ledger.BACKENDS, connection.vendor, commit)
    told = await here.call("echo__echo", {"n": 2})
    assert (told.state, told.error_code) == (InvocationState.NOT_SENT, "NOT_RECORDED")
    assert is_outcome_unknown(errors[0]) == (connection.vendor == "postgresql")
    await soon(lambda: not here.engine.recorder.late)
    assert await db_call(Invocation.objects.count) == 1
    assert (await here.call("echo__echo", {"n": 3})).state == InvocationState.SUCCEEDED


def end_session(raw: Any) -> None:
    """PostgreSQL's is ended by another; SQLite's handle is closed underneath it."""
    if connection.vendor == "sqlite":
        raw.close()
        return
    with psycopg.connect(raw.info.dsn, password=raw.info.password, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s)", [raw.info.backend_pid])


# -- a call's own beginning ------------------------------------------------------------------------


def silent(monkeypatch: pytest.MonkeyPatch, *, of: str = "begun", written: bool = True) -> None:
    """The connection breaks after the commit, or instead of it, in which the first call is
    ``begun`` or ``claimed``."""
    real = ledger.BACKENDS[connection.vendor]
    done = threading.Event()

    def commit(work: ledger.Work, *claims: ledger.Claims) -> ledger.Changed:
        breaks = not done.is_set() and (
            bool(claims) if of == "claimed" else bool(dict(work).get(ledger.INSERT))
        )
        changed = {} if breaks and not written else real(work, *claims)
        if breaks:
            done.set()
            raise OperationalError(str(SILENT)) from SILENT
        return changed

    monkeypatch.setitem(ledger.BACKENDS, connection.vendor, commit)


async def test_a_beginning_that_was_written_unheard_is_not_sent_in_the_record_too(
    site: Make, echo: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    here: Site = await site()
    silent(monkeypatch)
    told = await here.call("echo__echo", {"n": 1})
    assert (told.state, told.error_code) == (InvocationState.NOT_SENT, "NOT_RECORDED")
    await soon(Invocation.objects.filter(state=InvocationState.NOT_SENT).exists)
    await db_call(agrees, told, len(here.sent()))
    row = await db_call(only_call)
    assert (row.error_code, await db_call(log_of, row.pk)) == (
        "NOT_RECORDED",
        ["call.dispatched", "call.not_sent"],
    )


async def test_a_beginning_of_which_nobody_heard_leaves_the_next_one_of_its_id_alone(
    site: Make, echo: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that is repeated with its key, or a run that is taken over, makes the same call in
    another process."""
    here = await site()
    there = await site()
    real = late_ends.write
    gate = threading.Event()
    tried = threading.Event()

    def write(late: Any, chain: Any) -> Any:
        if not gate.is_set():
            raise OperationalError("not yet")
        done = real(late, chain)
        tried.set()
        return done

    monkeypatch.setattr(late_ends, "write", write)
    silent(monkeypatch, written=False)
    told = await here.call("echo__echo", {"n": 1}, call_id="a" * 32)
    assert told.state == InvocationState.NOT_SENT
    sent = asyncio.Event()
    answer = asyncio.Event()
    call = there.engine.pool.call

    async def slow(*args: Any, **facts: Any) -> Any:
        sent.set()
        await answer.wait()
        return await call(*args, **facts)

    monkeypatch.setattr(there.engine.pool, "call", slow)
    again = asyncio.ensure_future(there.call("echo__echo", {"n": 1}, call_id="a" * 32))
    await sent.wait()
    gate.set()
    assert await asyncio.to_thread(tried.wait, HANG_LIMIT)
    assert await db_call(lambda: only_call().state) == InvocationState.DISPATCHED
    answer.set()
    await db_call(agrees, await again, len(here.sent()))


async def test_a_claim_that_was_won_unheard_is_given_up_and_its_caller_hears_that_nothing_happened(
    site: Make, asking: Server, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    here: Site = await site()
    silent(monkeypatch, of="claimed")
    caller = calling(here)
    await vote(bob)
    told = await caller
    assert told.state in (InvocationState.PENDING, InvocationState.NOT_SENT)
    await soon(Invocation.objects.filter(state=InvocationState.NOT_SENT).exists)
    again = (
        await here.call("echo__echo", {"n": 1}) if told.state is InvocationState.PENDING else told
    )
    assert (again.state, again.invocation_id) == (InvocationState.NOT_SENT, told.invocation_id)
    await db_call(agrees, again, len(here.sent()))


# -- asking ----------------------------------------------------------------------------------------


async def test_a_request_that_was_written_all_the_same_is_told_as_pending_and_runs_once(
    site: Make, asking: Server, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    here: Site = await site()
    breaking(monkeypatch, held_calls, "ask")
    told: CallOutcome = await here.call("echo__echo", {"n": 1})
    assert told.state == InvocationState.PENDING
    assert told.ticket is not None
    await db_call(agrees, told, len(here.sent()))
    await vote(bob)
    again = await here.call("echo__echo", {"n": 1})
    assert (again.state, again.invocation_id) == (InvocationState.SUCCEEDED, told.invocation_id)
    assert len(here.sent()) == 1


async def test_a_task_that_was_made_all_the_same_is_handed_out(
    site: Make, asking: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    here: Site = await site()
    breaking(monkeypatch, held_calls, "ask")
    told = await here.call("echo__echo", {"n": 1}, host=CallHost(tasks=True))
    assert (told.state, bool(told.ticket and told.ticket.task_id)) == (
        InvocationState.PENDING,
        True,
    )
    request = await db_call(ApprovalRequest.objects.get)
    assert request.waiting_as == ApprovalRequest.Waiting.TASK
    await db_call(held_calls.cancel, request_id=request.pk, reason="The test is over", actor="test")


async def test_a_request_that_was_not_written_is_told_so(
    site: Make, asking: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    here: Site = await site()
    breaking(monkeypatch, held_calls, "ask", written=False)
    told = await here.call("echo__echo", {"n": 1})
    assert (told.state, told.error_code) == (InvocationState.NOT_SENT, "NOT_RECORDED")
    assert await db_call(Invocation.objects.count) == 0


async def test_a_request_that_cannot_be_looked_up_either_is_unknown_in_words_and_let_go(
    site: Make, asking: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    here: Site = await site()
    breaking(monkeypatch, held_calls, "ask")
    with failing("ticket_lookup.find_caller_ticket"):
        told = await here.call("echo__echo", {"n": 1})
    assert (told.state, told.error_code) == (InvocationState.UNKNOWN, "UNAVAILABLE")
    assert "It is not known" in told.message
    assert told.invocation_id in told.remedy
    await db_call(agrees, told, len(here.sent()))
    await until(InvocationState.CANCELLED)  # as soon as the database answers: nobody waits for it


async def test_a_caller_that_leaves_while_its_request_is_written_unheard_leaves_nothing_behind(
    site: Make, asking: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    here: Site = await site()
    breaking(monkeypatch, held_calls, "ask")
    real = held_calls.ask
    entered = threading.Event()
    go = threading.Event()

    def slow(**facts: Any) -> Any:
        entered.set()
        go.wait(HANG_LIMIT)
        return real(**facts)

    monkeypatch.setattr(held_calls, "ask", slow)
    call = calling(here)
    assert await asyncio.to_thread(entered.wait, HANG_LIMIT)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    go.set()
    await soon(Invocation.objects.filter(state=InvocationState.CANCELLED).exists)


# -- seats -----------------------------------------------------------------------------------------


async def test_a_caller_whose_leaving_fails_at_first_has_left_soon_and_long_before_its_lease(
    site: Make, asking: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    here: Site = await site()
    call = calling(here)
    await seated(1)
    breaking(monkeypatch, held_calls, "leave", written=False, times=3)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await until(InvocationState.CANCELLED)
    await seated(0)


async def test_a_leaving_that_was_not_heard_of_is_done_once(
    site: Make, asking: Server, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    here: Site = await site()
    first = calling(here)
    await seated(1)
    second = calling(here)
    await seated(2)
    breaking(monkeypatch, held_calls, "leave")
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await here.engine.approvals.wait_until_done()
    await seated(1)
    await vote(bob)
    assert (await second).state == InvocationState.SUCCEEDED


# -- permits ---------------------------------------------------------------------------------------


def returned() -> int:
    return AuditEntry.objects.filter(kind="permit.returned").count()


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize(
    "written", [False, True], ids=["nothing was written", "it was written after all"]
)
async def test_a_use_that_cannot_be_given_back_at_once_is_given_back_once(
    site: Make, asking: Server, bob: User, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    here: Site = await site()
    await given(here, bob)
    breaking(monkeypatch, permits, "give_back", written=written, times=3)
    with failpoints.arm_for_test("committing:dberror@1"):
        told = await here.call("echo__echo", {"n": 1})
    assert told.state == InvocationState.NOT_SENT
    await here.engine.approvals.wait_until_done()
    await uses_left(1)
    assert await db_call(returned) == 1
    assert (await permitted(here, {"n": 1})).state == InvocationState.SUCCEEDED
    await uses_left(0)


async def test_a_use_that_was_taken_unheard_is_given_back(
    site: Make, asking: Server, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    here: Site = await site()
    await given(here, bob)
    breaking(monkeypatch, permits, "use_permit")
    told = await here.call("echo__echo", {"n": 1})
    assert (told.state, told.error_code) == (InvocationState.NOT_SENT, "NOT_RECORDED")
    await here.engine.approvals.wait_until_done()
    await uses_left(1)
    assert await db_call(returned) == 1


async def test_nobody_gets_back_what_was_not_taken(site: Make, asking: Server, bob: User) -> None:
    here: Site = await site()
    await given(here, bob)
    permit = await db_call(Permit.objects.get)
    await db_call(permits.give_back, permit_id=permit.pk, call_id="f" * 32, agent_slug="ann")
    assert ((await db_call(Permit.objects.get)).uses_left, await db_call(returned)) == (1, 0)
