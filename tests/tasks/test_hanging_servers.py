"""A worker waits for no server: neither when it is told to stop, nor for one that hangs while
others want something."""

from __future__ import annotations

import sys

import pytest
from django.utils import timezone

from mcpregistry import worker_shares
from mcpregistry.models import Server, ServerTest
from mcpregistry.services.configuration import dispatch
from mcpregistry.services.servers import lifecycle
from mcpregistry.services.servers.checks import request_test
from tests.conftest import child_env
from tests.fakes.targets import SERVERS
from tests.processes import runs, servers_of, with_words
from tests.services.rows import confirmed
from tests.tasks import worker
from tests.waiting import eventually

pytestmark = pytest.mark.e2e
MUTE = [sys.executable, "-S", str(SERVERS / "mute.py")]


@pytest.mark.exhaustive
@pytest.mark.one_database
@pytest.mark.usefixtures("live_db", "broker")
def test_a_worker_that_stops_does_not_wait_for_the_server_that_it_tests():
    """Left to itself the test takes ten minutes; a worker that was killed over it would leave it
    running for ever."""
    worker.empty_broker()
    server = confirmed("mute", connect_timeout=600)
    with worker.running(child_env(), "stopped"):
        test = request_test(server=server, actor="user:ann")
        eventually(lambda: ServerTest.objects.filter(pk=test.pk, verdict="running").exists())
        (process,) = eventually(lambda: servers_of("mute"))
    test.refresh_from_db()
    assert (test.verdict, test.error_code) == ("failed", "INTERRUPTED")
    assert "was stopped before the test ended. Test the server again." in test.error
    assert not runs(process)
    server = Server.objects.get(pk=server.pk)
    # nothing is known against it
    assert (server.consecutive_failures, server.last_error) == (0, "")
    assert server.next_check_at <= timezone.now()


@pytest.mark.one_database
@pytest.mark.usefixtures("live_db", "broker")
def test_servers_that_hang_keep_nobody_waiting_and_are_checked_once_at_a_time():
    """With a thread of the worker for each check, four of them were enough to stop everything."""
    worker.empty_broker()
    hanging = [confirmed(f"mute{number}", command=MUTE, connect_timeout=600) for number in range(6)]
    with worker.running(child_env(), "hanging"):
        for _ in range(3):
            dispatch.wake_worker("check_due_servers")
        eventually(lambda: len(with_words("mute.py")) >= worker_shares.FAILING)
        echo = request_test(server=confirmed("echo"), actor="user:ann")
        assert _finished(echo).verdict == "passed"
        dispatch.wake_worker("check_due_servers")
        assert _finished(request_test(server=echo.server, actor="user:ann")).verdict == "passed"
        checked = Server.objects.filter(check_until__isnull=False)
        assert checked.count() == worker_shares.FAILING
        assert len(servers_of("mute")) == worker_shares.FAILING, "each of them once"
        for server in hanging:
            lifecycle.disable_server(server=server, actor="user:ann")
        eventually(lambda: not with_words("mute.py"))
        eventually(lambda: not checked.exists())


def _finished(test: ServerTest) -> ServerTest:
    return eventually(
        lambda: ServerTest.objects.filter(pk=test.pk, finished_at__isnull=False).first()
    )
