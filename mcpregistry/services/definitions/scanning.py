"""What a server lists, hashed and scanned before anything is written.

All work on text of a server happens here, outside of any transaction: a transaction that scans
keeps every other write waiting on SQLite. It is done in slices with pauses, so that the other
threads of the process, which serve calls, get their turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mcpregistry.domain.definitions.definition import hash_stored_definition, select_visible_fields
from mcpregistry.domain.definitions.findings import VERSION
from mcpregistry.domain.offer_kinds import KINDS, parse_offer_key, spell_offer_key
from mcpregistry.domain.text.canonical import clean_text, encode_lossy_json
from mcpregistry.models import Definition, Server, Tool

_OTHER_NAMES = 20_000  # to compare new names with
_SLICE = 0.05  # seconds of work until a pause that is as long

Pause = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class ListedDefinition:
    """One definition as it is stored; ``key`` is its name with its kind."""

    key: str
    body: Mapping[str, Any]
    text: str
    hash: str


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The columns of a definition that the scanner fills."""

    scanner: int
    severity: int
    findings_json: str


def read_definitions(
    offered: Mapping[str, Iterable[dict[str, Any]]], instructions: str
) -> dict[str, ListedDefinition]:
    """What a model sees of each listed item, by its name with its kind; of two with one name the
    first."""
    found: dict[str, ListedDefinition] = {}
    for kind, items in offered.items():
        for data in items:
            key = spell_offer_key(kind, clean_text(str(data[KINDS[kind].identity]), 500))
            if key not in found:
                found[key] = make_listed_definition(
                    key, select_visible_fields(data, instructions, kind)
                )
    return found


def make_listed_definition(key: str, body: Mapping[str, Any]) -> ListedDefinition:
    """The definition with this visible part."""
    text = encode_lossy_json(body)
    return ListedDefinition(key, body, text, hash_stored_definition(text, parse_offer_key(key)[0]))


def list_unscanned(server: Server, listed: Iterable[ListedDefinition]) -> list[ListedDefinition]:
    """Those that this version of the scanner has not read yet."""
    rows = Definition.objects.filter(tool__server=server, scanner=VERSION).order_by()
    scanned = set(rows.values_list("tool__kind", "tool__name", "hash"))
    return [each for each in listed if (*parse_offer_key(each.key), each.hash) not in scanned]


def scan_definitions(
    server: Server, definitions: Iterable[ListedDefinition], names: frozenset[str], pause: Pause
) -> dict[str, ScanResult]:
    """What the scanner finds in each, by key. ``names``: all that the server lists. Never call it
    in a transaction."""
    chosen = list(definitions)
    if not chosen:
        return {}
    from mcpregistry.domain.definitions.scanner import (  # 6 MB, seldom needed
        Scanner,
        find_highest_severity,
    )

    scanner = Scanner(own=names, others=_list_names_of_others(server))
    results = {}
    began = time.monotonic()
    for each in chosen:
        findings = scanner.scan(each.body)
        rows = [asdict(finding) for finding in findings]
        results[each.key] = ScanResult(
            VERSION, int(find_highest_severity(findings)), encode_lossy_json(rows)
        )
        if (worked := time.monotonic() - began) >= _SLICE:
            pause(worked)
            began = time.monotonic()
    return results


def _list_names_of_others(server: Server) -> frozenset[str]:
    """Names of the tools of all other servers, as far as there is room."""
    tools = Tool.objects.filter(present=True).exclude(server=server).order_by("id")
    return frozenset(tools.values_list("name", flat=True)[:_OTHER_NAMES])
