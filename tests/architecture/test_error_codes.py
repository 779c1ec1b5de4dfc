"""docs/errors.md names every code that a caller may see, and none that there is not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from mcpregistry.api.errors import status_of
from mcpregistry.domain.errors import SlipsnisseError

ROOT = Path(__file__).resolve().parents[2]
_ROW = re.compile(r"^\| `([A-Z_]+)` \| ([^|]+) \|", re.MULTILINE)


def _classes(base: type[SlipsnisseError] = SlipsnisseError) -> Iterator[type[SlipsnisseError]]:
    yield base
    for child in base.__subclasses__():
        yield from _classes(child)


def _source() -> str:
    return "\n".join(
        path.read_text() for package in ("mcpregistry", "subagents") for path in (ROOT / package).rglob("*.py")
    )


def _rows() -> list[tuple[str, str]]:
    return _ROW.findall((ROOT / "docs/errors.md").read_text())


def test_every_code_has_one_row() -> None:
    codes = [code for code, _ in _rows()]
    known = set(re.findall(r"^    code(?:: [^=]+)? = \"([A-Z_]+)\"", _source(), re.MULTILINE))
    assert sorted(codes) == sorted(set(codes))
    assert len(known) > 30
    assert known <= set(codes), f"without a row: {known - set(codes)}"


def test_no_row_is_of_a_code_that_is_not_there() -> None:
    source = _source()
    assert not [code for code, _ in _rows() if f'"{code}"' not in source]


def test_the_statuses_are_those_that_rest_answers() -> None:
    ours = ("mcpregistry.domain.errors", "mcpregistry.api.errors")  # others of the same code are answered as these
    by_code = {error.code: error for error in reversed(list(_classes())) if error.__module__ in ours}
    told = {code: int(status) for code, status in _rows() if status.isdigit() and code in by_code}
    assert len(told) > 12
    assert told == {code: status_of(by_code[code].__new__(by_code[code])) for code in told}
