"""What maintenance requests cost, in units of energy: by their time, within the range of their
kind."""

from __future__ import annotations

import pytest

from subagents.domain.maintenance import Kind, energy_for, energy_to_least

RANGES = [
    (Kind.ADD, 5, 10),
    (Kind.TEST, 10, 20),
    (Kind.SEARCH, 20, 50),
    (Kind.MODIFY, 2, 5),
    (Kind.REMOVE, 2, 5),
]


@pytest.mark.parametrize(("kind", "least", "most"), RANGES)
def test_a_quick_one_pays_the_least_and_a_slow_one_no_more_than_the_most(
    kind: Kind, least: float, most: float
) -> None:
    quick = energy_for(kind, 0.1, 0)
    assert quick + energy_to_least(kind, quick) == least
    slow = 0.0
    for _ in range(100):
        slow += energy_for(kind, 1.0, slow)
    assert (slow, energy_to_least(kind, slow)) == (most, 0)
    assert energy_for(kind, -1.0, 0) == 0, "a clock that was set back gives nothing back"
