"""Write the table of the supported features into the documentation: ``python -m
tests.conformance.table``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "protocol.md"
_BEGIN = "<!-- table: begin -->\n"
_END = "<!-- table: end -->"
_VERSIONS = {"modern": "2026-07-28", "older": "2025-11-25"}


def between(text: str) -> str:
    """Return the table in the page."""
    return text.partition(_BEGIN)[2].partition(_END)[0]


def replaced(text: str, table: str) -> str:
    """Return the page with this table."""
    before, _, rest = text.partition(_BEGIN)
    return f"{before}{_BEGIN}{table}{_END}{rest.partition(_END)[2]}"


def written(
    features: Sequence[str],
    eras: Sequence[str],
    doors: Sequence[str],
    found: Mapping[tuple[str, str, str], list[str]],
) -> str:
    """Make a row for each feature, and a column for each pair of protocol versions. The cells name
    the transports."""
    pairs = [(host, server) for host in eras for server in eras]
    head = ["", *(f"host {_VERSIONS[host]}, server {_VERSIONS[server]}" for host, server in pairs)]
    rows = [head, ["---"] * len(head)]
    for feature in features:
        rows.append([feature, *(_cell(found[feature, *pair], doors) for pair in pairs)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows).replace("|  |", "| |")


def _cell(where: Sequence[str], doors: Sequence[str]) -> str:
    return {len(doors): "all transports", 0: "no"}.get(len(where), ", ".join(where))


if __name__ == "__main__":
    test = str(Path(__file__).with_name("test_table.py"))
    os.environ["WRITE_PROTOCOL_TABLE"] = "1"
    os.execv(sys.executable, [sys.executable, "-m", "pytest", "-q", test])
