"""Commands about a site refuse to work where there is none, and make nothing there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.externals import ROOT
from tests.waiting import HANG_LIMIT


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize("keys", [False, True])
def test_a_command_in_an_empty_place_refuses_and_makes_nothing(tmp_path: Path, keys: bool) -> None:
    empty = tmp_path / "empty"
    given = {"SLIPSNISSE_KEYS": f"k1:{'A' * 43}=", "SLIPSNISSE_SECRET_KEY": "x" * 50}
    unset = ("DATABASE_URL", "SLIPSNISSE_PROCESS", *given)
    env = {name: value for name, value in os.environ.items() if name not in unset} | {
        "SLIPSNISSE_VAR": str(empty)
    }
    done = subprocess.run(
        [sys.executable, "manage.py", "history"],
        cwd=ROOT,
        env=env | (given if keys else {}),
        capture_output=True,
        text=True,
        timeout=HANG_LIMIT,
        check=False,
    )
    assert done.returncode == 1
    assert f"There is no site in {empty}" in done.stderr
    assert "Traceback" not in done.stderr
    assert not any(empty.glob("**/*.sqlite3*"))
    assert not (empty / "keys.json").exists()
