"""Whether another process of this machine is alive."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from mcpregistry.downstream.peers.neighbours import is_alive
from tests.waiting import eventually

pytestmark = pytest.mark.one_database


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_process_is_dead_once_it_has_ended_even_before_its_parent_waits_for_it():
    child = os.fork()
    if not child:
        signal.pause()
        os._exit(0)
    try:
        assert is_alive(child)
        os.kill(child, signal.SIGKILL)
        eventually(lambda: not is_alive(child))
    finally:
        os.waitpid(child, 0)
    assert not is_alive(child)


def test_numbers_that_no_process_has_are_dead():
    assert not is_alive(2**22 + 1)
    assert not is_alive(10**30)
    assert is_alive(1), "of another user, perhaps"
