"""docs/errors.md names every code that a caller may see, and none that there is not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from mcpregistry.api.errors import status_of
from mcpregistry.domain.errors import (
    ConnectionFailed,
    DownstreamError,
    SlipsnisseError,
    ToolRefused,
)

ROOT = Path(__file__).resolve().parents[2]
_ROW = re.compile(r"^\| `([A-Z_]+)` \| ([^|]+) \|", re.MULTILINE)


def _classes(base: type[SlipsnisseError] = SlipsnisseError) -> Iterator[type[SlipsnisseError]]:
    yield base
    for child in base.__subclasses__():
        yield from _classes(child)


def _source() -> str:
    return "\n".join(
        path.read_text()
        for package in ("mcpregistry", "subagents")
        for path in (ROOT / package).rglob("*.py")
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
    # others of the same code are answered as these
    ours = ("mcpregistry.domain.errors", "mcpregistry.api.errors")
    by_code = {
        error.code: error for error in reversed(list(_classes())) if error.__module__ in ours
    }
    told = {code: int(status) for code, status in _rows() if status.isdigit() and code in by_code}
    assert len(told) > 12
    assert told == {code: status_of(by_code[code].__new__(by_code[code])) for code in told}


# Signals between two places of the code: no caller sees them, or they are worded where they are
# caught.
_SIGNALS = {
    "ApprovalVoidError",
    "NotClaimedError",
    "EndedOtherwiseError",
    "Lost",
    "FileRefusedError",
    "RefusedBefore",
    "RateLimitedError",
    "ConditionInvalid",
}
# Reasons why an install option of an entry cannot be used: the page shows the other options beside
# them.
_REASONS = {
    "mcpregistry/domain/registry/install_options.py",
    "mcpregistry/domain/registry/containers.py",
}


def _calls_without_remedy(path: Path, names: set[str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            not isinstance(node, ast.Raise)
            or not isinstance(call := node.exc, ast.Call)
            or not call.args
        ):
            continue
        name = (
            call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        )
        if name in names and not any(each.arg in ("remedy", None) for each in call.keywords):
            yield f"{path.relative_to(ROOT)}:{node.lineno}"


def _names_of(*roots: str) -> set[str]:
    """The classes of this name and all below them, wherever they are defined."""
    defined = re.findall(r"^class (\w+)\(([\w., ]+)\):", _source(), re.MULTILINE)
    found = set(roots)
    while (
        more := {name for name, bases in defined if found & set(re.findall(r"\w+", bases))} - found
    ):
        found |= more
    return found


def test_every_refusal_says_what_to_do() -> None:
    names = (
        _names_of("SlipsnisseError")
        - _names_of("DownstreamError")
        - _names_of("Interrupted")
        - _SIGNALS
    )
    files = [
        path for package in ("mcpregistry", "subagents") for path in (ROOT / package).rglob("*.py")
    ]
    known = [path for path in files if str(path.relative_to(ROOT)) not in _REASONS]
    assert [place for path in known for place in _calls_without_remedy(path, names)] == []


def test_every_failure_of_a_server_says_what_to_do() -> None:
    ours = [
        each for each in _classes(DownstreamError) if each.__module__ == DownstreamError.__module__
    ]
    kinds = [each for each in ours if not issubclass(each, ToolRefused)]
    assert len(kinds) > 8
    assert all(kind("It failed.").remedy for kind in kinds)
    assert ConnectionFailed("It failed.", remedy="Start it.").remedy == "Start it."
