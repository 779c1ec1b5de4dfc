"""The matrix of ``matrix.py`` for callers over stdio; a file of its own, so that both halves run at
the same time."""

from __future__ import annotations

from tests.fault.matrix import MARKS, Cell, Happening, cell, cells, check, place, stage

__all__ = ["cell", "place", "stage"]  # fixtures

pytestmark = MARKS


@cells("stdio")
async def test_matrix(cell: Cell, what: Happening):
    await check(cell, what)
