"""Several processes charge one pool while the sub-agent's count is added to and taken: the books balance to the unit."""

from __future__ import annotations

import pytest

from tests.fault import energy

pytestmark = [pytest.mark.fault, pytest.mark.usefixtures("live_db", "site_env")]


def test_processes_at_once_lose_and_double_nothing():
    energy.prepare()
    assert energy.campaign(processes=3, charges=25, polls=60).wrong == []
