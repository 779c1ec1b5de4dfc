"""While a process loads nothing is collected, and what was loaded is not walked again."""

from __future__ import annotations

import gc

import pytest

from mcpregistry.loading import lasting


@pytest.fixture(autouse=True)
def collector_as_before():
    yield
    gc.unfreeze()
    gc.enable()


def test_the_collector_rests_until_the_last_has_loaded():
    with lasting():
        with lasting():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() > 10_000, "what was loaded is walked by every full collection"


def test_a_failed_import_leaves_the_collector_at_work():
    with pytest.raises(ImportError), lasting():
        import no_such_module  # noqa: F401
    assert gc.isenabled()
