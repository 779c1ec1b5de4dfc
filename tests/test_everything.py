"""The command ``python -m tests.everything``: what runs again, and what ``--continue`` leaves
out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import everything
from tests.waiting import HANG_LIMIT, eventually

STAGES = ("one", "two", "three")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of one commit. Each stage writes its name to ``ran`` outside of it, and fails if
    a file of its name is there."""
    root = tmp_path / "checkout"
    root.mkdir()
    monkeypatch.setattr(everything, "ROOT", root)
    monkeypatch.setattr(everything, "INSTALLED", tmp_path / "installed")
    monkeypatch.setattr(everything, "stages", lambda folder: stages(tmp_path))
    git(root, "init", "--quiet")
    commit(root, "a first line")
    return root


def stages(folder: Path, hanging: str = "") -> list[everything.Stage]:
    return [
        everything.Stage(
            name,
            (
                "sh",
                "-c",
                f"echo {name} >> {folder}/ran; test ! -e {folder}/{name}{' && exec sleep 1000' * (name == hanging)}",
            ),
        )
        for name in STAGES
    ]


def git(root: Path, *words: str) -> None:
    who = ("-c", "user.name=tester", "-c", "user.email=tester@example.org")
    subprocess.run(["git", *who, *words], cwd=root, check=True)


def commit(root: Path, text: str) -> None:
    (root / "source.py").write_text(text)
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", text)


def ran(checkout: Path, arguments: Sequence[str] = ("--continue",), code: int = 0) -> list[str]:
    """Run, and return the stages that ran."""
    path = checkout.parent / "ran"
    path.write_text("")
    assert everything.main(arguments) == code
    return path.read_text().split()


def test_second_run_continues_after_a_complete_one_with_nothing_left(checkout, capfd) -> None:
    assert ran(checkout, []) == [*STAGES]
    capfd.readouterr()
    assert ran(checkout) == []
    output = capfd.readouterr().out
    assert output.count("passed before: ") == len(STAGES)
    assert output.endswith("3 passed, 0 failed\n")
    assert ran(checkout, []) == [*STAGES]


def test_another_commit_starts_anew(checkout) -> None:
    ran(checkout, [])
    commit(checkout, "a second line")
    assert ran(checkout) == [*STAGES]


@pytest.mark.parametrize("name", ["source.py", "new.py"])
def test_each_change_of_a_file_starts_anew(checkout, name: str) -> None:
    ran(checkout, [])
    for text in ("changed", "changed again"):
        (checkout / name).write_text(text)
        assert ran(checkout) == [*STAGES]
        assert ran(checkout) == []


def test_state_that_was_tested_before_needs_no_run(checkout) -> None:
    ran(checkout, [])
    (checkout / "source.py").write_text("changed")
    ran(checkout)
    git(checkout, "checkout", "--quiet", "source.py")
    assert ran(checkout) == []


def test_failed_stage_runs_again_alone(checkout, capfd) -> None:
    (checkout.parent / "two").touch()
    assert ran(checkout, [], code=1) == [*STAGES]
    assert "FAILED: two (exit code 1," in capfd.readouterr().out
    (checkout.parent / "two").unlink()
    assert ran(checkout) == ["two"]


def test_killed_run_resumes_at_the_stage_that_had_not_passed(checkout, tmp_path) -> None:
    program = f"""
from pathlib import Path
from tests import everything, test_everything
everything.ROOT, everything.INSTALLED = Path({str(checkout)!r}), Path({str(tmp_path / "installed")!r})
everything.stages = lambda folder: test_everything.stages(Path({str(tmp_path)!r}), hanging="two")
everything.main([])
"""
    process = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    path = tmp_path / "ran"
    eventually(lambda: path.exists() and path.read_text().split() == ["one", "two"])
    subprocess.run(["pkill", "-KILL", "--session", str(process.pid)], check=True)
    assert process.wait(HANG_LIMIT) < 0
    assert ran(checkout) == ["two", "three"]


def test_stage_during_which_the_source_changes_has_not_passed(checkout, monkeypatch, capfd) -> None:
    change = everything.Stage("change", ("sh", "-c", f"date +%N > {checkout}/source.py"))
    monkeypatch.setattr(everything, "stages", lambda folder: [change, *stages(checkout.parent)])
    assert ran(checkout, [], code=1) == []
    output = capfd.readouterr().out
    assert "FAILED: change (the source has changed" in output
    assert "0 passed, 4 failed" in output
