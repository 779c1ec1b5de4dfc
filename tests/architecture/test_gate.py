"""What `make test` may cost, as counts: how many of its tests need something that takes long to start."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import cast

import pytest

from tests import legs

# More than this takes a reason: first look for a test that can be marked exhaustive, or show its point with less.
MOST = {"a browser": 35, "whole processes": 550, "a broker": 75}


def test_gate_stays_within_its_budget(request: pytest.FixtureRequest) -> None:
    """It counts the tests of this run; a run of a few files says nothing of the others."""
    items = list(request.session.items)
    left_to_all = set(legs.of_test_all_alone(items, postgres=request.config.getoption("--postgres")))
    counts: Counter[str] = Counter()
    for item in items:
        if item not in left_to_all:
            counts.update(needs(item))
    assert {need: count for need, count in counts.items() if count > MOST[need]} == {}


@pytest.mark.parametrize(("mark", "kept"), [("both_databases", True), ("fault", False)])
def test_marked_test_of_a_file_for_sqlite_stays_on_postgresql(mark: str, kept: bool) -> None:
    marks = [pytest.mark.exhaustive(on="postgresql").mark, getattr(pytest.mark, mark).mark]
    item = SimpleNamespace(
        nodeid="test_it",
        iter_markers=lambda name: [each for each in marks if each.name == name],
        get_closest_marker=lambda name: next((each for each in marks if each.name == name), None),
    )
    items = cast("list[pytest.Item]", [item])
    assert legs.of_test_all_alone(items, postgres=True) == ([] if kept else items)
    assert legs.of_test_all_alone(items, postgres=False) == []


def needs(item: pytest.Item) -> list[str]:
    """What this test starts, or has started for it."""
    found = {
        "a browser": item.get_closest_marker("web"),
        "whole processes": item.get_closest_marker("e2e"),
        "a broker": "broker" in getattr(item, "fixturenames", ()),
    }
    return [need for need, needed in found.items() if needed]
