"""While a process loads nothing is collected, and what was loaded is not walked again."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from mcpregistry import garbage_collection
from mcpregistry.calls.in_flight import InFlight
from mcpregistry.garbage_collection import freeze_afterwards, settle
from tests.waiting import until


@pytest.fixture(autouse=True)
def collector_as_before():
    before = gc.get_threshold()
    gc.unfreeze()
    yield
    gc.freeze()  # or it would walk all of it between the tests that come
    gc.set_threshold(*before)
    gc.enable()


def test_the_collector_rests_until_the_last_has_loaded():
    with freeze_afterwards():
        with freeze_afterwards():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() > 10_000, "what was loaded is walked by every full collection"


def test_a_failed_import_leaves_the_collector_at_work():
    with pytest.raises(ImportError), freeze_afterwards():
        import no_such_module  # noqa: F401
    assert gc.isenabled()


class Knot:
    """Refers to itself, so that only the collector frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.exhaustive
async def test_a_settled_process_looks_for_garbage_once_no_call_is_made(monkeypatch):
    monkeypatch.setattr(garbage_collection, "_settled", False)
    monkeypatch.setattr(garbage_collection, "_IDLE_SECONDS", 0.01)
    monkeypatch.setattr(
        garbage_collection, "_SHORT_SECONDS", 0.0
    )  # so that it also sets aside what stays
    settle()
    gc.disable()  # what is freed now was found by us
    knots = [weakref.ref(Knot()) for _ in range(3)]
    assert all(knot() for knot in knots)
    asked = asyncio.current_task()
    assert asked is not None
    with InFlight().track_block(asked):
        pass
    await until(lambda: not any(knot() for knot in knots))
    assert gc.get_freeze_count() > 10_000, "what stays is walked by every later look"


async def test_a_process_that_has_not_settled_is_left_alone(monkeypatch):
    monkeypatch.setattr(garbage_collection, "_settled", False)
    idle = garbage_collection.Idle()
    idle.stir()
    assert idle._timer is None
