"""The command ``python -m tests``: which runs are red, and what the last lines of the output
contain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import __main__ as suite
from tests.fakes import suite as small

PASSES = "def test_passes(): pass\n"
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a suite of one file on one leg; return its exit code and all that it printed."""
    small.prepare(tmp_path)
    monkeypatch.setenv("PYTHONPATH", small.PYTHONPATH)
    monkeypatch.setattr(suite, "PYTEST", small.PYTEST)
    monkeypatch.setattr(suite, "ROOT", tmp_path)
    monkeypatch.setattr(suite, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(suite.compiled, "compile_all", lambda: None)
    monkeypatch.setattr(suite, "options_of_legs", lambda _: [("SQLite", [])])

    def run_suite(tests: str, *arguments: str) -> tuple[int, str]:
        (tmp_path / "test_it.py").write_text(tests)
        code = suite.main([*arguments])
        return code, capfd.readouterr().out

    return run_suite


def last_lines(output: str) -> str:
    return "\n".join(output.splitlines()[-40:])


def unstable_tests(count: int, folder: Path) -> str:
    """Tests that fail when they run for the first time, and pass then."""
    return f"""
import pathlib, pytest

@pytest.mark.parametrize("number", range({count}))
def test_unstable(number):
    mark = pathlib.Path({str(folder)!r}, f"mark-{{number}}")
    seen = mark.exists()
    mark.touch()
    assert seen, "it failed at first"
"""


@pytest.mark.exhaustive
def test_run_is_green_when_all_tests_pass(run: Run) -> None:
    code, output = run(PASSES)
    assert code == 0
    assert output.endswith("1 passed, 0 failed\n")


@pytest.mark.exhaustive
def test_failure_behind_many_tests_is_explained_at_the_end(run: Run) -> None:
    passing = "import pytest\n@pytest.mark.parametrize('number', range(100))\ndef test_fine(number): pass\n"
    code, output = run(
        f"{passing}def test_broken():\n    assert 2 + 2 == 5, 'arithmetic is broken'\n"
    )
    assert code == 1
    shown = last_lines(output)
    assert (
        "FAILED on SQLite: test_it.py::test_broken: AssertionError: arithmetic is broken" in shown
    )
    assert "Run only these: .venv/bin/python -m pytest test_it.py::test_broken" in shown
    assert shown.endswith("100 passed, 1 failed")
    assert output.count("run again, alone") == suite.MOST_TRIES


@pytest.mark.exhaustive
def test_unstable_test_is_listed_and_does_not_fail_the_run(run: Run, tmp_path: Path) -> None:
    code, output = run(PASSES + unstable_tests(1, tmp_path))
    assert code == 0
    assert (
        "UNSTABLE on SQLite: test_it.py::test_unstable[0]: AssertionError: it failed at first"
        in last_lines(output)
    )
    assert output.endswith("2 passed, 0 failed\n")


@pytest.mark.exhaustive
def test_many_unstable_tests_fail_the_run(run: Run, tmp_path: Path) -> None:
    code, output = run(PASSES + unstable_tests(suite.MOST_UNSTABLE + 1, tmp_path))
    assert code == 1
    assert "RED: 11 tests are unstable, more than 10" in last_lines(output)


@pytest.mark.exhaustive
def test_hanging_test_does_not_run_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "options_of_legs", lambda _: [("SQLite", ["-o", "timeout=5"])])
    code, output = run(f"import time\n{PASSES}def test_hangs(): time.sleep(1_000)\n")
    assert code == 1
    assert "run again" not in output
    assert "FAILED on SQLite: test_it.py::test_hangs: Failed: Timeout" in last_lines(output)


@pytest.mark.exhaustive
def test_run_stops_after_twenty_failures(run: Run) -> None:
    code, output = run(
        "import pytest\n@pytest.mark.parametrize('number', range(60))\ndef test_broken(number): assert False\n"
    )
    assert code == 1
    assert "run again" not in output
    assert "RED: 20 tests failed" in last_lines(output)
    assert output.endswith("0 passed, 20 failed\n")


def test_run_that_takes_too_long_ends_with_its_summary(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "MOST_SECONDS", 0)
    code, output = run(f"import time\n{PASSES}def test_slow(): time.sleep(1_000)\n")
    assert code == 1
    assert "RED: the run took too long" in last_lines(output)


@pytest.mark.exhaustive
def test_file_that_cannot_be_imported_fails_the_run(run: Run) -> None:
    code, output = run("import no_such_module\n")
    assert code == 1
    assert "FAILED on SQLite: test_it.py: ModuleNotFoundError" in last_lines(output)


@pytest.mark.exhaustive
def test_kept_results_leave_out_the_tests_that_passed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "MOST_TRIES", 0)
    kept = f"--kept={tmp_path / 'kept'}"
    code, output = run(f"{PASSES}def test_broken(): assert False\n", kept)
    assert (code, output.splitlines()[-1]) == (1, "1 passed, 1 failed")
    code, output = run(f"{PASSES}def test_broken(): pass\n", kept)
    assert (code, output.splitlines()[-1]) == (0, "1 passed, 0 failed, 1 passed before")
    code, output = run(f"{PASSES}def test_broken(): pass\n", kept)
    assert (code, output.splitlines()[-1]) == (0, "0 passed, 0 failed, 2 passed before")


@pytest.mark.exhaustive
def test_processes_that_were_started_are_counted(run: Run) -> None:
    _, output = run(
        """
import subprocess, sys
def test_starts():
    for words in (["true"], ["true"], [sys.executable, "-c", "0", "manage.py"]):
        subprocess.run(words, check=True)
"""
    )
    assert "Processes started: 1 of the site, 2 others\n" in last_lines(output)
