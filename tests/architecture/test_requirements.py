"""tests/requirements/rows.md and threats.md stay true: every number once, known states, right
counts, tests that exist."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from typing import NamedTuple

import pytest

from tests.externals import ROOT

PAGE = ROOT / "tests" / "requirements" / "rows.md"
THREATS = ROOT / "tests" / "requirements" / "threats.md"
ROWS = {"S0": 66, "S1": 254, "S2": 167, "S3": 203, "S4": 77}
STATES = (
    "done",
    "partly",
    "later: headends",
    "later",
    "not built",
)
_ROW = re.compile(r"\| (S\d-\d{3}) \| (.+?) \| ([a-z][a-z:\- ]*) \| (.*?) ?\|", re.DOTALL)
_TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


class Row(NamedTuple):
    id: str
    demand: str
    state: str
    reason: str


def rows() -> list[Row]:
    lines = [
        line
        for line in PAGE.read_text().splitlines()
        if line.startswith("| S") and line[3:5] != " |"
    ]
    found = [_ROW.fullmatch(line.replace(r"\|", "¦")) for line in lines]
    assert all(found), [line for line, match in zip(lines, found, strict=True) if not match]
    return [Row(*match.groups()) for match in found if match]


@cache
def functions(file: str) -> frozenset[str]:
    """Names of the tests in a file; none where there is no such file."""
    path = ROOT / file
    tree = ast.parse(path.read_text()) if path.is_file() else ast.Module([], [])
    defined = (
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return frozenset(node.name for node in defined)


def test_every_demand_stands_exactly_once_and_in_order():
    assert [row.id for row in rows()] == [
        f"{s}-{n:03}" for s, count in ROWS.items() for n in range(1, count + 1)
    ]


def test_every_state_is_a_known_one_and_every_gap_has_a_reason():
    assert {row.state for row in rows()} <= set(STATES)
    assert [
        row.id for row in rows() if row.state in ("partly", "later", "not built") and not row.reason
    ] == []


def test_what_is_done_names_the_test_that_shows_it():
    assert [row.id for row in rows() if row.state == "done" and not _TEST.search(row.reason)] == []


def test_every_named_test_exists():
    named = {match for row in rows() for match in _TEST.findall(row.reason)} | set(
        _TEST.findall(THREATS.read_text())
    )
    assert named
    assert [f"{file}::{name}" for file, name in sorted(named) if name not in functions(file)] == []


def test_whatever_stands_against_a_threat_names_the_test_that_shows_it():
    claims = [line for line in THREATS.read_text().splitlines() if line.startswith("- ")]
    assert claims
    assert [line for line in claims if not _TEST.search(line)] == []


@pytest.mark.parametrize("state", [*STATES, "all"])
def test_the_counts_on_top_are_those_of_the_rows(state: str):
    counts = Counter(row.id[:2] for row in rows() if state in ("all", row.state))
    expected = [*(counts[source] for source in ROWS), counts.total()]
    assert f"| {state} | {' | '.join(map(str, expected))} |" in PAGE.read_text().splitlines()
