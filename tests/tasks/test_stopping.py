"""A worker that is told to stop while it works for a server: it waits for none, and says so."""

from __future__ import annotations

import re

import psutil
import pytest
from django.utils import timezone

from mcpregistry.models import Server, ServerTest
from mcpregistry.services.servers.checks import request_test
from tests.conftest import child_env
from tests.processes import command_line, runs, with_words
from tests.services.rows import confirmed
from tests.tasks import worker
from tests.waiting import eventually

pytestmark = pytest.mark.e2e


@pytest.mark.one_database
@pytest.mark.usefixtures("live_db", "broker")
def test_a_worker_that_stops_does_not_wait_for_the_server_that_it_tests():
    """Left to itself the test takes ten minutes; a worker that was killed over it would leave it running for ever."""
    worker.empty_broker()
    server = confirmed("mute", connect_timeout=600)
    with worker.running(child_env(), "stopped"):
        test = request_test(server=server, actor="user:ann")
        eventually(lambda: ServerTest.objects.filter(pk=test.pk, verdict="running").exists())
        (process,) = eventually(lambda: _processes_of("mute"))
    test.refresh_from_db()
    assert (test.verdict, test.error_code) == ("failed", "INTERRUPTED")
    assert "was stopped before the test was over. Test again." in test.error
    assert not runs(process)
    server = Server.objects.get(pk=server.pk)
    assert (server.consecutive_failures, server.last_error) == (0, "")  # nothing is known against it
    assert server.next_check_at <= timezone.now()


def _processes_of(fake: str) -> list[psutil.Process]:
    """The servers of this name that run below us, without the processes that watch over them."""
    return [each for each in with_words(f"/{fake}.py") if re.fullmatch(rf"\S+ -S .*/{fake}\.py", command_line(each))]
