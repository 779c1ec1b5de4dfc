"""Several processes charge one pool while the sub-agent's count is added to and taken: the books
balance to the unit."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fault import energy

pytestmark = [pytest.mark.fault, pytest.mark.usefixtures("live_db", "site_env")]


@pytest.fixture
def made_so_far() -> list[int]:
    """Charges and polls of the examples so far, which share one pool."""
    energy.prepare()
    return [0, 0]


# Each example starts processes (2 to 3 s), and what one has left is the next one's beginning: few,
# and none is made smaller.
@pytest.mark.exhaustive
@settings(
    max_examples=3,
    deadline=None,
    phases=(Phase.generate,),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(processes=st.integers(2, 4), charges=st.integers(1, 30), polls=st.integers(1, 60))
def test_processes_at_once_lose_and_double_nothing(
    made_so_far: list[int], processes: int, charges: int, polls: int
):
    made_so_far[0] += processes * charges
    made_so_far[1] += polls
    assert energy.campaign(processes, charges, polls, of_all=tuple(made_so_far)).wrong == []
