"""Requests from asking to their end: every kind, every wish at any moment, two workers, a worker
that comes back."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError
from django.utils import timezone

from mcpregistry.db import db_call, read_database_now
from mcpregistry.domain.errors import Conflict
from mcpregistry.models import AuditEntry, Server, ServerTest
from mcpregistry.services.servers import lifecycle
from subagents.checks import kinds_of_work_are_known
from subagents.domain.maintenance import ENERGY_PER_SECOND, Kind, Priority, State, Substate
from subagents.maintenance import manager as manager_module
from subagents.maintenance import plans, proposals, queue, request_lease
from subagents.models import MaintenanceMessage, MaintenanceRequest, Proposal
from tests.calls.conftest import add_server, tool
from tests.processes import with_words
from tests.subagents.maintenance.conftest import FOREVER, ask, ended, now
from tests.waiting import until

pytestmark = pytest.mark.exhaustive(on="postgresql")


def messages(request: MaintenanceRequest) -> list[tuple[str, Any]]:
    return [(each.kind, each.data) for each in MaintenanceMessage.objects.filter(request=request)]


def ann() -> User:
    """Somebody who may do anything."""
    return User.objects.get_or_create(username="ann", is_superuser=True)[0]


def children(name: str) -> list[int]:
    """Process ids of servers of ours."""
    return [child.pid for child in with_words(name)]


def mute(**fields: Any) -> Server:
    """A server that is started and never says anything."""
    return add_server("mute", **{"connect_timeout": FOREVER} | fields)


async def begun(here: Any, request: MaintenanceRequest, server: str = "mute.py") -> list[int]:
    """Its server's processes, once the manager has started it."""
    here.look()
    return await until(lambda: children(server))


async def test_a_server_is_tested_step_by_step_and_what_was_found_is_reported(manager: Any) -> None:
    await db_call(add_server, "echo", tool("echo"))
    request = await db_call(ask, Kind.TEST, server="echo")
    done = await ended(await manager(), request)
    assert (done.state, done.progress, done.error) == (State.COMPLETED, 100, "")
    assert [(step["step"], step["ok"]) for step in done.result["steps"]] == [
        ("config", True),
        ("spawn", True),
        ("handshake", True),
        ("discover", True),
    ]
    assert (done.result["ok"], done.result["tools"]) == (True, 1)
    test = await db_call(ServerTest.objects.get)
    assert (test.verdict, test.pk) == (ServerTest.Verdict.PASSED, done.result["test"])
    told = await db_call(messages, request)
    assert [kind for kind, _ in told] == ["status_update"] * 3 + ["completion"]
    assert [data["progress"] for kind, data in told if kind == "status_update"] == [0, 10, 70]
    assert told[-1][1]["result"] == done.result
    assert 10 <= done.energy_total <= 20, "a short test pays the least"
    assert done.energy_unreported == pytest.approx(done.energy_total)


async def test_a_server_that_cannot_start_is_a_finding(manager: Any) -> None:
    await db_call(add_server, "echo", command=["/nowhere/server"])
    done = await ended(await manager(), await db_call(ask, Kind.TEST, server="echo"))
    assert (done.state, done.result["ok"]) == (State.COMPLETED, False)
    assert (done.result["steps"][-1]["step"], done.result["steps"][-1]["ok"]) == ("spawn", False)
    assert "/nowhere/server" in done.result["steps"][-1]["error"]


async def test_what_cannot_be_tested_fails_with_the_reason_and_pays_its_time(manager: Any) -> None:
    began = time.monotonic()
    await db_call(
        lambda: lifecycle.save_server(server=Server(slug="draft", command=["true"]), actor="test")
    )
    done = await ended(await manager(), await db_call(ask, Kind.TEST, server="draft"))
    assert (done.state, done.substate, done.result) == (State.FAILED, "", None)
    assert "draft" in done.error
    assert done.energy_total <= ENERGY_PER_SECOND * (time.monotonic() - began)
    assert (await db_call(messages, done))[-1] == ("error", {"result": None, "error": done.error})


async def test_cancelling_ends_it_and_the_processes_that_it_has_started(manager: Any) -> None:
    began = time.monotonic()
    await db_call(mute)
    request = await db_call(ask, Kind.TEST, server="mute")
    await begun(await manager(), request)
    await db_call(queue.cancel, request_id=request.pk, actor="user:bob", reason="no longer needed")
    done = await until(lambda: _finished(request))
    assert (done.state, done.substate, done.error) == (
        State.FAILED,
        Substate.CANCELLED,
        "cancelled: no longer needed",
    )
    await until(lambda: not children("mute.py"))
    assert done.energy_total <= ENERGY_PER_SECOND * (time.monotonic() - began), (
        "it pays for the time that it took"
    )
    assert not await db_call(ServerTest.objects.exists)
    again = await db_call(queue.cancel, request_id=request.pk, actor="user:bob")
    assert again.error == done.error, "what has ended stays"
    with pytest.raises(Conflict):
        await db_call(queue.pause, request_id=request.pk, actor="user:bob")


async def _finished(request: MaintenanceRequest) -> MaintenanceRequest | None:
    found = await now(request)
    return found if found.finished_at else None


@pytest.mark.both_databases
async def test_what_is_paused_after_its_worker_died_keeps_nobody_else_from_its_server(
    live_db: None,
) -> None:
    def die_and_pause() -> Any:
        add_server("echo", tool("echo"))
        one = ask(Kind.TEST, server="echo")
        two = ask(Kind.TRY, server="echo")
        assert request_lease.take(one.pk, worker="dead")
        request_lease.free("dead")
        queue.pause(request_id=one.pk, actor="user:ann")
        return request_lease.take(two.pk, worker="next")

    assert await db_call(die_and_pause)


@pytest.mark.both_databases
async def test_what_waits_is_cancelled_at_once(live_db: None) -> None:
    request = await db_call(ask, Kind.SEARCH, query="git")
    done = await db_call(queue.cancel, request_id=request.pk, actor="user:ann", reason="")
    assert (done.state, done.error, done.progress) == (
        State.FAILED,
        "cancelled: no reason given",
        0,
    )


async def test_a_paused_request_stands_still_and_goes_on_where_it_was(manager: Any) -> None:
    await db_call(mute)
    request = await db_call(ask, Kind.TEST, server="mute")
    here = await manager()
    await begun(here, request)
    await db_call(queue.pause, request_id=request.pk, actor="user:ann")
    paused = await until(lambda: _with_substate(request, Substate.PAUSED))
    assert (paused.state, paused.step, paused.lease_until) == (State.IN_PROGRESS, 1, None)
    assert not children("mute.py")
    assert not await db_call(queue.has_active_work, MaintenanceRequest.objects.all())
    await here._take_due()
    assert not here._driving, "it is not taken"
    still = await now(request)
    assert (still.substate, still.energy_total) == (Substate.PAUSED, paused.energy_total)
    await db_call(lambda: Server.objects.update(connect_timeout=0.3))
    await db_call(queue.resume, request_id=request.pk, actor="user:ann")
    done = await ended(here, request)
    assert (done.state, done.result["ok"]) == (State.COMPLETED, False)
    steps = [
        data["step"] for kind, data in await db_call(messages, request) if kind == "status_update"
    ]
    assert steps == ["config", "probe", "probe", "report"], "the first step is not done again"


async def _with_substate(request: MaintenanceRequest, substate: str) -> MaintenanceRequest | None:
    found = await now(request)
    return found if found.substate == substate else None


@pytest.mark.exhaustive
async def test_one_that_waits_can_be_paused_too(manager: Any) -> None:
    request = await db_call(ask, Kind.SEARCH, query="git")
    here = await manager()
    paused = await db_call(queue.pause, request_id=request.pk, actor="user:ann")
    assert (paused.state, paused.substate) == (State.QUEUED, Substate.PAUSED)
    other = await db_call(ask, Kind.SEARCH, query="other")
    assert (await ended(here, other)).state == State.COMPLETED
    assert (await now(request)).state == State.QUEUED
    await db_call(queue.resume, request_id=request.pk, actor="user:ann")
    assert (await ended(here, request)).state == State.COMPLETED


@pytest.mark.both_databases
async def test_a_worker_that_was_thought_dead_writes_nothing_and_no_step_is_done_twice(
    manager: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await db_call(add_server, "echo", tool("echo"))
    request = await db_call(ask, Kind.TEST, server="echo")
    real = plans.PLANS[Kind.TEST][1].act
    hang = asyncio.Event()
    came: list[str] = []

    async def act(pool: Any, row: MaintenanceRequest) -> Any:
        came.append(row.worker)
        report = await real(pool, row)
        if len(came) == 1:
            await hang.wait()
        return report

    step = manager_module.PlanStep("probe", "Starting.", 70, plans._keep_test, act)
    steps = (plans.PLANS[Kind.TEST][0], step, plans.PLANS[Kind.TEST][2])
    monkeypatch.setattr(manager_module, "PLANS", dict(plans.PLANS) | {Kind.TEST: steps})
    first = await manager()
    second = await manager()
    monkeypatch.setattr(first, "renew_every", lambda: 3_600)  # it hears of nothing
    first.look()
    await until(lambda: len(came) == 1)
    over = timezone.now() - timedelta(seconds=1)
    await db_call(lambda: MaintenanceRequest.objects.update(lease_until=over))
    done = await ended(second, request)
    hang.set()
    await until(lambda: not first._driving)
    assert (done.state, came) == (State.COMPLETED, ["worker-0", "worker-1"])
    assert await db_call(ServerTest.objects.count) == 1
    kinds = [kind for kind, _ in await db_call(messages, request)]
    assert kinds.count("completion") == 1


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.both_databases
@pytest.mark.parametrize("wish", ["cancel", "pause"])
async def test_a_wish_that_a_dead_worker_never_heard_of_is_fulfilled_by_the_next(
    manager: Any, wish: str
) -> None:
    request = await db_call(ask, Kind.SEARCH, query="git")
    dead = {
        "lease_until": timezone.now() + timedelta(hours=1),
        "worker": "dead",
        "state": State.IN_PROGRESS,
        "fence": 1,
    }
    await db_call(lambda: MaintenanceRequest.objects.update(**dead))
    await db_call(getattr(queue, wish), request_id=request.pk, actor="user:ann")
    assert (await now(request)).finished_at is None
    await db_call(
        lambda: MaintenanceRequest.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
    )
    here = await manager()
    here.look()
    found = await until(
        lambda: _with_substate(request, {"cancel": "cancelled", "pause": "paused"}[wish])
    )
    assert (found.result, found.lease_until) == (None, None)


@pytest.mark.both_databases
async def test_two_workers_never_work_on_one_server_at_the_same_time(manager: Any) -> None:
    await db_call(mute)
    await db_call(add_server, "echo", tool("echo"))
    one, two = [
        await db_call(ask, Kind.TEST, server="mute", in_sandbox=flag) for flag in (False, True)
    ]
    first = await manager()
    second = await manager()
    await begun(first, one)
    other = await db_call(ask, Kind.TEST, server="echo")
    assert (await ended(second, other)).state == State.COMPLETED, (
        "another server is not kept waiting"
    )
    second.look()
    second.wake(two.pk)  # as whoever had read the queue a moment before
    await until(lambda: two.pk not in second._driving)
    assert (await now(two)).state == State.QUEUED
    await db_call(queue.cancel, request_id=one.pk, actor="user:ann")
    await until(lambda: _finished(one))
    await until(lambda: _taken(second, two))
    await db_call(queue.cancel, request_id=two.pk, actor="user:ann")
    await until(lambda: _finished(two))


async def _taken(here: Any, request: MaintenanceRequest) -> bool:
    here.look()
    return (await now(request)).state == State.IN_PROGRESS


@pytest.mark.both_databases
async def test_the_most_urgent_comes_first(manager: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager_module, "AT_ONCE", 1)
    order = [("a", Priority.LOW), ("b", Priority.LOW), ("c", Priority.HIGH), ("d", Priority.MEDIUM)]
    asked = [
        await db_call(ask, Kind.SEARCH, query=query, priority=priority) for query, priority in order
    ]
    here = await manager()
    for request in asked:
        await ended(here, request)
    begun = await db_call(
        lambda: list(
            MaintenanceRequest.objects.order_by("started_at").values_list("params", flat=True)
        )
    )
    assert [params["query"] for params in begun] == ["c", "d", "a", "b"]


@pytest.mark.exhaustive
async def test_servers_that_hang_leave_room_for_requests_that_start_none(
    manager: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager_module, "STARTING", 1)
    for slug in ("one", "two"):
        await db_call(add_server, slug, tool("echo"))
    tests = [await db_call(ask, Kind.TEST, server=slug) for slug in ("one", "two")]
    search = await db_call(ask, Kind.SEARCH, query="git")
    found = await db_call(lambda: queue.list_due_requests(read_database_now(), 9, starting=1))
    assert found == [tests[0].pk, search.pk]
    here = await manager()
    here._driving[tests[0].pk] = asyncio.get_running_loop().create_future()  # its server hangs
    here.look()
    await until(lambda: _finished(search))
    await until(lambda: set(here._driving) == {tests[0].pk})  # the second test waits
    here._driving.pop(tests[0].pk).cancel()


@pytest.mark.exhaustive
@pytest.mark.both_databases
async def test_a_database_that_fails_for_a_moment_costs_nothing(
    manager: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await db_call(add_server, "echo", tool("echo"))
    request = await db_call(ask, Kind.TEST, server="echo")
    faults = dict.fromkeys(("_begin", "_record_step"), 2)
    for name in faults:
        monkeypatch.setattr(
            manager_module, name, _failing(getattr(manager_module, name), faults, name)
        )
    done = await ended(await manager(), request)
    assert (done.state, faults) == (State.COMPLETED, {"_begin": 0, "_record_step": 0})
    assert await db_call(ServerTest.objects.count) == 1


def _failing(real: Any, faults: dict[str, int], name: str) -> Any:
    def function(*args: Any) -> Any:
        if faults[name]:
            faults[name] -= 1
            raise OperationalError("database is locked")
        return real(*args)

    return function


async def test_a_fault_of_ours_is_told_without_its_text(
    manager: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(request: MaintenanceRequest, _: Any) -> None:
        raise ValueError("hunter2")

    step = manager_module.PlanStep("search", "Searching.", 100, fault)
    monkeypatch.setattr(manager_module, "PLANS", {Kind.SEARCH: (step,)})
    done = await ended(await manager(), await db_call(ask, Kind.SEARCH, query="git"))
    assert done.state == State.FAILED
    assert "because of an internal error" in done.error
    assert "hunter2" not in done.error


@pytest.mark.exhaustive
async def test_a_search_names_servers_with_reasons(manager: Any) -> None:
    await db_call(add_server, "echo", tool("git_log"), name="Git history")
    await db_call(add_server, "slow", tool("count"))
    done = await ended(await manager(), await db_call(ask, Kind.SEARCH, query="git", limit=5))
    assert [(each["server"], each["reasons"]) for each in done.result["servers"]] == [
        ("echo", ["'git' in its name", "'git' in tools"])
    ]
    assert 20 <= done.energy_total <= 50


async def test_a_new_server_is_only_proposed_and_applied_by_a_person_as_a_draft(
    manager: Any,
) -> None:
    here = await manager()
    fields = {"command": ["uvx", "mcp-server-git"], "description": "Git."}
    done = await ended(
        here, await db_call(ask, Kind.ADD, server="git", purpose="history", fields=fields)
    )
    assert (done.state, await db_call(Server.objects.count)) == (State.COMPLETED, 0)
    proposal = await db_call(
        proposals.apply,
        proposal_id=done.result["proposal"],
        user=await db_call(ann),
        actor="user:ann",
    )
    assert (proposal.state, proposal.decided_by) == ("applied", "user:ann")
    server = await db_call(Server.objects.get)
    assert (server.slug, server.command, server.lifecycle, server.source) == (
        "git",
        fields["command"],
        "draft",
        "sub-agent",
    )
    with pytest.raises(Conflict, match="applied by user:ann"):
        await db_call(proposals.decline, proposal_id=proposal.pk, actor="user:bob")
    again = await ended(here, await db_call(ask, Kind.ADD, server="git", purpose="x"))
    assert (again.state, "already" in again.error) == (State.FAILED, True)


@pytest.mark.exhaustive(one_in=4)
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"command": []}, "command"),
        ({"env": {"KEY": "secret"}}, "cannot change these fields: env"),
        ({"lifecycle": "active"}, "cannot change these fields: lifecycle"),
        ({"connect_timeout": -1}, "connect"),
    ],
)
async def test_what_cannot_work_is_never_proposed(
    manager: Any, fields: dict[str, Any], reason: str
) -> None:
    await db_call(add_server, "echo", tool("echo"))
    done = await ended(
        await manager(), await db_call(ask, Kind.MODIFY, server="echo", fields=fields, reason="")
    )
    assert (done.state, reason in done.error) == (State.FAILED, True), done.error
    assert not await db_call(Proposal.objects.exists)


@pytest.mark.exhaustive
async def test_a_change_is_applied_only_to_what_it_was_proposed_for(manager: Any) -> None:
    await db_call(add_server, "echo", tool("echo"))
    here = await manager()
    asked = [
        await db_call(ask, Kind.MODIFY, server="echo", fields={"idle_timeout": n}, reason="")
        for n in (60.0, 70.0)
    ]
    first, second = [(await ended(here, request)).result["proposal"] for request in asked]
    await db_call(proposals.apply, proposal_id=first, user=await db_call(ann), actor="user:ann")
    assert (await db_call(Server.objects.get)).idle_timeout == 60
    with pytest.raises(Conflict, match="after this change was proposed"):
        await db_call(
            proposals.apply, proposal_id=second, user=await db_call(ann), actor="user:ann"
        )
    declined = await db_call(proposals.decline, proposal_id=second, actor="user:ann")
    assert declined.state == "declined"
    gone = await ended(here, await db_call(ask, Kind.REMOVE, server="echo", reason="unused"))
    await db_call(
        proposals.apply,
        proposal_id=gone.result["proposal"],
        user=await db_call(ann),
        actor="user:ann",
    )
    assert not await db_call(Server.objects.exists)
    kinds = await db_call(lambda: set(AuditEntry.objects.values_list("kind", flat=True)))
    assert {
        "maintenance.requested",
        "maintenance.proposal_applied",
        "maintenance.proposal_declined",
        "server.deleted",
    } <= kinds


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize(
    "change",
    [
        lambda server: lifecycle.disable_server(server=server, actor="user:bob"),
        lambda server: lifecycle.save_server(server=_described(server), actor="user:bob"),
    ],
    ids=["disabled", "described"],
)
async def test_what_a_person_has_done_to_the_server_since_is_not_overridden(
    manager: Any, change: Any
) -> None:
    """Also where it is nothing for which a connection would be made anew."""
    server = await db_call(add_server, "echo", tool("echo"))
    request = await db_call(
        ask, Kind.MODIFY, server="echo", fields={"description": "theirs"}, reason=""
    )
    proposal = (await ended(await manager(), request)).result["proposal"]
    await db_call(change, server)
    with pytest.raises(Conflict, match="after this change was proposed"):
        await db_call(
            proposals.apply, proposal_id=proposal, user=await db_call(ann), actor="user:ann"
        )
    assert (await db_call(Server.objects.get)).description != "theirs"


def _described(server: Server) -> Server:
    server.description = "mine"
    return server


@pytest.mark.exhaustive
async def test_a_server_that_never_answers_was_started(manager: Any) -> None:
    await db_call(lambda: mute(connect_timeout=0.3))
    done = await ended(await manager(), await db_call(ask, Kind.TEST, server="mute"))
    assert [(step["step"], step["ok"]) for step in done.result["steps"]] == [
        ("config", True),
        ("spawn", True),
        ("handshake", False),
    ]


@pytest.mark.exhaustive
@pytest.mark.both_databases
async def test_energy_is_counted_while_it_works_and_taken_once(
    manager: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager_module, "CHARGED_EVERY", 0.05)
    await db_call(mute)
    request = await db_call(ask, Kind.TEST, server="mute")
    here = await manager()
    everything = MaintenanceRequest.objects.all()
    await begun(here, request)
    taken = [await until(lambda: db_call(queue.take_energy, everything)) for _ in range(3)]
    assert {key for each in taken for key in each} == {request.pk}
    assert await db_call(queue.has_active_work, everything)
    await db_call(queue.cancel, request_id=request.pk, actor="user:ann")
    done = await until(lambda: _finished(request))
    both = await asyncio.gather(*(db_call(queue.take_energy, everything) for _ in range(4)))
    units = [sum(each.values()) for each in (*taken, *both)]
    assert sum(units) == pytest.approx(done.energy_total)
    assert (await now(request)).energy_unreported == pytest.approx(0)


@pytest.mark.exhaustive
async def test_switching_a_server_off_or_on_is_proposed_and_done_by_a_person(manager: Any) -> None:
    await db_call(add_server, "echo", tool("echo"))
    here = await manager()
    user = await db_call(ann)
    for on, lifecycle_then in ((False, "disabled"), (True, "active")):
        request = await db_call(
            ask, Kind.MODIFY, server="echo", fields={"enabled": on}, reason="it hangs"
        )
        done = await ended(here, request)
        assert done.result["fields"] == {"enabled": on}, done.error
        assert (await db_call(Server.objects.get)).enabled is not on, "until then nothing happens"
        await db_call(
            proposals.apply, proposal_id=done.result["proposal"], user=user, actor="user:ann"
        )
        assert (await db_call(Server.objects.get)).lifecycle == lifecycle_then
    same = await ended(
        here, await db_call(ask, Kind.MODIFY, server="echo", fields={"enabled": True}, reason="")
    )
    assert "already has these values" in same.error


@pytest.mark.exhaustive
async def test_workers_may_be_told_which_kinds_of_work_are_theirs(
    manager: Any, settings: Any
) -> None:
    await db_call(add_server, "echo", tool("echo"))
    test = await db_call(ask, Kind.TEST, server="echo")
    search = await db_call(ask, Kind.SEARCH, query="git")
    settings.MAINTENANCE_KINDS = ["search_servers"]
    here = await manager()
    assert (await ended(here, search)).state == State.COMPLETED
    assert (await now(test)).state == State.QUEUED
    settings.MAINTENANCE_KINDS = ["test_server", "search_server"]
    assert (await ended(here, test)).state == State.COMPLETED
    (said,) = kinds_of_work_are_known()
    assert "search_server." in said.msg
