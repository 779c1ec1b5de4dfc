"""A first `migrate` that is killed at any step: no process serves that database, and the next
`migrate` completes it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.fakes import elsewhere

pytestmark = pytest.mark.fault

STEPS = ["migration_noted", "migration_applied", "triggers_made", "roles_made"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("step", STEPS)
def test_a_killed_first_migrate_is_completed_by_the_next(
    live_db: None, tmp_path: Path, step: str
) -> None:
    site = elsewhere.of_the_same_kind(tmp_path / "var", migrate=False)
    code, said = site.run("migrate", "-v", "0", SLIPSNISSE_FAILPOINT=f"{step}:crash")
    assert code == -signal.SIGKILL, said
    code, said = site.run("migrate", "-v", "0")
    assert code == 0, said
    assert site.shown(_INTERRUPTED) == ""
    site.assert_whole()


_INTERRUPTED = "__import__('mcpregistry.services.upkeep.completeness', fromlist=['explain_interrupted_migration']).explain_interrupted_migration()"
