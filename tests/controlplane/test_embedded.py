"""The broker in the wheel: private, independent of the disk, and within the kernel's limit for
socket paths."""

from __future__ import annotations

import os
import stat
import subprocess
import time

import psutil
import pytest
import redis

from controlplane import embedded_broker
from controlplane.child_processes import die_with_parent, stop
from tests.waiting import HANG_LIMIT


def _start(var):
    process = subprocess.Popen(
        embedded_broker.command(var), preexec_fn=die_with_parent(), start_new_session=True
    )
    assert embedded_broker.wait_until_it_answers(embedded_broker.socket_path(var), HANG_LIMIT)
    return process


@pytest.fixture
def var(tmp_path):
    return tmp_path


def test_the_broker_takes_messages_while_the_disk_is_full(var):
    """A broker that refuses them ends the worker, which takes the refusal for a defect."""
    process = _start(var)
    psutil.Process(process.pid).rlimit(psutil.RLIMIT_FSIZE, (0, 0))
    client = redis.Redis(unix_socket_path=str(embedded_broker.socket_path(var)))
    for number in range(2):
        client.rpush("celery", number)
        time.sleep(1.1)  # a file would be written once a second
    assert client.blpop("celery", timeout=1) == (b"celery", b"0")
    client.close()
    stop(process, HANG_LIMIT)


def test_only_this_user_may_open_the_socket_and_nothing_listens_on_tcp(var):
    process = _start(var)
    assert stat.S_IMODE(embedded_broker.socket_path(var).stat().st_mode) == 0o700
    assert psutil.Process(process.pid).net_connections("inet") == []
    stop(process, HANG_LIMIT)
    assert not embedded_broker.answers(embedded_broker.socket_path(var))


def test_a_long_folder_gets_a_short_private_socket_that_every_process_finds(tmp_path):
    deep = tmp_path / ("x" * 60) / ("y" * 60)
    deep.mkdir(parents=True)
    path = embedded_broker.socket_path(deep)
    try:
        assert len(os.fsencode(path)) <= 107
        assert path == embedded_broker.socket_path(deep)
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        stop(_start(deep), HANG_LIMIT)
    finally:
        path.parent.rmdir()


def test_a_path_of_exactly_107_bytes_still_works_in_place(tmp_path):
    room = 107 - len(os.fsencode(tmp_path / "x" / "valkey.sock")) + 1
    var = tmp_path / ("x" * room)
    var.mkdir()
    assert len(os.fsencode(embedded_broker.socket_path(var))) == 107
    assert embedded_broker.socket_path(var).parent == var
    stop(_start(var), HANG_LIMIT)


@pytest.mark.attack
@pytest.mark.parametrize("trap", ["open", "link"])
def test_a_folder_that_somebody_else_prepared_is_refused(tmp_path, trap):
    deep = tmp_path / ("x" * 60) / ("z" * 60)
    deep.mkdir(parents=True)
    folder = embedded_broker.socket_path(deep).parent
    folder.rmdir()
    folder.mkdir(mode=0o755) if trap == "open" else folder.symlink_to(tmp_path)
    try:
        with pytest.raises(embedded_broker.BrokerError, match="Remove it, or set SLIPSNISSE_VAR"):
            embedded_broker.socket_path(deep)
    finally:
        folder.unlink() if folder.is_symlink() else folder.rmdir()
