"""Errors that are alike are one pattern, whatever names and numbers stand in them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from mcpregistry.domain.calls.error_patterns import Occurrence, group_errors, normalize_error_text

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("No row 17 in 'users'.", "No row # in '…'."),
        (
            "request 3f2b8c1e-0a4d-4c57-9f3e-aa01bc23de45 failed\n after 1.5 s",
            "request # failed after # s",
        ),
        ("commit deadbeef12 is gone", "commit # is gone"),
        ("added decade", "added decade"),
        ("", ""),
        ("x" * 5_000, "x" * 200),
    ],
)
def test_what_varies_is_left_out(text: str, expected: str) -> None:
    assert normalize_error_text(text) == expected


def test_the_most_frequent_come_first_with_their_first_and_last_time_and_no_more_than_wanted() -> (
    None
):
    failed = [
        Occurrence("a", "TIMEOUT", f"after {n} s", NOON + timedelta(minutes=n)) for n in (3, 1, 2)
    ]
    failed += [Occurrence(f"t{n}", "X", "", NOON) for n in range(30)]
    found = group_errors(failed)
    assert len(found) == 20
    assert (found[0].tool, found[0].count, found[0].first, found[0].last) == (
        "a",
        3,
        NOON + timedelta(minutes=1),
        NOON + timedelta(minutes=3),
    )
