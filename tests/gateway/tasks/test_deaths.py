"""A process dies while it follows a server's task: what lives at the server goes on, what died with
us is unknown."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sqlite3
import subprocess
from datetime import timedelta

import psutil
import pytest
from django.db import OperationalError, connection, transaction
from django.utils import timezone

from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import AuditEntry, HostTask, Invocation
from mcpregistry.services.tasks import remote_tasks
from mcpregistry.services.upkeep import reaping
from tests import waiting
from tests.calls.conftest import broken
from tests.fakes.hosts import http_host
from tests.fakes.stage import fresh, outside, web
from tests.gateway.tasks.conftest import ABLE
from tests.gateway.tasks.play import ask, begin, look, until
from tests.processes import alive, with_words

pytestmark = [pytest.mark.e2e, pytest.mark.fault]


async def stall(process: subprocess.Popen[bytes], task_id: str) -> None:
    """Stop it, but not in the middle of a write: its lock would hold up everybody else."""
    async with asyncio.timeout(waiting.HANG_LIMIT):
        while True:
            process.send_signal(signal.SIGSTOP)
            await waiting.until(
                lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED
            )
            if await outside(undisturbed, task_id):
                return
            process.send_signal(signal.SIGCONT)
            await asyncio.sleep(0.01)


def undisturbed(task_id: str) -> bool:
    """Whether nobody is writing: to the whole database (SQLite), or to this task and its call
    (PostgreSQL)."""
    try:
        if connection.vendor == "sqlite":
            with contextlib.closing(
                sqlite3.connect(connection.settings_dict["NAME"], timeout=0.2)
            ) as probe:
                probe.execute("BEGIN IMMEDIATE")
        else:
            with transaction.atomic():
                HostTask.objects.select_for_update(nowait=True).select_related("call").get(
                    pk=task_id
                )
    except (sqlite3.OperationalError, OperationalError):
        return False
    return True


async def record(task_id: str) -> Invocation:
    return await outside(Invocation.objects.get, host_task__pk=task_id)


def started(maker, label: str) -> list:
    """The server's own tasks whose work bears this label."""
    return [
        job
        for job in maker.jobs.values()
        if job.outcome.get("result", {}).get("structuredContent") == {"label": label}
    ]


@pytest.mark.exhaustive
async def test_killed_while_it_followed_another_process_goes_on(
    stage, site, token, maker, tmp_path
):
    label = fresh("label")
    with web(stage.env) as doomed:
        async with http_host(doomed, token, abilities=ABLE) as host:
            task_id = await begin(
                host, "remote__slow_compute", until=str(tmp_path / "done"), label=label
            )
        doomed.processes[0].send_signal(signal.SIGKILL)
        doomed.processes[0].wait(waiting.HANG_LIMIT)
        async with http_host(site, token, abilities=ABLE) as host:
            assert (await look(host, task_id))["status"] == "working"
            # leaves it to who follows
            await outside(reaping.reap_calls, timezone.now() + remote_tasks.LEASE * 2)
            (tmp_path / "done").touch()
            # The lease of the dead process must run out first.
            seen = await until(host, task_id, patience=2 * waiting.HANG_LIMIT)
    assert seen["status"] == "completed"
    assert seen["result"]["structuredContent"] == {"label": label}
    call = await record(task_id)
    assert (call.state, call.fence) == (InvocationState.SUCCEEDED, 1)
    kinds = await outside(
        lambda: list(
            AuditEntry.objects.filter(subject=f"call:{call.pk}").values_list("kind", flat=True)
        )
    )
    assert kinds.count("call.dispatched") == 1
    assert "task.taken_over" in kinds
    assert len(started(maker, label)) == 1, "it was made again"
    assert await outside(broken) == []


@pytest.mark.exhaustive
async def test_what_a_host_says_to_another_process_reaches_the_server(stage, site, token):
    with web(stage.env) as other:
        async with (
            http_host(site, token, abilities=ABLE) as host,
            http_host(other, token, abilities=ABLE) as elsewhere,
        ):
            asking = await begin(host, "remote__confirm_delete", filename="b")
            await until(elsewhere, asking, "input_required")
            said = {"confirm": {"action": "accept", "content": {"confirm": True}}}
            await ask(elsewhere, "tasks/update", asking, inputResponses=said)
            assert "b deleted" in str((await until(elsewhere, asking))["result"])
            running = await begin(host, "remote__slow_compute", seconds=3600)
            await ask(elsewhere, "tasks/cancel", running)
            assert (await until(elsewhere, running))["status"] == "cancelled"


async def test_a_stopped_process_hands_over_at_once(stage, site, token, tmp_path):
    label = fresh("label")
    with web(stage.env) as stopping:
        async with http_host(stopping, token, abilities=ABLE) as host:
            task_id = await begin(
                host, "remote__slow_compute", until=str(tmp_path / "done"), label=label
            )
    (tmp_path / "done").touch()
    async with http_host(site, token, abilities=ABLE) as host:
        seen = await until(host, task_id)
    assert seen["result"]["structuredContent"] == {"label": label}


@pytest.mark.exhaustive
async def test_a_stalled_process_that_wakes_changes_nothing_any_more(stage, site, token, tmp_path):
    label = fresh("label")
    with web(stage.env) as stalled:
        async with http_host(stalled, token, abilities=ABLE) as host:
            task_id = await begin(
                host, "remote__slow_compute", until=str(tmp_path / "done"), label=label
            )
        await stall(stalled.processes[0], task_id)
        call = await record(task_id)
        # As if the lease had run out meanwhile, without waiting for it here.
        await outside(
            Invocation.objects.filter(pk=call.pk).update,
            lease_until=timezone.now() - timedelta(seconds=1),
        )
        (tmp_path / "done").touch()
        async with http_host(site, token, abilities=ABLE) as host:
            seen = await until(host, task_id)
            stalled.processes[0].send_signal(signal.SIGCONT)
            async with http_host(stalled, token, abilities=ABLE) as same:
                assert await look(same, task_id) == seen
    after = await record(task_id)
    assert (after.state, after.fence) == (InvocationState.SUCCEEDED, 1)
    assert await outside(broken) == []


async def test_a_task_of_a_server_on_stdio_dies_with_our_process_and_is_unknown(opened):
    async with opened("stdio") as host:
        task_id = await begin(host, "local__slow_compute", seconds=3600)
        await host.kill()
        await host._pipe.ended()
    await outside(reaping.reap_calls, timezone.now() + remote_tasks.LEASE * 2)
    async with opened() as host:
        seen = await until(host, task_id)
    assert seen["result"]["structuredContent"]["state"] == "unknown"
    assert (await record(task_id)).state == InvocationState.UNKNOWN


@pytest.mark.exhaustive
async def test_a_task_of_a_server_on_stdio_ends_as_unknown_when_its_host_leaves(opened):
    async with opened("stdio") as host:
        task_id = await begin(host, "local__slow_compute", seconds=3600)
        await host.leave()
    assert (await record(task_id)).state == InvocationState.UNKNOWN


async def test_a_task_that_nobody_follows_for_long_is_given_up(opened):
    async with opened() as host:
        task_id = await begin(host, "remote__slow_compute", seconds=3600)
        await outside(
            reaping.reap_calls, timezone.now() + remote_tasks.PATIENCE + remote_tasks.LEASE * 2
        )
        seen = await until(host, task_id)
    assert seen["result"]["structuredContent"]["state"] == "unknown"


@pytest.mark.exhaustive
async def test_a_server_that_dies_on_stdio_takes_its_task_along(opened):
    async with opened("stdio") as host:
        task_id = await begin(host, "local__slow_compute", seconds=3600)
        family = host._pipe.family()
        children = with_words("tasks_server.py", family)
        assert children
        for process in children:
            with contextlib.suppress(psutil.NoSuchProcess):  # its supervisor goes with it
                process.kill()
        await waiting.until(lambda: not alive(children))
        seen = await until(host, task_id)
    assert seen["result"]["structuredContent"]["state"] == "unknown"
