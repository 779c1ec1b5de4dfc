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

from mcpregistry.domain.usage import Tally, merged
from mcpregistry.domain.usage_advice import FEWEST, Advice, advice

Name = tuple[str, ...]
Sums = dict[Name, Tally]


class Kind(StrEnum):
    """What the names of sums consist of (``PARTS``)."""

    SERVERS = "servers"
    CALLERS = "callers"
    TOOLS = "tools"
    BY_ENDPOINT = "tools by endpoint"


# The ones with the fewest rows first: whoever looks for sums takes the first that can tell it.
PARTS = {
    Kind.SERVERS: ("server",),
    Kind.CALLERS: ("agent", "endpoint"),
    Kind.TOOLS: ("server", "tool"),
    Kind.BY_ENDPOINT: ("endpoint", "server", "tool"),
}


class Line(NamedTuple):
    """One name in a period, and in the period before; None: not called. ``advice``: what that
    advises of a tool."""

    name: Name
    now: Tally | None
    before: Tally | None = None
    advice: list[Advice] = []  # never changed: msgspec reads each anew


class Lines(NamedTuple):
    """All names, and their sum."""

    total: Line
    rows: list[Line]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Lines)


def packed(lines: Lines) -> str:
    """As one value for a column of text: thousands of rows of fifty columns are read ten times as
    fast so."""
    return base64.b64encode(zlib.compress(_encoder.encode(lines), 1)).decode()


def unpacked(body: str) -> Lines | None:
    """What ``packed`` has made; None of what another release made otherwise."""
    try:
        return _decoder.decode(zlib.decompress(base64.b64decode(body)))
    except (ValueError, zlib.error, msgspec.MsgspecError):
        return None


def joined(parts: Iterable[Sums]) -> Sums:
    """Sums of times that follow each other as those of the whole. The parts stay as they are."""
    found: Sums = {}
    own = set()
    for part in parts:
        for name, tally in part.items():
            if name not in found:
                found[name] = tally
                continue
            if name not in own:
                found[name] = merged([found[name]])
                own.add(name)
            found[name].add(tally)
    return found


def grouped(sums: Sums, places: tuple[int, ...]) -> Sums:
    """By those parts of the names alone. The sums stay as they are."""
    same: dict[Name, list[Tally]] = {}
    for name, tally in sums.items():
        same.setdefault(tuple(name[place] for place in places), []).append(tally)
    return {
        name: tallies[0] if len(tallies) == 1 else merged(tallies) for name, tallies in same.items()
    }


def lines_of(now: Sums, before: Sums, *, advised: bool = False) -> Lines:
    """Sums of a period beside those of the period before; ``advised``: of tools, with what their
    figures advise."""
    rows = [Line(name, now.get(name), before.get(name)) for name in {**now, **before}]
    if advised:
        beside = took_by_server(now)
        rows = [row._replace(advice=advice_of(row, beside)) for row in rows]
    return Lines(Line((), merged(now.values()), merged(before.values())), rows)


def took_by_server(tools: Sums) -> dict[str, list[int]]:
    """How long calls of all tools of each server took, in buckets."""
    found: dict[str, list[int]] = {}
    for (server, *_), tally in tools.items():
        if server:
            found[server] = (
                list(map(plus, found[server], tally.took)) if server in found else tally.took
            )
    return found


def advice_of(line: Line, beside: dict[str, list[int]]) -> list[Advice]:
    """What the figures of a tool advise; ``beside``: as ``took_by_server`` says. Nothing of one
    with few calls."""
    if line.now is None or line.now.calls < FEWEST or line.name[0] not in beside:
        return []
    others = [whole - own for whole, own in zip(beside[line.name[0]], line.now.took, strict=True)]
    return advice(line.now, before=line.before or Tally(), others=Tally(took=others))
