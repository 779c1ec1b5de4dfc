"""Definitions to measure the scanner with: poisoned ones of our own writing, honest ones of
official servers.

The held-out halves were written (or set apart by server) before the scanner and are only ever
counted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from mcpregistry.domain.definitions.definition import select_visible_fields
from mcpregistry.domain.definitions.findings import ScanFinding, Severity
from mcpregistry.domain.definitions.scanner import find_highest_severity, scan

Half = Literal["development", "held_out"]
_FOLDER = Path(__file__).parent / "definitions_corpus"


@dataclass(frozen=True)
class Sample:
    """``kind`` of attack, or the server that an honest tool is from; ``own`` names the server's
    tools."""

    kind: str
    definition: dict[str, Any]
    own: frozenset[str]

    def findings(self, others: frozenset[str]) -> list[ScanFinding]:
        return scan(self.definition, own=self.own, others=others - self.own)

    def alarms(self, others: frozenset[str]) -> bool:
        return find_highest_severity(self.findings(others)) >= Severity.ALARM


def honest(half: Half) -> list[Sample]:
    servers = json.loads((_FOLDER / f"honest_{half}.json").read_text())
    return [
        Sample(
            server["source"],
            select_visible_fields(tool, server["instructions"]),
            frozenset(t["name"] for t in server["tools"]),
        )
        for server in servers
        for tool in server["tools"]
    ]


def poisoned(half: Half) -> list[Sample]:
    rows = yaml.safe_load((_FOLDER / f"poisoned_{half}.yaml").read_text())
    return [Sample(row["kind"], _definition(row), frozenset({row["name"]})) for row in rows]


def names() -> frozenset[str]:
    """The tools of a site that uses all the honest servers."""
    return frozenset(
        sample.definition["name"] for half in ("development", "held_out") for sample in honest(half)
    )


def _definition(row: dict[str, Any]) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {"query": {"type": "string", "description": "What to look for."}},
    }
    definition: dict[str, Any] = {
        "name": row["name"],
        "description": row.get("description", ""),
        "inputSchema": schema,
    }
    *path, last = row.get("at", "/description")[1:].split("/")
    node = definition
    for key in path:
        node = node[key]
    node[last] = row["text"]
    return definition
