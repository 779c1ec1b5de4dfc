"""Sums of usage that are worked out ahead: which there are, and how such sums are written as one
value and read again."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable
from enum import StrEnum
from operator import add as plus
from typing import NamedTuple

import msgspec

from mcpregistry.domain.usage import UsageTally, merge_tallies
from mcpregistry.domain.usage_advice import FEWEST, Advice, advise_on_usage

Name = tuple[str, ...]
Sums = dict[Name, UsageTally]


class UsageKind(StrEnum):
    """What the names of sums consist of (``PARTS``)."""

    SERVERS = "servers"
    CALLERS = "callers"
    TOOLS = "tools"
    BY_ENDPOINT = "tools by endpoint"


# The ones with the fewest rows first: whoever looks for sums takes the first that can tell it.
PARTS = {
    UsageKind.SERVERS: ("server",),
    UsageKind.CALLERS: ("agent", "endpoint"),
    UsageKind.TOOLS: ("server", "tool"),
    UsageKind.BY_ENDPOINT: ("endpoint", "server", "tool"),
}


class UsageLine(NamedTuple):
    """One name in a period, and in the period before; None: not called. ``advice``: what that
    advises of a tool."""

    name: Name
    now: UsageTally | None
    before: UsageTally | None = None
    advice: list[Advice] = []  # never changed: msgspec reads each anew


class UsageLines(NamedTuple):
    """All names, and their sum."""

    total: UsageLine
    rows: list[UsageLine]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(UsageLines)


def pack_lines(lines: UsageLines) -> str:
    """As one value for a column of text: thousands of rows of fifty columns are read ten times as
    fast so."""
    return base64.b64encode(zlib.compress(_encoder.encode(lines), 1)).decode()


def unpack_lines(body: str) -> UsageLines | None:
    """What ``pack_lines`` has made; None of what another release made otherwise."""
    try:
        return _decoder.decode(zlib.decompress(base64.b64decode(body)))
    except (ValueError, zlib.error, msgspec.MsgspecError):
        return None


def join_sums(parts: Iterable[Sums]) -> Sums:
    """Sums of times that follow each other as those of the whole. The parts stay as they are."""
    found: Sums = {}
    own = set()
    for part in parts:
        for name, tally in part.items():
            if name not in found:
                found[name] = tally
                continue
            if name not in own:
                found[name] = merge_tallies([found[name]])
                own.add(name)
            found[name].add(tally)
    return found


def group_sums(sums: Sums, places: tuple[int, ...]) -> Sums:
    """By those parts of the names alone. The sums stay as they are."""
    same: dict[Name, list[UsageTally]] = {}
    for name, tally in sums.items():
        same.setdefault(tuple(name[place] for place in places), []).append(tally)
    return {
        name: tallies[0] if len(tallies) == 1 else merge_tallies(tallies)
        for name, tallies in same.items()
    }


def build_lines(now: Sums, before: Sums, *, advised: bool = False) -> UsageLines:
    """Sums of a period beside those of the period before; ``advised``: of tools, with what their
    figures advise."""
    rows = [UsageLine(name, now.get(name), before.get(name)) for name in {**now, **before}]
    if advised:
        beside = collect_durations_by_server(now)
        rows = [row._replace(advice=advise_on_line(row, beside)) for row in rows]
    return UsageLines(
        UsageLine((), merge_tallies(now.values()), merge_tallies(before.values())), rows
    )


def collect_durations_by_server(tools: Sums) -> dict[str, list[int]]:
    """How long calls of all tools of each server took, in buckets."""
    found: dict[str, list[int]] = {}
    for (server, *_), tally in tools.items():
        if server:
            found[server] = (
                list(map(plus, found[server], tally.took)) if server in found else tally.took
            )
    return found


def advise_on_line(line: UsageLine, beside: dict[str, list[int]]) -> list[Advice]:
    """What the figures of a tool advise; ``beside``: as ``collect_durations_by_server`` says.
    Nothing of one with few calls."""
    if line.now is None or line.now.calls < FEWEST or line.name[0] not in beside:
        return []
    others = [whole - own for whole, own in zip(beside[line.name[0]], line.now.took, strict=True)]
    return advise_on_usage(
        line.now, before=line.before or UsageTally(), others=UsageTally(took=others)
    )
