"""Reads about held calls: the queue, one request with what is known around it, the history.

Nothing here changes a row. Times are aware datetimes and ``now`` is an argument; durations are
seconds.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.db.models import Count, Max, Min, Prefetch, Q, QuerySet, Subquery
from django.db.models.functions import Substr
from django.utils.timezone import localtime
from django.utils.translation import gettext as _

from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.sample_statistics import find_median
from mcpregistry.models import ApprovalRequest, ApprovalVote, Definition, Invocation, Server, Tool
from mcpregistry.services.approvals import votes, waiters

# The queue shows the beginning of the arguments; calls with longer ones are never grouped as
# identical.
HEAD = 2_000
MOST_SHOWN = 1_000
RISKS = ("high", "medium", "low")
# What became of a request, as people ask for it. Approved: the quorum was met, whatever came after.
ENDS: dict[str, Q] = {
    "waiting": Q(call__state=InvocationState.PENDING, decided_at=None),
    "approved": Q(execute_by__isnull=False),
    "rejected": Q(call__state=InvocationState.REJECTED),
    "expired": Q(call__state=InvocationState.EXPIRED, execute_by__isnull=True),
    "cancelled": Q(call__state=InvocationState.CANCELLED, execute_by__isnull=True),
    "void": Q(call__state=InvocationState.VOID, execute_by__isnull=True),
    "too late": Q(
        execute_by__isnull=False,
        call__state__in=[InvocationState.EXPIRED, InvocationState.VOID, InvocationState.CANCELLED],
    ),
}


@dataclass(frozen=True, slots=True)
class QueueFilter:
    """What a list is narrowed to; empty means everything."""

    server: str = ""
    tool: str = ""
    agent: str = ""
    risk: str = ""
    rule: str = ""
    search: str = ""

    def __bool__(self) -> bool:
        return any(getattr(self, f.name) for f in fields(self))

    def narrow(self, requests: QuerySet[ApprovalRequest]) -> QuerySet[ApprovalRequest]:
        """Only the requests that fit."""
        columns = {
            "server": "call__server_slug",
            "tool": "call__tool_name",
            "agent": "call__agent_slug",
            "risk": "risk",
            "rule": "rule_name",
        }
        exact = {
            column: getattr(self, name) for name, column in columns.items() if getattr(self, name)
        }
        found = requests.filter(**exact)
        return found.filter(_mentions(self.search)) if self.search else found


def _mentions(text: str) -> Q:
    columns = (
        "call__exposed_name",
        "call__tool_name",
        "call__agent_slug",
        "call__arguments",
        "edited",
        "rule_name",
    )
    either = Q(pk=text.lower())
    for column in columns:
        either |= Q(**{f"{column}__icontains": text})
    return either


# The queue


@dataclass(frozen=True, slots=True)
class Choices:
    """What the queue can be narrowed to, from what waits now."""

    server: list[str]
    tool: list[str]
    agent: list[str]
    rule: list[str]


@dataclass(frozen=True, slots=True)
class WaitingCall:
    """One waiting call as the queue needs it: no payload but the beginning of the arguments that
    would run."""

    id: str
    risk: str
    server: str
    tool: str
    agent: str
    definition_hash: str
    rule: str
    rule_fingerprint: str
    quorum: int
    waiting_as: str
    asked_at: datetime
    decide_by: datetime
    asked_head: str
    edited_head: str
    votes: tuple[Vote, ...] = ()


@dataclass(frozen=True, slots=True)
class Vote:
    """One person's word, as the queue shows it."""

    user_id: int | None
    approve: bool
    arguments_hash: str


_COLUMNS = (
    "id",
    "risk",
    "call__server_slug",
    "call__tool_name",
    "call__agent_slug",
    "call__definition_hash",
    "rule_name",
    "rule_fingerprint",
    "quorum",
    "waiting_as",
    "asked_at",
    "decide_by",
    "asked_head",
    "edited_head",
)


def list_queue(wanted: QueueFilter, *, who: User) -> list[WaitingCall]:
    """What waits and this person may see, riskiest first and of these the oldest first; as bare
    rows, for there may be a thousand."""
    heads = {
        "asked_head": Substr("call__arguments", 1, HEAD + 1),
        "edited_head": Substr("edited", 1, HEAD + 1),
    }
    rows = (
        wanted.narrow(ApprovalRequest.objects.visible_to(who).waiting())
        .annotate(**heads)
        .values_list(*_COLUMNS)
    )
    found: list[tuple[Any, ...]] = list(rows.order_by("-risk_rank", "asked_at", "id")[:MOST_SHOWN])
    votes = _open_votes()
    return [WaitingCall(*(*row, tuple(votes.get(row[0], ())))) for row in found]


def _open_votes() -> dict[str, list[Vote]]:
    """The votes on everything that waits, each request's in the order in which they were given."""
    found: dict[str, list[Vote]] = defaultdict(list)
    votes = ApprovalVote.objects.filter(request__in=ApprovalRequest.objects.waiting()).order_by(
        "at", "id"
    )
    columns = ("request_id", "user_id", "approve", "arguments_hash")
    for request_id, user_id, approve, arguments_hash in votes.values_list(*columns):
        found[request_id].append(Vote(user_id, approve, arguments_hash))
    return found


def count_waiting() -> int:
    """How many calls wait, whatever the filters."""
    return ApprovalRequest.objects.waiting().count()


def read_queue_version() -> str:
    """Changes whenever the queue could look different; two small reads of indexes, none of them of
    a call.

    What comes raises the newest time asked, what goes lowers the count, and whoever edits votes.
    """
    asked = (
        ApprovalRequest.objects.filter(decided_at=None)
        .order_by()
        .aggregate(
            count=Count("id", distinct=True),
            newest=Max("asked_at"),
            oldest=Min("asked_at"),
            voted=Max("votes__at"),
        )
    )
    moments = [_moment(at) for at in (asked["newest"], asked["oldest"], asked["voted"])]
    return ".".join([str(asked["count"]), *moments, str(find_last_vote())])


def find_last_vote() -> int:
    """The number of the newest vote, 0 when there is none; see ``list_votes_since``."""
    return ApprovalVote.objects.order_by("-id").values_list("id", flat=True).first() or 0


def _moment(at: datetime | None) -> str:
    return str(int(at.timestamp() * 1_000_000)) if at else "0"


def list_choices(*, who: User) -> Choices:
    """The servers, tools, agents and rules that the queue can be narrowed to, of what this person
    may see."""
    columns = ("call__server_slug", "call__tool_name", "call__agent_slug", "rule_name")
    rows = list(
        ApprovalRequest.objects.visible_to(who)
        .waiting()
        .order_by()
        .values_list(*columns)
        .distinct()[:5_000]
    )
    server, tool, agent, rule = (sorted({row[place] for row in rows}) for place in range(4))
    return Choices(server, tool, agent, rule)


def list_votes_since(vote: int, limit: int = 20) -> list[ApprovalVote]:
    """The newest votes after the one with this number, oldest first: what others have done
    meanwhile."""
    newest = (
        ApprovalVote.objects.filter(id__gt=vote)
        .select_related("request__call", "user")
        .order_by("-id")
    )
    return list(
        newest.defer(
            "request__said", "request__result", "request__call__arguments", "request__call__result"
        )[:limit]
    )[::-1]


def list_identical(request: ApprovalRequest) -> list[ApprovalRequest]:
    """Waiting calls of the same tool, definition, rule and arguments, this one included, oldest
    first."""
    call = request.call
    return list(
        ApprovalRequest.objects.waiting()
        .filter(
            call__server_slug=call.server_slug,
            call__tool_name=call.tool_name,
            call__arguments=call.arguments,
            call__definition_hash=call.definition_hash,
            call__server_revision=call.server_revision,
            edited=request.edited,
            risk=request.risk,
            rule_fingerprint=request.rule_fingerprint,
        )
        .select_related("call", "rule", "group")
        .order_by("asked_at", "id")[:MOST_SHOWN]
    )


# One request


@dataclass(frozen=True, slots=True)
class Around:
    """What is known about one held call: where it would go, and what came before it."""

    server: Server | None
    tool: Tool | None
    definition: Definition | None
    before: ApprovalRequest | None
    siblings: list[ApprovalRequest]
    usual: Usual | None


@dataclass(frozen=True, slots=True)
class Usual:
    """The middle of the latest successful calls of a tool: how long they took, how much they
    answered."""

    calls: int
    milliseconds: float
    result_bytes: int

    @property
    def tokens(self) -> int:
        """What such an answer takes of a model's context, at the usual four bytes a token."""
        return max(1, round(self.result_bytes / 4))


def find_request(pk: str, *, who: User) -> ApprovalRequest | None:
    """The request with its call and votes; None when there is none that this person may see."""
    votes = Prefetch("votes", ApprovalVote.objects.select_related("user").order_by("at", "id"))
    rows = ApprovalRequest.objects.visible_to(who)
    found = rows.select_related("call", "rule", "group").defer("result", "call__result")
    return found.prefetch_related(votes).filter(pk=pk).first()


def load_surroundings(request: ApprovalRequest) -> Around:
    """What a page shows beside the request: server, tool, definition, the last approved call, and
    others that wait."""
    call = request.call
    server = Server.objects.filter(slug=call.server_slug).first()
    named = Tool.offers.of_record(call.server_slug, call.tool_name).select_related(
        "pinned", "latest", "usage"
    )
    tool = named.first() if server else None
    definition = tool.definitions.filter(hash=call.definition_hash).first() if tool else None
    return Around(
        server,
        tool,
        definition,
        find_last_approved(request),
        list_siblings(request),
        describe_usual(call),
    )


def find_last_approved(request: ApprovalRequest) -> ApprovalRequest | None:
    """The newest approved call of the same tool before this one: by this agent, else by any."""
    call = request.call
    others = (
        ApprovalRequest.objects.filter(
            ENDS["approved"], call__server_slug=call.server_slug, call__tool_name=call.tool_name
        )
        .exclude(pk=request.pk)
        .filter(call__received_at__lte=call.received_at)
        .select_related("call")
        .defer("result", "call__result")
        .order_by("-call__received_at")
    )
    return others.filter(call__agent_slug=call.agent_slug).first() or others.first()


def list_siblings(request: ApprovalRequest, limit: int = 5) -> list[ApprovalRequest]:
    """Other waiting calls of the same tool that are by the same agent or have the same
    arguments."""
    call = request.call
    alike = Q(call__agent_slug=call.agent_slug) | Q(call__arguments=call.arguments)
    return list(
        ApprovalRequest.objects.waiting()
        .filter(alike, call__server_slug=call.server_slug, call__tool_name=call.tool_name)
        .exclude(pk=request.pk)
        .select_related("call")
        .defer("result", "said", "call__result", "call__arguments", "edited")
        .annotate(
            head=Substr("call__arguments", 1, HEAD + 1), edited_head=Substr("edited", 1, HEAD + 1)
        )
        .order_by("asked_at", "id")[:limit]
    )


def describe_usual(call: Invocation) -> Usual | None:
    """From up to 50 of the newest 500 calls of the server; None when none of them succeeded with
    this tool."""
    recent = (
        Invocation.objects.filter(server_slug=call.server_slug)
        .order_by("-received_at")
        .values("id")[:500]
    )
    rows = Invocation.objects.filter(
        id__in=Subquery(recent),
        tool_name=call.tool_name,
        state=InvocationState.SUCCEEDED,
        dispatched_at__isnull=False,
    ).values_list("dispatched_at", "finished_at", "result_bytes")[:50]
    took = [(end - sent).total_seconds() * 1000 for sent, end, _ in rows if sent and end]
    middle = find_median(took)
    size = find_median(size for _, _, size in rows)
    return None if middle is None or size is None else Usual(len(took), middle, int(size))


# The history


@dataclass(frozen=True, slots=True)
class HistoryFilter:
    """The history narrowed besides ``QueueFilter``: how it ended, who had a word, and when it was
    asked."""

    end: str = ""
    approver: str = ""
    since: datetime | None = None
    until: datetime | None = None


def query_history(
    wanted: QueueFilter, period: HistoryFilter, *, who: User
) -> QuerySet[ApprovalRequest]:
    """Every request that this person may see, newest first, with votes and without results."""
    found = wanted.narrow(ApprovalRequest.objects.visible_to(who))
    if period.end in ENDS:
        found = found.filter(ENDS[period.end])
    if period.approver:
        found = found.filter(
            pk__in=ApprovalVote.objects.filter(name=period.approver).values("request")
        )
    if period.since:
        found = found.filter(asked_at__gte=period.since)
    if period.until:
        found = found.filter(asked_at__lt=period.until)
    votes = Prefetch("votes", ApprovalVote.objects.order_by("at", "id"))
    return (
        found.select_related("call")
        .defer("result", "said", "call__result")
        .prefetch_related(votes)
        .order_by("-asked_at", "-id")
    )


def page_of(
    requests: QuerySet[ApprovalRequest], *, after: tuple[datetime, str] | None, size: int
) -> tuple[list[ApprovalRequest], bool]:
    """``size`` requests that follow the one asked at that time with that id, and whether more
    follow."""
    if after is not None:
        at, pk = after
        requests = requests.filter(Q(asked_at__lt=at) | Q(asked_at=at, pk__lt=pk))
    found = list(requests[: size + 1])
    return found[:size], len(found) > size


def end_of(request: ApprovalRequest) -> str:
    """One of ``ENDS`` for one request; "too late" for what was approved and then never ran."""
    state = InvocationState(request.call.state)
    if state == InvocationState.PENDING:
        return "waiting"
    if request.execute_by is not None:
        return (
            "too late"
            if state in (InvocationState.EXPIRED, InvocationState.VOID, InvocationState.CANCELLED)
            else "approved"
        )
    return {
        InvocationState.REJECTED: "rejected",
        InvocationState.EXPIRED: "expired",
        InvocationState.CANCELLED: "cancelled",
    }.get(state, "void")


def when_it_runs(request: ApprovalRequest) -> str:
    """Of an approved call: a process runs it for a caller who is there, or a worker does; else it
    waits for its caller."""
    if votes.is_run_by_worker(request) or waiters.has_waiting_caller(request):
        return _("It is running now.")
    if request.execute_by is None:
        return _(
            "It has not run, because its caller disconnected. It runs when the caller makes the same call again."
        )
    text = _(
        "It has not run, because its caller disconnected. It runs if the caller makes the same call again"
        " before %(time)s."
    )
    return text % {"time": f"{localtime(request.execute_by):%H:%M}"}
