"""Programs in sandboxes are recognized although ``/proc`` hides processes, as it does when it is
mounted with ``hidepid``."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from controlplane import doctor
from mcpregistry.downstream.transports import sandbox_callers
from tests.externals import ROOT
from tests.waiting import HANG_LIMIT

# A program that a launcher has started connects, and makes itself undumpable: /proc may hide it
# then.
_SERVER = """
import ctypes, socket, sys
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
sys.stdin.read()
"""
_LAUNCHER = """
import subprocess, sys
subprocess.run([sys.executable, "-I", "-c", *sys.argv[3:]])
# mcpregistry/downstream/transports/launcher.py"""
_SITE = """
import json, socket, subprocess, sys
from mcpregistry.downstream.transports import sandbox_callers
listener = socket.create_server(("127.0.0.1", 0))
here = listener.getsockname()
words = [sys.executable, "-I", "-c", sys.argv[1], "3", "read /usr", sys.argv[2], str(here[1])]
with subprocess.Popen(words, stdin=subprocess.PIPE) as launcher:
    inside, address = listener.accept()
    from_inside = sandbox_callers.is_from_sandbox(address, here)
    outside = socket.create_connection(here)
    from_outside = sandbox_callers.is_from_sandbox(outside.getsockname(), here)
    launcher.stdin.close()
print(json.dumps([sandbox_callers.are_processes_hidden(), from_inside, from_outside]))
"""


@pytest.mark.exhaustive(one_in=4)
@pytest.mark.attack
@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root can mount /proc"
)
@pytest.mark.parametrize("hidepid", [0, 1, 2, 4])
def test_confined_program_is_recognized_where_proc_hides_it(hidepid: int) -> None:
    as_user = "exec setpriv --reuid=65534 --regid=65534 --clear-groups"
    script = f'mount -t proc -o hidepid={hidepid} proc /proc && {as_user} "$@"'
    code = ["-B", "-c", _SITE, _LAUNCHER.strip(), _SERVER]
    words = ["unshare", "-m", "sh", "-c", script, "sh", *python_of_other_users(), *code]
    ended = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, timeout=HANG_LIMIT, check=False
    )
    if "unshare" in ended.stderr or "mount" in ended.stderr:
        pytest.skip(f"no mounts here: {ended.stderr}")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == [hidepid > 0, True, False]


def python_of_other_users() -> list[str]:
    """Return the start of a command that runs Python with the installed packages as any user: ours
    may be in a folder of root."""
    if all(
        folder.stat().st_mode & stat.S_IXOTH for folder in Path(sys.executable).resolve().parents
    ):
        return [sys.executable]
    other = Path(f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}")
    if not other.exists():
        pytest.skip(f"other users can run neither {sys.executable} nor {other}")
    return ["env", f"PYTHONPATH={sysconfig.get_path('purelib')}", str(other)]


def test_doctor_warns_where_proc_hides_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_callers, "are_processes_hidden", lambda: True)
    found = [each for each in doctor.find_hidden_processes() if not each.ok]
    assert "hidepid" in found[0].what
    monkeypatch.setattr(sandbox_callers, "are_processes_hidden", lambda: False)
    assert [*doctor.find_hidden_processes()] == []
