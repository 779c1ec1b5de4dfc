"""Children are kept alive, heard, and taken along, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from django.conf import settings

from controlplane.management.commands import up
from controlplane.supervisor import PREDECESSOR, Child, Pauses, Supervisor
from tests.controlplane import stops
from tests.externals import ROOT
from tests.processes import runs
from tests.waiting import HANG_LIMIT, eventually

_LONG = 10_000  # seconds, more than a test may take


class Site:
    """A supervisor with quick pauses, and everything it said."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []
        self.supervisor = Supervisor(
            lambda name, line: self.said.append((name, line)), Pauses(0.05, 0.2, _LONG)
        )

    def python(self, name: str, code: str, **extra: object) -> None:
        self.supervisor.start(Child(name, [sys.executable, "-uc", code], **extra))  # type: ignore[arg-type]

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + HANG_LIMIT
        while not condition():
            assert time.monotonic() < deadline, self.said
            self.supervisor.tend(0.02)

    def lines(self, name: str) -> list[str]:
        return [line for speaker, line in self.said if speaker == name]


@pytest.fixture
def site():
    site = Site()
    yield site
    with suppress(ValueError, RuntimeError):  # the test may have stopped it already
        site.supervisor.stop(0)


def test_output_of_both_streams_arrives_line_by_line_under_the_childs_name(site):
    site.python(
        "talker",
        "import os, time; print('one', flush=True); os.write(2, b'two\\ntail'); time.sleep(10_000)",
    )
    site.until(lambda: len(site.lines("talker")) == 2)
    assert site.lines("talker") == ["one", "two"]
    site.supervisor.stop(HANG_LIMIT)
    assert site.lines("talker") == ["one", "two", "tail"]


def test_a_dead_child_is_started_again_after_growing_pauses(site):
    site.python("fragile", "raise SystemExit(3)")
    site.until(lambda: len(site.lines("up")) == 4)
    assert site.lines("up") == [
        f"fragile ended (exit code 3); starting it again in {pause} s"
        for pause in ("0.05", "0.1", "0.2", "0.2")
    ]


def test_who_had_worked_for_a_while_comes_back_at_once_however_often_it_dies(site):
    site.supervisor._pauses = Pauses(0.05, 0.2, 0.1)
    site.python("killed", "import time; time.sleep(0.2); raise SystemExit(3)")
    site.until(lambda: len(site.lines("up")) == 3)
    assert set(site.lines("up")) == {"killed ended (exit code 3); starting it again in 0.05 s"}
    assert Pauses().steady <= 10, "a process that is killed every minute is away for half of it"


def test_the_last_words_of_a_dying_child_are_heard_before_its_end_is_told(site):
    site.python("crash", "raise RuntimeError('the reason')")
    site.until(lambda: site.lines("up"))
    first_end = next(index for index, (name, _) in enumerate(site.said) if name == "up")
    assert ("crash", "RuntimeError: the reason") in site.said[:first_end]


def test_a_child_killed_from_outside_comes_back_as_a_new_process(site):
    site.python("steady", "import time; time.sleep(10_000)")
    before = site.supervisor.pids()["steady"]
    os.kill(before, signal.SIGKILL)
    site.until(lambda: site.supervisor.pids().get("steady", before) != before)
    assert site.lines("up") == ["steady ended (signal SIGKILL); starting it again in 0.05 s"]


def test_who_replaces_a_dead_child_is_told_whom(site):
    """What the dead one held is freed at once, instead of by the clock."""
    site.python(
        "worker",
        f"import os, time; print(os.getpid(), os.environ.get('{PREDECESSOR}')); time.sleep(10_000)",
    )
    for before in range(3):
        site.until(lambda count=before + 1: len(site.lines("worker")) == count)
        os.kill(site.supervisor.pids()["worker"], signal.SIGKILL)
    told = [line.split() for line in site.lines("worker")]
    assert [predecessor for _, predecessor in told] == ["None", told[0][0], told[1][0]]


def test_stopping_takes_the_last_ones_last(site):
    polite = "import signal, sys, time\nsignal.signal(15, lambda *a: (print('bye'), sys.exit()))\nprint('up')\ntime.sleep(10_000)"
    site.python("broker", polite, last=True)
    site.python("web", polite)
    site.until(lambda: site.lines("web") and site.lines("broker"))
    site.supervisor.stop(HANG_LIMIT)
    assert [name for name, line in site.said if line == "bye"] == ["web", "broker"]


def test_a_child_that_ignores_the_signal_is_killed_with_all_it_started(site):
    code = (
        "import signal, subprocess, sys, time; signal.signal(15, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(10_000)'])\n"
        "print(child.pid); time.sleep(10_000)"
    )
    site.python("stubborn", code)
    site.until(lambda: site.lines("stubborn"))
    pids = [site.supervisor.pids()["stubborn"], int(site.lines("stubborn")[0])]
    site.supervisor.stop(0.2)
    eventually(lambda: not any(map(runs, pids)))
    assert "stubborn did not end in time: killed" in site.lines("up")


def test_a_stop_ends_within_the_seconds_of_both_groups_whoever_ignores_it(site):
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up'); time.sleep(10_000)"
    site.python("web", deaf)
    site.python("broker", deaf, last=True)
    site.until(lambda: site.lines("web") and site.lines("broker"))
    pids = list(site.supervisor.pids().values())
    site.supervisor.stop(0.2, for_last=0.1)
    eventually(lambda: not any(map(runs, pids)))
    assert site.lines("up") == [
        "web did not end in time: killed",
        "broker did not end in time: killed",
    ]


def test_a_site_that_still_starts_is_stopped_within_ten_seconds_and_one_at_work_gets_its_grace():
    command = up.Command()
    assert sum(command.patience()) < stops.PROMISED
    command._started = True
    assert min(command.patience()) > settings.GRACE_SECONDS


def test_a_wish_to_hurry_cuts_the_patience_short(site):
    site.python(
        "slow",
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('up'); time.sleep(10_000)",
    )
    site.until(lambda: site.lines("slow"))
    pid = site.supervisor.pids()["slow"]
    site.supervisor.stop(_LONG, hurry=lambda: True)
    assert not runs(pid)
    assert site.lines("up") == ["slow did not end in time: killed"]


def test_a_changed_child_keeps_running_and_comes_back_in_the_new_way(site):
    site.python("web", "import time; print('first'); time.sleep(10_000)")
    site.until(lambda: site.lines("web"))
    site.python("web", "import time; print('second'); time.sleep(10_000)")
    site.supervisor.tend(0)
    assert site.lines("web") == ["first"]
    os.kill(site.supervisor.pids()["web"], signal.SIGKILL)
    site.until(lambda: site.lines("web") == ["first", "second"])


def test_killing_the_supervisor_outright_leaves_no_child():
    code = (
        "import sys\nfrom controlplane.supervisor import Child, Supervisor\n"
        "site = Supervisor(lambda name, line: print(line, flush=True))\n"
        "site.start(Child('a', [sys.executable, '-uc', 'import os, time; print(os.getpid()); time.sleep(10_000)']))\n"
        "while True: site.tend()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        child = int(owner.stdout.readline())
        assert runs(child)
        owner.kill()
    eventually(lambda: not runs(child))
