"""`manage.py up` as a person meets it: the real command, real processes, real signals."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import psutil
import pytest

from controlplane import keys
from tests import migrated
from tests.controlplane import stops
from tests.externals import ROOT
from tests.fakes import elsewhere
from tests.processes import alive, below, with_words
from tests.waiting import HANG_LIMIT

pytestmark = pytest.mark.e2e
# Its worker would load litellm for five seconds and be stopped before it has any use for it. Here
# it fails to, as where the library is broken, and the site works. One start below loads it.
NO_MODELS = {"PYTHONPATH": str(ROOT / "tests" / "fakes" / "without_litellm")}


class Up:
    """A running `up` with a folder and a port of its own, and everything it printed."""

    def __init__(self, var: Path, *arguments: str, **more: str) -> None:
        env = {
            name: value
            for name, value in os.environ.items()
            if name not in {"DATABASE_URL", "CELERY_BROKER_URL"}
        }
        command = [sys.executable, "manage.py", "up", "--port", "0", *arguments]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=env | {"SLIPSNISSE_VAR": str(var)} | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.text = ""
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.text += line

    def until(self, condition: Callable[[], object]) -> None:
        # a first start makes all tables and tests the demo servers
        deadline = time.monotonic() + 2 * HANG_LIMIT
        while not condition():
            assert time.monotonic() < deadline, self.text
            time.sleep(0.05)

    def says(self, pattern: str) -> re.Match[str]:
        """Wait for a line; the match."""
        self.until(lambda: re.search(pattern, self.text))
        found = re.search(pattern, self.text)
        assert found is not None
        return found

    def family(self) -> list[psutil.Process]:
        return [*below(self.process.pid)]

    def child(self, words: str) -> psutil.Process:
        found = with_words(words, psutil.Process(self.process.pid).children())
        assert len(found) == 1, (words, found, self.text)
        return found[0]

    def ended(self) -> str:
        """Wait for the end; all that was printed."""
        self.process.wait(HANG_LIMIT)
        self._reader.join(HANG_LIMIT)
        return self.text


@contextmanager
def running(var: Path, *arguments: str, **more: str) -> Iterator[Up]:
    up = Up(var, *arguments, **more)
    try:
        yield up
    finally:
        up.process.kill()
        up.ended()


def _get(url: str) -> int:
    try:
        return int(urllib.request.urlopen(url, timeout=HANG_LIMIT).status)
    except urllib.error.HTTPError as error:
        return error.code


def _open_to_others(folder: Path) -> Iterator[str]:
    """What others may open in the folder of a site that runs: its files come and go while we
    look."""
    for place, _, names in os.walk(folder):
        for name in (".", *names):
            with suppress(FileNotFoundError):
                mode = os.stat(path := os.path.join(place, name)).st_mode
                if mode & 0o077 and not stat.S_ISSOCK(mode):
                    yield path


def _manage(var: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"SLIPSNISSE_VAR": str(var)}
    return subprocess.run(
        [sys.executable, "manage.py", *arguments], cwd=ROOT, env=env, capture_output=True, text=True
    )


def test_a_first_run_from_start_to_sigterm(tmp_path):
    var = tmp_path / "var"
    with running(var) as up:
        url = up.says(r"the site answers at (http://127\.0\.0\.1:\d+)/")[1]
        assert up.text.index("starting the worker") < up.text.index("the site answers"), (
            "a first question waits for it"
        )
        assert _get(f"{url}/admin/login/") == 200
        up.says(r"3\. Or connect over HTTP:  " + re.escape(url) + "/mcp/default")
        password = up.says(r"Password, shown only once:  (\S+)")[1]
        up.says(r"claude mcp add slipsnisse .*manage\.py runmcp --endpoint default --agent local")
        site = elsewhere.Site(
            {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
            | {"SLIPSNISSE_VAR": str(var)}
        )
        code, said = site.run(
            "shell",
            "-c",
            "from django.conf import settings; from django.contrib.auth import authenticate; "
            f"assert authenticate(username='admin', password='{password}'); assert settings.SITE_URL == '{url}'",
        )
        assert code == 0, said

        code, said = site.run("doctor")
        assert code == 0, said
        assert "1 worker process answers" in said

        code, said = site.run("up", "--port", "0")
        assert code == 1
        assert f"This site is already running (process {up.process.pid}" in said

        up.child("controlplane.web").kill()
        up.says(r"web-1 ended \(signal SIGKILL\); starting it again")
        up.until(lambda: _get(f"{url}/healthz") == 200)

        assert list(_open_to_others(var)) == []
        family = up.family()
        up.process.terminate()
        text = up.ended()
        assert up.process.returncode == 0
        assert text.endswith("stopped; all processes have ended\n")
        assert not alive(family)
    assert password not in "".join(
        path.read_text(errors="replace") for path in var.rglob("*") if path.is_file()
    )


@pytest.mark.exhaustive
def test_new_password_replaces_the_one_that_was_lost(tmp_path):
    var = tmp_path / "var"
    migrated.put_into(var)
    passwords = []
    for arguments in ([], ["--new-password"]):
        with running(var, *arguments, **NO_MODELS) as up:
            passwords.append(up.says(r"Password, shown only once:  (\S+)")[1])
            up.says("starting the scheduler")
            if arguments:
                order = [
                    up.text.index(words)
                    for words in ("Three things to do next", "starting the scheduler")
                ]
                assert order == sorted(order), "it must not wait for the worker"
            up.process.terminate()
            up.ended()
    opens = "from django.contrib.auth import authenticate; print([bool(authenticate(username='admin', password=p)) for p in {}])"
    assert (
        _manage(var, "shell", "-c", opens.format(passwords))
        .stdout.strip()
        .endswith("[False, True]")
    )


@pytest.mark.exhaustive
def test_kill_9_leaves_no_process_and_the_next_run_starts_over_it(tmp_path):
    migrated.put_into(tmp_path / "var")
    with running(tmp_path / "var", "--workers", "2", **NO_MODELS) as up:
        up.says(r"Password, shown only once")
        family = up.family()
        assert len(with_words("controlplane.web", family)) == 2
        up.process.kill()
        up.until(lambda: not alive(family))
    with running(tmp_path / "var", **NO_MODELS) as up:
        up.says(r"Three things to do next")
        assert "Password" not in up.text
        up.process.send_signal(signal.SIGINT)
        assert "all processes have ended" in up.ended()


@pytest.mark.exhaustive
def test_a_taken_port_is_said_before_anything_starts(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = _manage(tmp_path / "var", "up", "--port", str(port))
    assert done.returncode == 1
    assert done.stderr.strip().endswith(
        f"Choose another port, for example with `manage.py up --port {port + 1}`."
    )
    assert "address already in use" in done.stderr
    assert not (tmp_path / "var/slipsnisse.sqlite3").exists()


@pytest.mark.exhaustive
def test_an_unsafe_site_is_not_started(tmp_path):
    keys.load(tmp_path / "var")
    (tmp_path / "var/keys.json").chmod(0o644)
    done = _manage(tmp_path / "var", "up", "--port", "0")
    assert done.returncode == 1
    assert "chmod 600" in done.stdout


@pytest.mark.exhaustive
def test_a_first_start_is_stopped_at_any_moment_and_nothing_is_lost(monkeypatch):
    """A few; ``python -m tests.controlplane.stops 200`` makes as many as wanted."""
    for name, value in NO_MODELS.items():
        monkeypatch.setenv(name, value)
    assert stops.rounds(2, seed=random.SystemRandom().randrange(10**6)) == []
