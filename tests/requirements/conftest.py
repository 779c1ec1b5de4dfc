"""Fixtures of other rooms, for demands that no single room shows by itself."""

from __future__ import annotations

from tests.api.conftest import caller
from tests.calls.conftest import journal, site
from tests.downstream.conftest import bench

__all__ = ["bench", "caller", "journal", "site"]
