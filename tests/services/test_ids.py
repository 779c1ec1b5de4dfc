"""Ids: in the order of their making, never twice, also not in a forked child."""

from __future__ import annotations

import os
import re
import time

import pytest

from mcpregistry.ids import make_ordered_id, make_random_id


def test_ordered_ids_sort_by_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = []
    for milliseconds in (1, 255, 1_800_000_000_000, 2**48 - 1):
        monkeypatch.setattr(time, "time_ns", lambda at=milliseconds: at * 1_000_000)
        ids.append(make_ordered_id())
    assert ids == sorted(ids)
    assert all(re.fullmatch("[0-9a-f]{32}", one) for one in ids)


def test_random_ids_are_not_given_twice() -> None:
    ids = [make_random_id() for _ in range(2_000)]
    assert len(set(ids)) == 2_000
    assert all(re.fullmatch("[0-9a-f]{32}", one) for one in ids)


def test_a_forked_child_has_a_stock_of_its_own() -> None:
    make_random_id()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, make_random_id().encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 32).decode() not in {make_random_id() for _ in range(300)}
