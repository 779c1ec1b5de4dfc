"""What pages and programs read of expert tools and runs; each in a fixed number of queries."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import (
    Avg,
    Count,
    DateTimeField,
    Exists,
    ExpressionWrapper,
    F,
    FloatField,
    OuterRef,
    Q,
    QuerySet,
    Sum,
)
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast, Substr
from django.utils import timezone

from mcpregistry.domain.budgets import convert_dollars
from mcpregistry.domain.definitions.diff import Segment, compare_words
from mcpregistry.domain.sample_statistics import find_percentile
from mcpregistry.models import ApprovalRequest, Conversation, Invocation
from mcpregistry.queries.attention import UNCLAIMED_AFTER
from mcpregistry.queries.call_tallies import filter_received
from subagents.domain.lifecycle import RunState
from subagents.domain.maintenance import ProposalState
from subagents.leased.leases import filter_unclaimed
from subagents.models import (
    Attempt,
    EffortAgent,
    ExpertTool,
    Proposal,
    Provider,
    Run,
    ToolCall,
    Turn,
)
from subagents.services.offers import SERVER
from subagents.services.runs import CALL

_MOST_COMPARED = 6
# An address of a web page that looks like what it is: ASCII, no user name before the host, no
# backslash in the host.
_WEB_ADDRESS = re.compile(
    r"https?://(?:[a-z0-9.-]+|\[[0-9a-f:.]+\])(?::\d{1,5})?(?:[/?#][!-~]*)?", re.IGNORECASE
)
_START = 400  # characters of a text on the timeline
_MOST_SAMPLES = 2_000  # newest runs that percentiles are taken of
# newest answers; what came after each is searched among all calls of those ten minutes
_MOST_FOLLOWED = 100
_FOLLOWED_FOR = timedelta(minutes=10)

# What runs used and saved


def _saving(name: str) -> Cast:
    return Cast(KeyTextTransform(name, "savings"), FloatField())


def _sums() -> dict[str, Any]:
    """``cost``, ``saved``, ``money``: None where nothing is known. ``definitions``: for each turn
    of the caller."""
    return {
        "runs": Count("id"),
        "done": Count("id", filter=Q(state=RunState.DONE)),
        "failed": Count("id", filter=Q(state=RunState.FAILED)),
        "open": Count("id", filter=Q(finished_at=None)),
        "average_cost": Avg("cost"),  # before the next, which takes the column's name
        "cost": Sum("cost"),
        "tokens": Sum(F("input_tokens") + F("output_tokens")),
        "saved": Sum(_saving("context_saved")),
        "money": Sum(_saving("money_saved")),
        "reread": Avg(_saving("reread_tax")),
        "definitions": Avg(_saving("definitions_saved")),
    }


def _query_recent(days: int) -> Any:
    """Their query set; with sums it holds other rows than runs."""
    return Run.objects.filter(created_at__gte=timezone.now() - timedelta(days=days)).order_by()


def run_totals(*, days: int = 30) -> dict[str, Any]:
    """Figures of all expert tools together over the last days, and ``experts``: the same for each,
    the most used first."""
    experts = (
        _query_recent(days)
        .values("expert_name")
        .annotate(**_sums())
        .order_by("-runs", "expert_name")
    )
    return _query_recent(days).aggregate(**_sums()) | {"days": days, "experts": list(experts[:20])}


def compute_expert_figures(expert: ExpertTool, *, days: int = 30) -> dict[str, Any]:
    """Figures of one tool over the last days: runs, how they ended, what they cost and saved.

    ``versions``: the same for each version. ``saved_middle`` (p50) and ``saved_most`` (p95) are
    tokens of context over answered runs. ``gone_itself`` of ``given`` answers were not enough, see
    ``_count_followed``.
    """
    runs = _query_recent(days).filter(version__expert=expert)
    by_version = list(
        runs.values(number=F("version__number")).annotate(**_sums()).order_by("-number")[:10]
    )
    answered = runs.filter(state=RunState.DONE).order_by("-created_at")
    samples = [
        (number, kept["context_saved"])
        for number, kept in answered.values_list("version__number", "savings")[:_MOST_SAMPLES]
        if "context_saved" in kept
    ]
    for row in by_version:
        row.update(_percentiles(saved for number, saved in samples if number == row["number"]))
    totals = runs.aggregate(**_sums()) | _percentiles(saved for _, saved in samples)
    middle = totals["saved_middle"]
    costs_more = middle is not None and middle < 0
    return (
        totals
        | _count_followed(answered)
        | {"days": days, "versions": by_version, "costs_more": costs_more}
    )


def _count_followed(answered: Any) -> dict[str, int]:
    """Of the newest answers to calls (``given``), after how many the caller soon asked the same
    servers itself.

    The caller is the same agent on the same endpoint with the same host; over stdio it is the same
    process, too.
    """
    ids = (
        answered.filter(parent=None, origin=CALL)
        .exclude(call_id="")
        .values("call_id")[:_MOST_FOLLOWED]
    )
    asked = OuterRef(OuterRef(OuterRef("pk")))
    of_run = ToolCall.objects.filter(run__call_id=asked).exclude(invocation="")
    sent = Invocation.objects.filter(
        pk__in=of_run.values("invocation"), dispatched_at__isnull=False
    )
    used = sent.exclude(server_slug=SERVER).order_by()
    until = ExpressionWrapper(OuterRef("finished_at") + _FOLLOWED_FOR, output_field=DateTimeField())
    same = {name: OuterRef(name) for name in ("agent_slug", "endpoint_slug", "origin", "host_name")}
    direct = Invocation.objects.filter(
        ~Q(origin="stdio") | Q(writer=OuterRef("writer")),
        server_slug__in=used.values("server_slug"),
        received_at__gt=OuterRef("finished_at"),
        received_at__lte=until,
        **same,
    ).order_by()
    calls = Invocation.objects.filter(
        pk__in=list(ids.values_list("call_id", flat=True)), finished_at__isnull=False
    )
    return calls.order_by().aggregate(
        given=Count("pk"), gone_itself=Count("pk", filter=Exists(direct))
    )


def _percentiles(saved: Iterable[int]) -> dict[str, int | None]:
    found = sorted(saved)
    return {"saved_middle": find_percentile(found, 50), "saved_most": find_percentile(found, 95)}


def sum_costs_of_calls(since: datetime, until: datetime | None) -> dict[str, int]:
    """What the runs of calls received in [since, until) cost, by the call, in hundred-millionths of
    a dollar; usage asks.

    A run's cost is that of its own models: an inner run is counted at its own call, and nowhere
    else.
    """
    calls = filter_received(since, until).filter(server_slug=SERVER).values("pk")
    paid = (
        Run.objects.filter(call_id__in=calls, cost__isnull=False)
        .order_by()
        .values("call_id")
        .annotate(sum=Sum("cost"))
    )
    return {row["call_id"]: convert_dollars(row["sum"]) for row in paid}


def list_calls_of_open_runs() -> list[datetime]:
    """When those calls were received whose run has not ended: a call may be over before its run
    is."""
    runs = Run.objects.filter(finished_at=None).exclude(call_id="").order_by().values("call_id")
    return list(
        Invocation.objects.filter(pk__in=runs).order_by().values_list("received_at", flat=True)
    )


# The page of one run


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """One row of a run's timeline: a turn, a failed request, or a tool call. Times of one that is
    out end now."""

    kind: str
    at: datetime
    row: Any
    took_ms: float | None = None  # None: it has not begun
    out: bool = False  # it has begun and not ended
    record: Invocation | None = None
    request: str = ""  # the question to people, where there is one
    after: float = 0.0  # seconds since the run's beginning
    offset: float = 0.0  # of the run's whole time, in percent
    share: float = 0.0
    links: Sequence[ResultLink] = ()


@dataclass(frozen=True, slots=True)
class ResultLink:
    """A resource link in the result of a call. ``address``: where it leads if it is a page of the
    web, else ""."""

    uri: str
    name: str
    mime_type: str

    @property
    def address(self) -> str:
        return self.uri if _WEB_ADDRESS.fullmatch(self.uri) else ""


def list_timeline(run: Run, *, whole: bool = False) -> list[TimelineRow]:
    """Turns, failed requests and tool calls in order of their beginnings; calls not yet made stand
    last.

    ``row.start`` is the beginning of a turn's text and of a call's arguments; with ``whole`` all
    texts are read too.
    """
    now = run.finished_at or timezone.now()
    turns = Turn.objects.filter(run=run).annotate(start=Substr("text", 1, _START))
    asked_for = ToolCall.objects.filter(run=run).annotate(start=Substr("arguments", 1, _START))
    if not whole:
        turns = turns.defer("text", "note")
        asked_for = asked_for.defer("arguments", "result")
    calls = list(asked_for)
    made = [call.invocation for call in calls if call.invocation]
    records = Invocation.objects.defer("arguments", "result").in_bulk(made)
    held = dict(ApprovalRequest.objects.filter(call_id__in=made).values_list("call_id", "pk"))
    lines = [
        *(_line("turn", run, turn, turn.started_at, turn.duration_ms) for turn in turns),
        *(
            _line("attempt", run, each, _began(each), each.duration_ms)
            for each in Attempt.objects.filter(run=run)
        ),
        *(
            _call_line(run, c, records.get(c.invocation), held.get(c.invocation, ""), now)
            for c in calls
        ),
    ]
    return sorted(lines, key=_place)


def _began(attempt: Attempt) -> datetime:
    return attempt.at - timedelta(milliseconds=attempt.duration_ms)


def _call_line(
    run: Run, call: ToolCall, record: Invocation | None, request: str, now: datetime
) -> TimelineRow:
    if call.started_at is None:
        return TimelineRow("call", call.finished_at or now, call)
    took = ((call.finished_at or now) - call.started_at).total_seconds() * 1000
    links = [
        ResultLink(each["uri"], each["name"], each["mimeType"])
        for each in call.details.get("links", ())
    ]
    return _line(
        "call",
        run,
        call,
        call.started_at,
        took,
        out=call.finished_at is None,
        record=record,
        request=request,
        links=links,
    )


def _line(kind: str, run: Run, row: Any, at: datetime, took_ms: float, **more: Any) -> TimelineRow:
    began = run.started_at or run.created_at
    whole = max(((run.finished_at or timezone.now()) - began).total_seconds(), 0.001)
    after = max(0.0, (at - began).total_seconds())
    offset = min(99.0, 100 * after / whole)
    share = min(100 - offset, max(0.4, took_ms / 10 / whole))
    return TimelineRow(
        kind,
        at,
        row,
        took_ms=took_ms,
        after=after,
        offset=round(offset, 2),
        share=round(share, 2),
        **more,
    )


_ORDER = {"turn": 0, "attempt": 1, "call": 2}


def _place(line: TimelineRow) -> tuple[Any, ...]:
    planned = line.kind == "call" and line.row.started_at is None
    index = (line.row.turn_number, line.row.index) if line.kind == "call" else (0, 0)
    return (planned, index if planned else (0, 0), line.at, _ORDER[line.kind], index)


@dataclass(frozen=True, slots=True)
class RunColumn:
    """One of the runs that answered the same question. ``answer``: what differs from the run that
    is looked at."""

    run: Run
    models: str
    turns: int
    calls: int
    seconds: float | None
    answer: Sequence[Segment] = ()


def compare_runs(run: Run) -> list[RunColumn]:
    """This run, the one that it replays, and other replays of that; empty when there are no
    others."""
    family = Q(pk=run.replay_of_id or run.pk) | Q(replay_of=run.replay_of_id or run.pk)
    others = (
        Run.objects.filter(family)
        .exclude(pk=run.pk)
        .select_related("version")
        .order_by("-created_at")
    )
    found = list(others[: _MOST_COMPARED - 1])
    if not found:
        return []
    runs = [run, *found]
    turns: dict[str, list[str]] = {each.pk: [] for each in runs}
    for run_id, name in (
        Turn.objects.filter(run__in=runs).order_by("number").values_list("run_id", "model_name")
    ):
        turns[run_id].append(name)
    made = ToolCall.objects.filter(run__in=runs).order_by().values("run_id").annotate(n=Count("pk"))
    calls = dict(made.values_list("run_id", "n"))
    return [
        RunColumn(
            run=each,
            models=", ".join(dict.fromkeys(turns[each.pk])),
            turns=len(turns[each.pk]),
            calls=calls.get(each.pk, 0),
            seconds=_seconds(each),
            answer=_differs(run, each),
        )
        for each in runs
    ]


def _seconds(run: Run) -> float | None:
    return None if run.finished_at is None else (run.finished_at - run.created_at).total_seconds()


def _differs(run: Run, other: Run) -> Sequence[Segment]:
    """``-``: only in the answer that is looked at, ``+``: only in the other."""
    if run.pk == other.pk or not other.answer:
        return ()
    return tuple(compare_words(run.answer, other.answer))


# What waits for people


def query_waiting_proposals() -> QuerySet[Proposal]:
    """Changes that the sub-agent proposes and nobody has decided on."""
    return Proposal.objects.filter(state=ProposalState.WAITING)


def query_silent_agents() -> QuerySet[EffortAgent]:
    """Return the hosted agents that do not answer, because the conversation they are set to has
    ended."""
    open_ones = Conversation.objects.open().values("pk")
    return EffortAgent.objects.filter(enabled=True).exclude(focus="").exclude(focus__in=open_ones)


def list_unclaimed_expert_work(now: datetime) -> dict[str, QuerySet[Any]]:
    """Return the work that no worker has taken for ``UNCLAIMED_AFTER``, by model.

    ``subagents.maintenance.queue.find_unclaimed_requests`` returns the requests to the sub-agent.
    """
    before = now - UNCLAIMED_AFTER
    tested = Q(tested_at__gte=F("test_asked_at"))
    return {
        "run": filter_unclaimed(Run.objects.open().filter(created_at__lt=before), before),
        "effortagent": filter_unclaimed(EffortAgent.objects.filter(enabled=True), before),
        "provider": Provider.objects.filter(~tested, test_asked_at__lt=before),
    }


def count_draft_providers() -> int:
    """The number of enabled providers to which nothing is sent until somebody confirms where their
    key goes."""
    return sum(
        provider.draft_problem() is not None for provider in Provider.objects.filter(enabled=True)
    )


def query_runs_for_people() -> QuerySet[Run]:
    """Runs that stand still until a person has decided or settled something."""
    return Run.objects.open().filter(waiting_since__isnull=False)
