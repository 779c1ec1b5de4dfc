"""``pytest --workers N``: each test runs once, in one of the forked processes, and is reported as
if it had run here."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from django.conf import settings
from django.db import connection

from controlplane import embedded_broker
from controlplane.celery import app
from tests import conftest, results
from tests.fakes import suite as small
from tests.results import FAILED, PASSED, Result
from tests.waiting import HANG_LIMIT, eventually

Run = Callable[..., tuple[dict[str, Result], subprocess.CompletedProcess[str]]]


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    small.prepare(tmp_path)
    return [
        *small.PYTEST,
        "--workers=2",
        f"--results={tmp_path / 'results'}",
        "-p",
        "no:cacheprovider",
    ]


@pytest.fixture
def run(tmp_path: Path, command: list[str]) -> Run:
    """Run files of tests; return their results by name and the process that has ended."""

    def run_files(files: dict[str, str], *options: str):
        for name, tests in files.items():
            (tmp_path / f"test_{name}.py").write_text(tests)
        env = os.environ | {"PYTHONPATH": small.PYTHONPATH}
        done = subprocess.run(
            [*command, *options],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            check=False,
            timeout=HANG_LIMIT,
        )
        found = results.read(tmp_path / "results")
        assert len({result.test for result in found}) == len(found), "a test was reported twice"
        return {result.test.partition("::")[2]: result for result in found}, done

    return run_files


def outcomes(found: dict[str, Result]) -> dict[str, str]:
    return {test: result.outcome for test, result in found.items()}


def test_process_has_one_site(django_db_setup: object) -> None:
    """A worker takes its own folder after everything was imported."""
    folder = conftest.VAR
    assert folder.is_dir()
    assert folder == settings.VAR_DIR == Path(os.environ["SLIPSNISSE_VAR"])
    assert settings.CELERY_BROKER_URL == app.conf.broker_url == embedded_broker.broker_url(folder)
    assert connection.vendor != "sqlite" or Path(connection.settings_dict["NAME"]).parent == folder
    assert settings.MIDDLEWARE[0] == "tests.policy.as_served"


SHARED = """
import os, pathlib, pytest

@pytest.fixture(scope="session", autouse=True)
def of_the_process():
    yield
    pathlib.Path(f"ended-{os.getpid()}").touch()

@pytest.fixture(scope="module")
def of_the_file():
    yield os.getpid()
    pathlib.Path(f"left-{__name__}").touch()

def test_one(of_the_file):
    assert os.getpid() != os.getppid() and of_the_file == os.getpid()

def test_two(of_the_file):
    assert of_the_file == os.getpid()
"""


@pytest.mark.exhaustive
def test_fixtures_of_files_and_processes_are_ended(run: Run, tmp_path: Path) -> None:
    names = ("a", "b", "c")
    _, done = run(dict.fromkeys(names, SHARED))
    assert done.returncode == 0
    assert "6 passed" in done.stdout
    assert {path.name for path in tmp_path.glob("left-*")} == {
        f"left-test_{name}" for name in names
    }
    assert 1 <= len([*tmp_path.glob("ended-*")]) <= 2


@pytest.mark.exhaustive
def test_failure_is_reported_with_what_was_printed(run: Run) -> None:
    found, done = run(
        {"a": "def test_bad():\n    print('before')\n    assert 1 == 2\ndef test_good(): pass\n"}
    )
    assert outcomes(found) == {"test_bad": FAILED, "test_good": PASSED}
    assert done.returncode == 1
    assert "assert 1 == 2" in done.stdout
    assert "before" in done.stdout


CRASHES = """
import os
def test_before(): pass
def test_crashes(): os._exit(3)
def test_after(): pass
def test_last(): pass
"""


def test_crash_fails_its_test_and_the_others_still_run(run: Run) -> None:
    """Also if the last test of a file crashes its worker, which has taken the next file already."""
    last = "import os\ndef test_last_crashes(): os._exit(0)\n"
    found, done = run({"a": CRASHES, "b": last, "c": "def test_later(): pass\n"}, "--workers=1")
    assert outcomes(found) == {
        "test_before": PASSED,
        "test_crashes": FAILED,
        "test_after": PASSED,
        "test_last": PASSED,
        "test_last_crashes": FAILED,
        "test_later": PASSED,
    }
    assert not found["test_crashes"].again
    assert "crashed while running 'test_a.py::test_crashes'" in found["test_crashes"].reason
    assert done.returncode == 1


@pytest.mark.exhaustive
def test_error_beside_the_tests_fails_the_run_and_is_shown(run: Run, tmp_path: Path) -> None:
    with (tmp_path / "conftest.py").open("a") as conftest:
        conftest.write("""
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    if item:
        raise OSError("no such disk")
    yield
""")
    _, done = run({"a": "def test_it(): pass\n"})
    assert done.returncode == 1
    assert "no such disk" in done.stderr


@pytest.mark.exhaustive
def test_run_stops_after_the_first_failure(run: Run) -> None:
    bad = "import pytest\n@pytest.mark.parametrize('number', range(50))\ndef test_bad(number): assert False\n"
    found, done = run({"a": bad, "b": bad}, "--maxfail=1")
    assert done.returncode == 1
    assert 1 <= len(found) < 100, "the workers hear of it while they go on"
    assert "stopping after" in done.stdout


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_interrupted_run_ends_its_fixtures(command: list[str], tmp_path: Path, number: int) -> None:
    waits = "def test_one(of_the_file):\n    import time; pathlib.Path('runs').touch(); time.sleep(10_000)"
    (tmp_path / "test_it.py").write_text(SHARED.replace("def test_one(of_the_file):", waits))
    env = os.environ | {"PYTHONPATH": small.PYTHONPATH}
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL) as process:
        eventually((tmp_path / "runs").exists)
        process.send_signal(number)
        assert process.wait(HANG_LIMIT) == 2
    assert (tmp_path / "left-test_it").exists()
    assert len([*tmp_path.glob("ended-*")]) == 1
