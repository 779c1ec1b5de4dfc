"""Writes the table of what is carried into the documentation: ``python -m tests.conformance.table``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "protocol.md"
_BEGIN, _END = "<!-- table: begin -->\n", "<!-- table: end -->"


def between(text: str) -> str:
    """The table that stands in the page."""
    return text.partition(_BEGIN)[2].partition(_END)[0]


def replaced(text: str, table: str) -> str:
    """The page with this table."""
    before, _, rest = text.partition(_BEGIN)
    return f"{before}{_BEGIN}{table}{_END}{rest.partition(_END)[2]}"


def written(
    features: Sequence[str], eras: Sequence[str], doors: Sequence[str], found: Mapping[tuple[str, str, str], list[str]]
) -> str:
    """A row for each feature, a column for each pair of a host's and a server's era; in it the doors where it works."""
    pairs = [(host, server) for host in eras for server in eras]
    head = ["", *(f"{host} host, {server} server" for host, server in pairs)]
    rows = [head, ["---"] * len(head)]
    for feature in features:
        rows.append([feature, *(_cell(found[feature, *pair], doors) for pair in pairs)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows).replace("|  |", "| |")


def _cell(where: Sequence[str], doors: Sequence[str]) -> str:
    return {len(doors): "every door", 0: "no"}.get(len(where), ", ".join(where))


if __name__ == "__main__":
    test = str(Path(__file__).with_name("test_table.py"))
    os.environ["WRITE_PROTOCOL_TABLE"] = "1"
    os.execv(sys.executable, [sys.executable, "-m", "pytest", "-q", test])
