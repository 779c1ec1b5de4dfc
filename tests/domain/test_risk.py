"""Risk is what nobody has ruled out."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import pytest

from mcpregistry.domain.policy.risk import RiskLevel, assess_risk


@dataclass(frozen=True)
class Confirmed:
    read_only: bool | None = None
    destructive: bool | None = None
    open_world: bool | None = None


@pytest.mark.parametrize(
    ("confirmed", "level"),
    [
        ((None, None, None), "high"),
        ((True, None, False), "low"),
        ((True, False, False), "low"),
        ((True, None, None), "medium"),
        ((True, None, True), "medium"),
        ((False, False, False), "medium"),
        ((False, False, None), "high"),
        ((False, None, False), "high"),
        ((False, True, False), "high"),
        ((None, None, False), "high"),
    ],
)
def test_levels(confirmed, level):
    assert assess_risk(Confirmed(*confirmed)).level == level


def test_nothing_unconfirmed_lowers_the_risk():
    """Confirming nothing instead of anything never gives a lower level."""
    for facts in product((None, True, False), repeat=3):
        full = assess_risk(Confirmed(*facts)).level.rank
        for index in range(3):
            less = [None if i == index else fact for i, fact in enumerate(facts)]
            assert assess_risk(Confirmed(*less)).level.rank >= full
    assert [level.rank for level in RiskLevel] == [1, 2, 3]
