"""The access analyzer: what grants allow beyond what was used, and the narrower grants that would
have been enough.

It reads the newest calls of each grant, a bounded number. Where there were more, it looks up in the
counted hours which tools of a server were used. A conclusion from the arguments of the newest calls
is a guess until ``analyse_whole`` has read all calls; only a proven proposal can be applied. It
concludes nothing where retention has deleted some of the period. A proposal is replayed on these
calls by the code that decides about calls (``domain.policy.access``).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q, QuerySet

from mcpregistry.domain.errors import Conflict
from mcpregistry.domain.offer_kinds import PROMPT, READ, TOOL
from mcpregistry.domain.policy.access import may_call
from mcpregistry.domain.policy.narrowing import CommonArguments, Folder
from mcpregistry.domain.snapshot_specs import RUNS, AgentSpec, Grants, GrantSpec, ToolSpec
from mcpregistry.domain.text.canonical import encode_canonical_json, hash_parts
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Grant, Tool
from mcpregistry.queries.calls import find_record_start
from mcpregistry.queries.tools_used import calls_by_tool
from mcpregistry.services.access import grants
from mcpregistry.services.configuration.snapshot import build_grant_spec
from mcpregistry.services.policy.past_calls import (
    PastCalls,
    PastUse,
    Stream,
    get_grant_server,
    select_calls,
)

DAYS = 30
MOST_CALLS = 2_000  # of each grant that are read for a page
MOST_WHOLE = 200_000  # of one grant that are read for a proof
_KEPT = 200  # calls that would have been stopped that are kept as examples
_MOST_TOOLS = 20  # that take the place of a whole server
_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class AnalyzedCalls:
    """How many calls were read, the newest that the grant could be about, of the period since then.
    ``all``: there were no more."""

    calls: int
    since: datetime
    all: bool = True


@dataclass(frozen=True, slots=True)
class _Case:
    """One grant with the calls that it is judged by; they can be iterated over more than once."""

    grant: Grant
    uses: Iterable[PastUse]
    looked: AnalyzedCalls

    @property
    def which(self) -> str:
        """How a sentence begins that is about these calls."""
        return f"In {'all' if self.looked.all else 'the latest'} {self.looked.calls:,} calls"


@dataclass(frozen=True, slots=True)
class GrantProposal:
    """A grant that allows more than was used, and unsaved ones to take its place (none: it is
    withdrawn).

    ``stops``: how many of the calls looked at would not have been allowed; ``stopped``: the first
    of them. ``key`` is of exactly this proposal.
    """

    grant: Grant
    kind: str  # withdraw, tools, pins, uri
    says: str
    after: tuple[Grant, ...]
    pins: dict[str, Any]
    looked: AnalyzedCalls
    stopped: tuple[PastUse, ...] = ()
    stops: int = 0
    unjudged: int = 0

    @property
    def judged(self) -> int:
        """How many calls it was replayed on."""
        return self.looked.calls - self.unjudged

    @property
    def is_guess(self) -> bool:
        """Whether older calls, which were not read, could contradict it."""
        return self.kind in {"pins", "uri"} and not self.looked.all

    @property
    def key(self) -> str:
        facts = [
            (row.tool_id, row.server_id, row.kind, row.uri, row.argument_pins) for row in self.after
        ]
        return hash_parts("narrower", str(self.grant.pk), self.kind, encode_canonical_json(facts))[
            :32
        ]


def select_candidates() -> QuerySet[Grant]:
    """The grants that can be looked at, with what that needs of them."""
    return Grant.objects.select_related("agent", "endpoint", "server", "tool__server")


def analyse(rows: Iterable[Grant], *, days: int, now: datetime) -> list[GrantProposal]:
    """What is proposed of these grants, at most one thing each; a fixed number of reads for
    each."""
    known = find_record_start(now)
    since = now - timedelta(days=days)
    found = (propose(PastCalls(row, since), days=days, now=now, known=known) for row in rows)
    return [each for each in found if each is not None]


def analyse_whole(grant: Grant, *, days: int, now: datetime) -> GrantProposal | None:
    """The same of one grant, where a guess is replaced by what all its calls of the period prove:
    they are read twice, a few thousand in memory at a time. Nothing of more than ``MOST_WHOLE``
    calls."""
    found = next(iter(analyse([grant], days=days, now=now)), None)
    if found is None or not found.is_guess:
        return found
    calls = select_calls(grant, found.looked.since).filter(received_at__lte=now)
    count = calls.count()
    if count > MOST_WHOLE:
        return None
    return _propose_narrower(
        _Case(grant, Stream(grant, calls), AnalyzedCalls(count, found.looked.since))
    )


def propose(past: PastCalls, *, days: int, now: datetime, known: datetime) -> GrantProposal | None:
    """What is proposed of one grant for a period. ``known``: since when the record of calls is
    whole."""
    grant = past.grant
    if grant.expires_at is not None and grant.expires_at <= now:
        return GrantProposal(
            grant, "withdraw", "The grant has expired.", (), {}, AnalyzedCalls(0, now)
        )
    since = now - timedelta(days=days)
    if grant.created_at > since or known > since:
        return None  # too new to tell, or not known any more
    unused = GrantProposal(
        grant,
        "withdraw",
        f"The grant was not used in the last {days} days.",
        (),
        {},
        AnalyzedCalls(0, since),
    )
    # nothing narrower is proposed in the place of everything of a server
    if grant.tool_id is None and not grant.kind:
        return None if past.has_calls_since(since) else unused
    uses = past.load_newest(since, MOST_CALLS + 1)
    if len(uses) > MOST_CALLS:
        busy = _Case(grant, uses[:MOST_CALLS], AnalyzedCalls(MOST_CALLS, since, all=False))
        return (
            _propose_counted_tools(busy, now)
            if grant.tool is None and grant.kind not in READ
            else _propose_narrower(busy)
        )
    return (
        _propose_narrower(_Case(grant, uses, AnalyzedCalls(len(uses), since))) if uses else unused
    )


def _propose_narrower(case: _Case) -> GrantProposal | None:
    grant = case.grant
    if grant.tool is not None:
        return _propose_pins(case) if grant.tool.kind in (TOOL, PROMPT) else None
    if grant.kind in READ:
        return _propose_uri_pattern(case)
    return (
        _propose_tools(case, Counter(use.tool for use in case.uses))
        if grant.kind in (TOOL, PROMPT)
        else None
    )


def _propose_counted_tools(case: _Case, now: datetime) -> GrantProposal | None:
    """Of more calls than are read: which tools were used is known from the counted hours."""
    grant = case.grant
    if grant.server is None or grant.kind not in (TOOL, PROMPT):
        return None
    whose = {"agent": grant.agent.slug} if grant.agent else {"endpoint": str(grant.endpoint)}
    counts = calls_by_tool(case.looked.since, now=now, server=grant.server.slug, **whose)
    return None if counts is None else _propose_tools(case, counts)


def _propose_tools(case: _Case, used: Counter[str]) -> GrantProposal | None:
    """Single tools in place of all of a server: those that were used, and those too new to tell."""
    grant = case.grant
    offered = {
        row.key: row
        for row in Tool.offers.filter(server=grant.server, kind=grant.kind).select_related("server")
    }
    counts = Counter({name: count for name, count in used.items() if name in offered})
    new = {
        name for name, row in offered.items() if row.first_seen_at > case.looked.since
    } - counts.keys()
    kept = counts.keys() | new
    if not counts or len(kept) > _MOST_TOOLS or len(kept) == len(offered):
        return None
    after = tuple(copy_grant(grant, tool=offered[name]) for name in sorted(kept))
    named = ", ".join(
        f"{show_invisible_characters(name, 60)} ({counts[name]})" for name in sorted(counts)
    )
    says = f"{len(counts)} of {len(offered)} {grant.kind}s {'was' if len(counts) == 1 else 'were'} used: {named}."
    says += (
        f" New {grant.kind}s stay granted: {', '.join(show_invisible_characters(name, 60) for name in sorted(new))}."
        if new
        else ""
    )
    return _replay_proposal(case, GrantProposal(grant, "tools", says, after, {}, case.looked))


def _propose_pins(case: _Case) -> GrantProposal | None:
    """Arguments that never differed become pins."""
    grant = case.grant
    alike = CommonArguments()
    for use in case.uses:
        alike.take(use.arguments)
    pins = {name: value for name, value in alike.pins().items() if name not in grant.argument_pins}
    if not pins:
        return None
    after = (copy_grant(grant, tool=grant.tool, argument_pins=grant.argument_pins | pins),)
    said = ", ".join(
        f"{show_invisible_characters(name, 60)} = {show_invisible_characters(encode_canonical_json(value), 80)}"
        for name, value in sorted(pins.items())
    )
    says = f"{case.which}, these arguments had the same values: {said}."
    return _replay_proposal(case, GrantProposal(grant, "pins", says, after, pins, case.looked))


def _propose_uri_pattern(case: _Case) -> GrantProposal | None:
    """A narrower pattern of URIs."""
    grant = case.grant
    folder = Folder()
    for use in case.uses:
        folder.take((use.arguments or {}).get("uri"))
    narrow = folder.narrower(grant.uri)
    if not narrow:
        return None
    below = f"{case.which}, the URI matched {show_invisible_characters(narrow, 200)}"
    says = f"{below}. The grant allows {show_invisible_characters(grant.uri, 200) or 'every URI'}."
    after = (copy_grant(grant, server=grant.server, uri=narrow),)
    return _replay_proposal(case, GrantProposal(grant, "uri", says, after, {}, case.looked))


def copy_grant(grant: Grant, **differs: Any) -> Grant:
    """An unsaved grant for the same holder, with the same pins, end and note, but for what
    differs."""
    same = {
        name: getattr(grant, name)
        for name in ("agent", "endpoint", "kind", "uri", "argument_pins", "expires_at", "note")
    }
    return Grant(**(same | ({"kind": TOOL} if "tool" in differs else {}) | differs))


def _replay_proposal(case: _Case, found: GrantProposal) -> GrantProposal:
    """The proposal with what it would have stopped, the holder's other grants being there as
    today."""
    grant = case.grant
    others = [build_grant_spec(row) for row in _select_other_grants(grant)]
    offers = _load_offers(grant)
    before = _Holder([*others, build_grant_spec(grant)])
    then = _Holder([*others, *map(build_grant_spec, found.after)])
    stopped: list[PastUse] = []
    judged = 0
    stops = 0
    for use in case.uses:
        tool = offers.get(use.tool)
        if use.arguments is None or tool is None:
            continue
        judged += 1
        if before.is_call_allowed(tool, use) and not then.is_call_allowed(tool, use):
            stops += 1
            stopped += [use] if stops <= _KEPT else []
    return replace(
        found, stopped=tuple(stopped), stops=stops, unjudged=max(0, case.looked.calls - judged)
    )


def _select_other_grants(grant: Grant) -> QuerySet[Grant]:
    """The holder's other grants that can be about the same calls: those of the same server. The
    holder may have thousands."""
    server = get_grant_server(grant)
    same = Grant.objects.filter(agent=grant.agent, endpoint=grant.endpoint).exclude(pk=grant.pk)
    return same.filter(Q(server=server) | Q(tool__server=server))


def _load_offers(grant: Grant) -> dict[str, ToolSpec]:
    """What the grant's server offers, as far as grants look at it."""
    server = get_grant_server(grant)
    return {
        row.key: ToolSpec(row.pk, row.server_id, row.name, "", {}, idempotent=False, kind=row.kind)
        for row in Tool.offers.filter(server=server)
    }


class _Holder:
    """Somebody with exactly these grants, asked by what decides about calls."""

    def __init__(self, held: Iterable[GrantSpec]) -> None:
        self._agent = AgentSpec(0, "", frozenset(), None, Grants(held))

    def is_call_allowed(self, tool: ToolSpec, use: PastUse) -> bool:
        """Whether the grants would have allowed the call when it was made."""
        return may_call(self._agent, RUNS, tool, use.arguments or {}, use.at.timestamp())


def apply_grant_proposal(
    *,
    grant: Grant,
    key: str,
    days: int,
    now: datetime,
    actor: str,
    user: User | None,
    pins: Collection[str] | None = None,
) -> int:
    """Put what was proposed in the grant's place, once more worked out; returns how many grants
    there are now instead. ``pins``: which of the proposed ones, all if None. Raises Conflict where
    something else would be proposed by now.

    All calls are read before anything is locked: on SQLite, calls would wait for the lock."""
    read = select_candidates().filter(pk=grant.pk).first()
    found = analyse_whole(read, days=days, now=now) if read else None
    if found is None or found.key != key:
        raise Conflict(
            "This proposal is out of date, because of newer calls or changes.",
            remedy="Analyze this grant again on the page Access analyzer, to get the current proposal.",
        )
    after = _add_pins(found, pins) if found.kind == "pins" and pins is not None else found.after
    with transaction.atomic():
        locked = select_candidates().select_for_update(of=("self",)).filter(pk=grant.pk).first()
        if locked is None or list_column_values(locked) != list_column_values(found.grant):
            raise Conflict(
                "This grant was changed after you opened the proposal.",
                remedy="Open the proposal again on the page Access analyzer.",
            )
        grants.save_all(after, actor=actor, user=user)
        grants.withdraw_grant(grant=found.grant, actor=actor)
    return len(after)


def list_column_values(grant: Grant) -> list[Any]:
    """The values of all columns, to see whether a grant has changed since it was analyzed."""
    return [getattr(grant, column.attname) for column in grant._meta.concrete_fields]


def _add_pins(found: GrantProposal, wanted: Collection[str]) -> tuple[Grant, ...]:
    chosen = {name: value for name, value in found.pins.items() if name in wanted}
    if not chosen:
        raise Conflict("No argument was selected.", remedy="Select at least one argument.")
    (row,) = found.after
    row.argument_pins = found.grant.argument_pins | chosen
    return (row,)


def group_stopped_by_tool(found: GrantProposal) -> list[tuple[str, int, list[PastUse]]]:
    """The first calls that would have been stopped, by tool, the most first, with examples."""
    of: dict[str, list[PastUse]] = defaultdict(list)
    for use in found.stopped:
        of[use.tool].append(use)
    return [
        (tool, len(of[tool]), of[tool][:_EXAMPLES])
        for tool in sorted(of, key=lambda tool: -len(of[tool]))
    ]
