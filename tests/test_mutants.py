"""The command ``python -m tests.mutants``: what it says of each mutant, and that nothing is left
running."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import mutants, processes
from tests.fakes import suite
from tests.mutant_table import Mutant
from tests.waiting import eventually

PRODUCT = """
def double(number):
    return number * 2

def wait():
    pass
"""
TESTS = """
from product import double, wait

def test_double():
    assert double(2) == 4

def test_wait():
    wait()
"""
# It hangs with a process of its own, and neither pytest's time limit nor an interrupt ends it.
STUBBORN = """signal = __import__("signal")
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGINT})
    child = __import__("subprocess").Popen(["sleep", "1000"])
    open(PATH, "w").write(str(child.pid))
    child.wait()"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A product of two functions, whose mutants are to be run."""
    root = tmp_path / "root"
    root.mkdir()
    suite.prepare(root)
    (root / "product.py").write_text(PRODUCT)
    (root / "test_product.py").write_text(TESTS)
    monkeypatch.setattr(mutants, "ROOT", root)
    monkeypatch.setattr(mutants, "PYTEST", (*suite.PYTEST, "-q", "-x", "-p", "no:cacheprovider"))
    monkeypatch.setattr(mutants, "LEAST_FOR_TEST", 1.0)
    monkeypatch.setenv("PYTHONPATH", suite.PYTHONPATH)
    return root


def take(monkeypatch: pytest.MonkeyPatch, **replacements: str) -> None:
    """Let these be the mutants of the product: by name, what takes the place of a line of it."""
    lines = {"wait": "pass"}
    monkeypatch.setattr(
        mutants,
        "MUTANTS",
        [
            Mutant(
                name,
                "product.py",
                lines.get(name.partition("_")[0], "return number * 2"),
                after,
                ("test_product.py",),
            )
            for name, after in replacements.items()
        ],
    )


@pytest.mark.exhaustive
def test_each_mutant_has_a_line_and_a_survivor_fails_the_run(tree, monkeypatch, capfd) -> None:
    take(
        monkeypatch,
        added="return number + 3",
        equal="return 2 * number",
        wait_endlessly="while True: pass",
        misspelt="return )",
    )
    assert mutants.main([]) == 1
    output = capfd.readouterr().out
    assert "2 tests pass without a mutant" in output
    told = {
        line.split()[0]: line.split(" s  ")[1] for line in output.splitlines() if " s  " in line
    }
    assert told["added"] == "killed by test_product.py::test_double"
    assert told["equal"] == "SURVIVED"
    assert told["wait_endlessly"] == "killed by test_product.py::test_wait, which hangs"
    assert told["misspelt"] == "NOT RUN: pytest ended with 2:"
    assert output.splitlines()[-1].endswith(": 2 killed, 1 survived, 1 not run")
    assert (tree / "product.py").read_text() == PRODUCT


@pytest.mark.exhaustive
def test_chosen_mutants_that_are_killed_leave_the_run_green(tree, monkeypatch, capfd) -> None:
    take(monkeypatch, added="return number + 3", equal="return 2 * number")
    assert mutants.main(["add"]) == 0
    assert capfd.readouterr().out.splitlines()[-1].startswith("1 mutant")
    assert mutants.main(["no such name"]) == 1
    assert "No mutant has a name with no such name" in capfd.readouterr().out


@pytest.mark.exhaustive
def test_tests_that_fail_without_a_mutant_kill_none(tree, monkeypatch, capfd) -> None:
    (tree / "test_product.py").write_text(
        f"{TESTS}\ndef test_broken(): assert False, 'broken before'\n"
    )
    take(monkeypatch, added="return number + 3")
    assert mutants.main([]) == 1
    output = capfd.readouterr().out
    assert (
        "NOT RUN: test_product.py::test_broken fails without a mutant: AssertionError: broken before"
        in output
    )
    assert output.splitlines()[-1].endswith(": 0 killed, 0 survived, 1 not run")


@pytest.mark.exhaustive
def test_mutant_that_ends_by_no_limit_is_killed_with_its_processes(
    tree, tmp_path, monkeypatch, capfd
) -> None:
    monkeypatch.setattr(mutants, "LEAST_FOR_RUN", 2.0)
    monkeypatch.setattr(mutants, "GRACE", 0.5)
    path = tmp_path / "pid"
    take(monkeypatch, wait_stubbornly=STUBBORN.replace("PATH", repr(str(path))))
    assert mutants.main([]) == 0
    assert "killed: its tests hang" in capfd.readouterr().out
    assert eventually(lambda: not processes.runs(int(path.read_text())))


def test_check_counts_the_mutants_without_their_source(tree, monkeypatch, capfd) -> None:
    take(monkeypatch, added="return number + 3", wait_endlessly="while True: pass")
    assert mutants.main(["--check"]) == 0
    assert capfd.readouterr().out == "2 mutants, each has its source\n"
    (tree / "product.py").write_text(PRODUCT.replace("pass", "return"))
    assert mutants.main(["--check"]) == 1
    assert capfd.readouterr().out == (
        "wait_endlessly: its source is in product.py 0 times, not once\n2 mutants, 1 without its source\n"
    )
