"""What is forked is what its command line would have started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from django.conf import settings

from controlplane import keys
from tests import forkserver, launcher, started
from tests.externals import ROOT
from tests.processes import runs
from tests.waiting import HANG_LIMIT, eventually


def env(**more: str) -> dict[str, str]:
    return (
        os.environ | {"SLIPSNISSE_VAR": str(settings.VAR_DIR), "SLIPSNISSE_PROCESS": "web"} | more
    )


@pytest.fixture
def output(tmp_path: Path):
    with (tmp_path / "output").open("w+") as file:
        yield file


@pytest.mark.exhaustive
def test_it_tells_its_exit_code_and_what_it_wrote(output):
    done = forkserver.popen(
        ["manage.py", "runmcp", "--help"], env=env(), stdout=output, stderr=output
    )
    assert done.wait(HANG_LIMIT) == 0
    plain = [sys.executable, "manage.py", "runmcp", "--help"]
    same = subprocess.run(plain, cwd=ROOT, env=env(), capture_output=True, text=True, check=True)
    output.seek(0)
    assert output.read() == same.stdout + same.stderr


@pytest.mark.exhaustive
def test_a_refusal_is_its_exit_code_too(output):
    refused = forkserver.popen(
        ["-m", "controlplane.web", "--fd", "0", "--nonsense"], env=env(), stderr=output
    )
    assert refused.wait(HANG_LIMIT) == 2
    assert refused.poll() == 2
    output.seek(0)
    assert "--nonsense" in output.read()


@pytest.mark.exhaustive
def test_it_has_a_pid_a_session_and_an_end_of_its_own(output):
    with tempfile.TemporaryFile() as nothing:
        started = forkserver.popen(
            [
                "-m",
                "celery",
                "--quiet",
                "--app",
                "controlplane",
                "worker",
                "--pool",
                "threads",
                "--concurrency",
                "1",
            ],
            env=env(SLIPSNISSE_PROCESS="worker"),
            stdin=nothing,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    seen = psutil.Process(started.pid)
    assert os.getsid(started.pid) == started.pid
    assert seen.cwd() == str(ROOT)
    assert started.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        started.wait(0.01)
    started.kill()
    assert started.wait(HANG_LIMIT) == -signal.SIGKILL
    eventually(lambda: not runs(seen))


@pytest.mark.exhaustive
def test_the_environment_is_what_it_was_asked_with_and_nothing_else(output):
    words = ["manage.py", "runmcp", "--endpoint", "none"]
    for url in ("sqlite:////nonexistent/one", "sqlite:////nonexistent/two"):
        asked = {
            "PATH": os.environ["PATH"],
            "SLIPSNISSE_VAR": str(settings.VAR_DIR),
            "DATABASE_URL": url,
        }
        refused = forkserver.popen(words, env=asked, stdout=output, stderr=output)
        assert refused.wait(HANG_LIMIT) == 1
    output.seek(0)
    said = output.read()
    assert "/nonexistent/one does not exist" in said, said
    assert "/nonexistent/two does not exist" in said, said


ECHO = "import sys; sys.stdout.write(sys.stdin.read()); sys.exit(7)"
SLEEP = "import os, time; print(os.getpid(), flush=True); time.sleep(10_000)"


@pytest.fixture
def hosts(tmp_path: Path):
    with launcher.launching(env(), tmp_path) as running:
        yield running


@pytest.mark.exhaustive
def test_a_program_may_start_it_and_has_its_pipes_and_its_exit_code(hosts):
    done = subprocess.run(
        hosts.command("-c", ECHO), input="grüß", capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("grüß", 7)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_the_program_that_stands_for_it(hosts, number):
    with subprocess.Popen(
        hosts.command("-c", SLEEP), stdout=subprocess.PIPE, text=True
    ) as stand_in:
        leaf = psutil.Process(int(stand_in.stdout.readline()))
        stand_in.send_signal(number)
        stand_in.wait(HANG_LIMIT)
    eventually(lambda: not runs(leaf))


SETTINGS = "from django.conf import settings as s; import os; print(s.MCP_HOLD_SECONDS, s.PASS_ENV, os.environ.get('GONE'))"


def test_processes_that_differ_in_what_is_read_late_share_their_imports(output):
    for more in ({"SLIPSNISSE_HOLD": "7", "GONE": "x"}, {"SLIPSNISSE_PASS_ENV": "A,B"}):
        done = forkserver.popen(["-c", SETTINGS], env=env(**more), stdout=output, stderr=output)
        assert done.wait(HANG_LIMIT) == 0
    output.seek(0)
    assert output.read().splitlines() == ["7.0 [] x", "None ['A', 'B'] None"]


SITE = """
from django.conf import settings; from django.db import connections
print(settings.VAR_DIR, settings.SECRET_KEY, settings.DATABASES["default"]["NAME"], connections["default"].settings_dict["NAME"])
"""


def test_a_program_has_the_folder_database_and_keys_of_its_own_site_as_they_are_now(
    output, tmp_path
):
    """Though those of all sites share their imports."""
    expected = []
    for var in (tmp_path / "one", tmp_path / "two", tmp_path / "one"):
        var.mkdir(exist_ok=True)
        # as a restore puts others in their place
        ring = keys.Ring(f"secret-{len(expected)}", {"k1": os.urandom(32)})
        keys.replace(var, ring)
        asked = env(SLIPSNISSE_VAR=str(var), SLIPSNISSE_PROCESS="")
        assert (
            forkserver.popen(["-c", SITE], env=asked, stdout=output, stderr=output).wait(HANG_LIMIT)
            == 0
        )
        database = var / "slipsnisse.sqlite3"
        expected.append(f"{var} {ring.secret_key} {database} {database}")
    output.seek(0)
    assert output.read().splitlines() == expected


ENDS = """
import atexit, sys, threading
atexit.register(print, "called at the end")
threading.Thread(target=lambda: (threading.main_thread().join(), print("waited for"))).start()
"""


@pytest.mark.exhaustive(one_in=5)
@pytest.mark.parametrize(
    "end", ["pass", "sys.exit()", "sys.exit(3)", "sys.exit('No.')", "raise ValueError('No.')"]
)
def test_it_ends_as_python_ends(output, end):
    """Though its modules are not taken down."""
    same = subprocess.run(
        [sys.executable, "-c", ENDS + end], capture_output=True, text=True, check=False
    )
    with tempfile.TemporaryFile("w+") as errors:
        done = forkserver.popen(["-c", ENDS + end], env=env(), stdout=output, stderr=errors)
        assert done.wait(HANG_LIMIT) == same.returncode
        errors.seek(0)
        assert errors.read().splitlines()[-1:] == same.stderr.splitlines()[-1:]
    output.seek(0)
    assert output.read() == same.stdout == "waited for\ncalled at the end\n"


COUNTED = """
import os, subprocess, sys
from tests import forkserver, started
started.install()
leaf = "import subprocess; subprocess.run(['true'], check=True)"
for args in (["-c", leaf], ["manage.py", "help"]):
    assert forkserver.popen(args, env=os.environ, stdout=sys.stderr).wait() == 0
"""


@pytest.mark.exhaustive
def test_what_is_forked_is_counted_with_what_it_starts(tmp_path):
    path = tmp_path / "started"
    counting = env(**{started.ENVIRONMENT: str(path)})
    subprocess.run(
        [sys.executable, "-c", COUNTED], cwd=ROOT, env=counting, check=True, capture_output=True
    )
    counts = started.count(path)
    assert counts[started.SITE] == 1
    assert counts[started.OTHER] == 3, "the fork server, the program, and what that starts"


SHARED = """
import os, sys
from tests import forkserver
forkserver.start_root()
for number in range(2):
    if os.fork() == 0:
        leaf = "import os; print(os.getppid(), flush=True)"
        assert forkserver.popen(["-c", leaf], env=os.environ).wait() == 0
        stays = forkserver.popen(["-c", "import time; time.sleep(10_000)"], env=os.environ)
        print(stays.pid, flush=True)
        sys.exit()
    os.wait()
input()
"""


@pytest.mark.exhaustive
def test_forked_processes_share_imports_and_end_their_own_processes():
    with subprocess.Popen(
        [sys.executable, "-c", SHARED],
        cwd=ROOT,
        env=env(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        branch, first, same_branch, second = (int(process.stdout.readline()) for _ in range(4))
        assert branch == same_branch
        assert psutil.pid_exists(branch)
        assert not psutil.pid_exists(first)
        eventually(lambda: not psutil.pid_exists(second))
        process.communicate("\n")
    assert not psutil.pid_exists(branch)
