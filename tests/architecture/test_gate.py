"""What `make test` may cost, as counts: how many of its tests need something that takes long to
start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from tests import legs

# More than this takes a reason: first look for a test that can be marked exhaustive, or show its
# point with less.
MOST = {"a browser": 8, "whole processes": 325, "a broker": 22}


def test_gate_stays_within_its_budget(request: pytest.FixtureRequest) -> None:
    """It counts the tests of this run; a run of a few files says nothing of the others."""
    counts = count_needs(request.session.items, gate=request.config.getoption("--gate"))
    assert {need: count for need, count in counts.items() if count > MOST[need]} == {}


def test_gate_and_complete_run_count_the_same_tests() -> None:
    """In the gate, one case in three is left already; in a complete run, all are."""
    every_third = pytest.mark.exhaustive(one_in=3).mark
    whole = [
        fake_item([pytest.mark.e2e.mark, every_third], name=f"test_it[{number}]")
        for number in range(9)
    ]
    hosts = [fake_item([pytest.mark.e2e.mark, pytest.mark.host("gemini").mark], name="test_host")]
    in_gate = [whole[0], whole[3], whole[6]]
    assert count_needs([*whole, *hosts], gate=False) == {"whole processes": 3}
    assert count_needs(in_gate, gate=True) == {"whole processes": 3}


@pytest.mark.parametrize(("mark", "kept"), [("both_databases", True), ("fault", False)])
def test_marked_test_of_a_file_for_sqlite_stays_on_postgresql(mark: str, kept: bool) -> None:
    items = [
        fake_item([pytest.mark.exhaustive(on="postgresql").mark, getattr(pytest.mark, mark).mark])
    ]
    assert legs.of_test_all_alone(items, postgres=True) == ([] if kept else items)
    assert legs.of_test_all_alone(items, postgres=False) == []


def fake_item(marks: Sequence[pytest.Mark], name: str = "test_it") -> pytest.Item:
    item = SimpleNamespace(
        nodeid=name,
        iter_markers=lambda wanted: [mark for mark in marks if mark.name == wanted],
        get_closest_marker=lambda wanted: next(
            (mark for mark in marks if mark.name == wanted), None
        ),
    )
    return cast("pytest.Item", item)


def count_needs(items: Sequence[pytest.Item], *, gate: bool) -> Counter[str]:
    """Count what the gate's tests need. Tests of real hosts are not counted, because they run only
    where a host is installed.

    In the gate, ``items`` are its tests already. To ask again which of them the gate runs would
    leave out more of them, because ``exhaustive(one_in=3)`` counts the cases that it sees.
    """
    left_to_all = (
        set()
        if gate
        else {id(item) for item in legs.of_test_all_alone(list(items), postgres=False)}
    )
    counts: Counter[str] = Counter()
    for item in items:
        if id(item) not in left_to_all and not item.get_closest_marker("host"):
            counts.update(needs(item))
    return counts


def needs(item: pytest.Item) -> list[str]:
    """What this test starts, or has started for it."""
    found = {
        "a browser": item.get_closest_marker("web"),
        "whole processes": item.get_closest_marker("e2e"),
        "a broker": "broker" in getattr(item, "fixturenames", ()),
    }
    return [need for need, needed in found.items() if needed]
