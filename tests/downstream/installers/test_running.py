"""An installer is confined, bounded, and never outlives who started it; what it leaves is looked
through."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from mcpregistry.domain.installs.reasons import InstallFailed
from mcpregistry.downstream.installers import package_tree, programs
from mcpregistry.downstream.installers.exit_check import check_exit
from mcpregistry.downstream.installers.installer_process import (
    InstallerBounds,
    InstallerPlace,
    run_installer,
)
from mcpregistry.downstream.transports.process_usage import list_files
from tests.processes import with_words
from tests.waiting import HANG_LIMIT, eventually


@pytest.fixture
def place(tmp_path: Path) -> InstallerPlace:
    for name in ("home", "build"):
        (tmp_path / name).mkdir()
    return InstallerPlace(home=str(tmp_path / "home"), build=str(tmp_path / "build"))


def shell(script: str, place: InstallerPlace, **bounds: float) -> tuple[int, str]:
    bounded = InstallerPlace(
        place.home, place.build, place.beat, InstallerBounds(**{"seconds": HANG_LIMIT, **bounds})
    )  # type: ignore[arg-type]
    return run_installer(["sh", "-c", script], place=bounded, env={})


def started(mark: str) -> list[psutil.Process]:
    """On the whole machine, so marks hold our process id: the same test may run beside this one."""
    return with_words(mark, psutil.process_iter())


@pytest.mark.attack
def test_it_writes_its_own_folders_and_gets_nothing_of_our_environment(
    place: InstallerPlace, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("SLIPSNISSE_SECRET", "not for installers")
    code, said = shell(
        f"env; echo x > {place.build}/kept; echo x > {tmp_path}/elsewhere; ls /root {tmp_path}",
        place,
    )
    assert (tmp_path / "build" / "kept").exists()
    assert not (tmp_path / "elsewhere").exists()
    assert "not for installers" not in said
    assert code != 0
    assert "ermission denied" in said


@pytest.mark.parametrize(
    ("script", "bounds", "reason"),
    [
        ("sleep 4711.{n}", {"seconds": 0.2}, "did not finish within 0 s"),
        (
            "head -c 3000000 /dev/zero > big; sleep 4711.{n}",
            {"written": 1 << 20},
            "too much disk space. The limit is 1 MB",
        ),
        ("sleep 4711.{n}", {"memory": 1 << 10}, "too much memory. The limit is 0 MB"),
    ],
)
def test_beyond_its_bounds_it_is_ended_with_all_that_it_started(
    place: InstallerPlace, script: str, bounds, reason: str
) -> None:
    mark = f"4711.{os.getpid()}"
    with pytest.raises(InstallFailed, match=reason):
        shell(script.replace("4711.{n}", f"{mark} & sleep {mark}"), place, **bounds)
    assert not started(mark)


def test_it_ends_where_its_work_is_not_ours_any_more(place: InstallerPlace) -> None:
    def taken() -> None:
        raise InstallFailed("taken")

    with pytest.raises(InstallFailed, match="taken"):
        run_installer(
            ["sleep", f"4712.{os.getpid()}"],
            place=InstallerPlace(place.home, place.build, taken),
            env={},
        )
    assert not started(f"sleep 4712.{os.getpid()}")


def test_it_dies_with_the_process_that_started_it(place: InstallerPlace) -> None:
    script = (
        "from mcpregistry.downstream.installers.installer_process import InstallerPlace, run_installer\n"
        f"run_installer(['sleep', '4713.{os.getpid()}'], place=InstallerPlace({place.home!r}, {place.build!r}), env={{}})"
    )
    worker = subprocess.Popen([sys.executable, "-c", script])
    eventually(lambda: started(f"sleep 4713.{os.getpid()}"))
    worker.send_signal(signal.SIGKILL)
    worker.wait(HANG_LIMIT)
    eventually(lambda: not started(f"sleep 4713.{os.getpid()}"))


def test_a_program_that_is_not_there_is_told_plainly(
    place: InstallerPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InstallFailed, match="was not found"):
        run_installer(["no-such-program"], place=place, env={})
    monkeypatch.setenv("PATH", place.home)
    with pytest.raises(InstallFailed, match=r"Node\.js is required"):
        programs.find_npm()


def test_a_failure_is_logged_without_addresses(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InstallFailed):
        check_exit(1, "npm error at https://me:secret@host/x and git+ssh://git@host", verb="npm ci")
    assert "secret" not in caplog.text
    check_exit(0, "", verb="npm ci")


@pytest.mark.attack
@pytest.mark.parametrize("kind", ["absolute", "out", "chain", "setuid", "fifo", "socket"])
def test_what_leads_or_reaches_out_of_the_tree_is_refused(
    tmp_path: Path, kind: str, monkeypatch
) -> None:
    root = tmp_path / "tree"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "file").write_text("x")
    package_tree.verify(str(root))
    odd = root / "sub" / "odd"
    if kind in ("absolute", "out", "chain"):
        odd.symlink_to(
            {"absolute": str(root / "sub" / "file"), "out": "../../x", "chain": "../odd/../.."}[
                kind
            ]
        )
    elif kind == "setuid":
        odd.write_text("x")
        odd.chmod(0o4755)
    elif kind == "fifo":
        os.mkfifo(odd)
    else:
        monkeypatch.chdir(odd.parent)
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("odd")
    with pytest.raises(InstallFailed, match="odd"):
        package_tree.verify(str(root))


def test_a_tree_is_counted_sealed_and_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "tree"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "file").write_text("12345")
    (root / "link").symlink_to("sub/file")
    (root / "python").symlink_to(programs.find_python())
    assert package_tree.verify(str(root), may_lead_to=frozenset({programs.find_python()}))[1] == 4
    package_tree.make_read_only(str(root))
    assert not any(
        path.lstat().st_mode & 0o222 for path in (root, root / "sub", root / "sub" / "file")
    )
    monkeypatch.setattr(package_tree, "MOST_FILES", 2)
    with pytest.raises(InstallFailed, match="too much disk space"):
        package_tree.verify(str(root), may_lead_to=frozenset({programs.find_python()}))
    package_tree.remove(str(root))
    package_tree.remove(str(root))
    assert not root.exists()


@pytest.mark.exhaustive
@pytest.mark.attack
def test_folders_in_folders_without_end_are_refused_and_removed(tmp_path: Path) -> None:
    """Paths that no system call takes any more, and a depth at which recursion ends."""
    root = tmp_path / "tree"
    deepest = 3_000
    root.mkdir()
    at = os.open(root, os.O_RDONLY)
    for number in range(deepest):
        os.close(os.open("file", os.O_CREAT, 0o000, dir_fd=at))
        os.symlink("/", "link", dir_fd=at)
        os.mkdir("folder", dir_fd=at)
        within = os.open("folder", os.O_RDONLY, dir_fd=at)
        os.fchmod(at, 0o700 if number % 2 else 0o500)
        os.close(at)
        at = within
    os.close(at)
    with pytest.raises(InstallFailed, match="more than 100 folders deep"):
        package_tree.verify(str(root / "folder"), may_lead_to=frozenset({"/"}))
    assert package_tree.measure_size(str(root))[1] == 300
    found = list_files(str(root))
    assert found is not None
    assert len(found) == 200
    package_tree.remove(str(root))
    assert not root.exists()
