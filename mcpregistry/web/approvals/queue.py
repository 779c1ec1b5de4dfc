"""The queue of held calls: live, riskiest and oldest first; and identical low-risk calls decided
together.

Live by polling: every two seconds the page asks whether the version it shows still stands, which
costs a few small reads and mostly the answer 204. Server-sent events would pin a thread and a
database connection for every open page, and die silently behind some proxies.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from mcpregistry.domain.errors import Conflict, NotFound, SlipsnisseError
from mcpregistry.domain.policy.risk import RiskLevel
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import ApprovalRequest, ApprovalVote
from mcpregistry.queries import approvals as queries
from mcpregistry.queries.approvals import QueueFilter, Vote, WaitingCall
from mcpregistry.services.approvals import requests, votes
from mcpregistry.services.energy import estimates
from mcpregistry.templatetags.slipsnisse import ago
from mcpregistry.web.approvals import decisions, form_tokens
from mcpregistry.web.pages import page, person, show

_SUMMARY = 220
# of up to ``queries.MOST_SHOWN``, which are there on request: a page is drawn anew with every
# change
FIRST_SHOWN = 200


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One line of the queue, as text that is fit to be seen. ``until`` is in epoch seconds."""

    id: str
    url: str
    risk: str
    tool: str
    server: str
    agent: str
    summary: str
    rule: str
    asked: str
    until: int
    agreed: str
    edited: bool
    away: bool
    mine: str
    alike: int
    energy: float | None


@page("view_approvalrequest")
def queue(request: HttpRequest) -> HttpResponse:
    """The page with the filters and the list."""
    context = _queue(request) | {
        "title": _("Approvals"),
        "choices": asdict(queries.list_choices(who=person(request))),
        "risks": queries.RISKS,
    }
    return show(request, "approvals/queue.html", context)


@page("view_approvalrequest")
def live(request: HttpRequest) -> HttpResponse:
    """The list anew, or 204 when it still is as the caller has it (version ``v``). The page polls
    it."""
    if request.GET.get("v") == queries.read_queue_version():
        return HttpResponse(status=204)
    return render(request, "approvals/queue_list.html", _queue(request) | {"news": _news(request)})


def read_filters(request: HttpRequest) -> QueueFilter:
    """The filters of the address; unknown values simply find nothing."""
    names = ("server", "tool", "agent", "risk", "rule", "search")
    return QueueFilter(
        **{name: request.GET.get(name, "").replace("\x00", "").strip()[:500] for name in names}
    )


def _queue(request: HttpRequest) -> dict[str, Any]:
    version = queries.read_queue_version()
    narrowed = read_filters(request)
    now = timezone.now()
    waiting = queries.list_queue(narrowed, who=person(request))
    total = (
        queries.count_waiting() if narrowed or len(waiting) == queries.MOST_SHOWN else len(waiting)
    )
    shown = waiting if "all" in request.GET else waiting[:FIRST_SHOWN]
    rows, groups = _rows(waiting, shown, person(request).pk)
    return {
        "rows": rows,
        "total": total,
        "wanted": narrowed,
        "now": now,
        "version": version,
        "found": len(waiting),
        "may_decide": request.user.has_perm("mcpregistry.decide_approval"),
        "query": _query(request),
        "word": queries.find_last_vote(),
        "groups": groups,
    }


def _query(request: HttpRequest) -> str:
    kept = request.GET.copy()
    for name in ("v", "word"):
        kept.pop(name, None)
    return kept.urlencode()


def _rows(
    waiting: list[WaitingCall], shown: list[WaitingCall], user_id: int
) -> tuple[list[QueueRow], list[QueueRow]]:
    """Those that are shown, and the first of each set of identical low-risk calls among all that
    wait."""
    likeness = [_likeness(each) for each in waiting]
    counts = Counter(likeness)
    first = dict(zip(reversed(likeness), reversed(waiting), strict=True))
    leading = [each for alike, each in reversed(first.items()) if counts[alike] > 1]
    energy = estimates.estimate_waiting_calls([_make_cost_key(each) for each in [*shown, *leading]])
    rows, groups = (
        [
            _row(each, user_id, counts[_likeness(each)], energy.get(_make_cost_key(each)))
            for each in some
        ]
        for some in (shown, leading)
    )
    return rows, [row for row in groups if row.alike > 1]


def _make_cost_key(each: WaitingCall) -> estimates.Asked:
    return each.agent, each.server, each.tool


def _row(each: WaitingCall, user_id: int, alike: int, energy: float | None) -> QueueRow:
    vote = next((vote for vote in each.votes if vote.user_id == user_id), None)
    mine = ""
    if vote is not None:
        mine = "approved" if vote.approve else "rejected"
    return QueueRow(
        id=each.id,
        url=reverse("approvals:detail", args=[each.id]),
        risk=each.risk,
        tool=show_invisible_characters(each.tool, 80),
        server=show_invisible_characters(each.server),
        agent=show_invisible_characters(each.agent),
        rule=show_invisible_characters(each.rule, 60),
        summary=show_invisible_characters(each.edited_head or each.asked_head, _SUMMARY),
        asked=ago(each.asked_at),
        until=int(each.decide_by.timestamp()),
        agreed=f"{_count_approvals(each.votes)}/{each.quorum}" if each.quorum > 1 else "",
        edited=bool(each.edited_head),
        away=each.waiting_as == ApprovalRequest.Waiting.AWAY,
        mine=mine,
        alike=alike if each.risk == RiskLevel.LOW else 1,
        energy=energy,
    )


def _count_approvals(cast: tuple[Vote, ...]) -> int:
    """Whoever voted last has voted on the arguments as they are now; votes on other ones do not
    count."""
    return sum(vote.approve and vote.arguments_hash == cast[-1].arguments_hash for vote in cast)


def _likeness(each: WaitingCall) -> tuple[str, ...]:
    """Equal for calls that may be decided together; edited and long ones are only equal to
    themselves."""
    alone = (
        each.risk != RiskLevel.LOW or len(each.asked_head) > queries.HEAD or bool(each.edited_head)
    )
    own = each.id if alone else ""
    return each.server, each.tool, each.definition_hash, each.rule_fingerprint, each.asked_head, own


def _news(request: HttpRequest) -> list[str]:
    """What others have decided since the caller last looked, in words."""
    known = request.GET.get("word", "")
    since = int(known) if known.isdecimal() and len(known) < 18 else queries.find_last_vote()
    words = queries.list_votes_since(since)
    return [_word(vote) for vote in words if vote.user_id != person(request).pk]


def _word(vote: ApprovalVote) -> str:
    request = vote.request
    did = _("%(name)s approved %(call)s")
    if not vote.approve:
        did = _("%(name)s rejected %(call)s")
    elif request.edited:
        did = _("%(name)s edited and approved %(call)s")
    return did % {
        "name": show_invisible_characters(vote.name, 60),
        "call": show_invisible_characters(request.call.tool_name, 80),
    }


# Identical low-risk calls


@page("decide_approval", "POST")
def alike(request: HttpRequest, pk: str) -> HttpResponse:
    """Low-risk calls that are the same call but for who asks, decided with one word."""
    first = (
        ApprovalRequest.objects.visible_to(person(request))
        .select_related("call", "rule", "group")
        .filter(pk=pk)
        .first()
    )
    if first is None:
        raise NotFound(
            "This held call does not exist.",
            remedy="Retention may have deleted it. Go back to the list of held calls.",
        )
    _check_only_low(pk)
    return (
        _decide_alike(request, first) if request.method == "POST" else _show_alike(request, first)
    )


def _show_alike(
    request: HttpRequest, first: ApprovalRequest, status: int = 200, problem: str = ""
) -> HttpResponse:
    group = [
        each
        for each in queries.list_identical(first)
        if not votes.explain_ineligibility(each, person(request))
    ]
    seen = {each.pk: requests.hash_current_arguments(each) for each in group}
    context = {
        "title": _("Identical calls"),
        "group": group,
        "first": first,
        "problem": problem,
        "arguments": first.edited or first.call.arguments,
        "reason": request.POST.get("reason", ""),
        "token": form_tokens.sign(form_tokens.FormRendering(seen), person(request)),
    }
    return show(request, "approvals/alike.html", context, status)


def _decide_alike(request: HttpRequest, first: ApprovalRequest) -> HttpResponse:
    """Vote on each request that was shown; what somebody else decided meanwhile is told, not
    repeated."""
    user = person(request)
    try:
        rendering = form_tokens.read(request.POST.get("token", ""), user)
        wish = decisions.read_plain(request.POST)
    except Conflict as error:
        return _show_alike(request, first, 409, str(error))
    except SlipsnisseError as error:
        return _show_alike(request, first, 422, str(error))
    done = 0
    refused = []
    for request_id, seen in rendering.seen.items():
        try:
            _check_only_low(request_id)
            votes.vote(
                request_id=request_id,
                user=user,
                approve=wish.approve,
                reason=wish.reason,
                seen=seen,
                via="web",
            )
            done += 1
        except SlipsnisseError as error:
            refused.append(error.message)
    if wish.approve:
        text = ngettext("Approved %(count)s call.", "Approved %(count)s calls.", done)
    else:
        text = ngettext("Rejected %(count)s call.", "Rejected %(count)s calls.", done)
    messages.success(request, text % {"count": done})
    if refused:
        text = ngettext(
            "%(count)s call was not changed: %(reason)s",
            "%(count)s calls were not changed: %(reason)s",
            len(refused),
        )
        messages.warning(request, text % {"count": len(refused), "reason": refused[0]})
    return HttpResponseRedirect(reverse("approvals:queue"))


def _check_only_low(request_id: str) -> None:
    if not ApprovalRequest.objects.filter(pk=request_id, risk=RiskLevel.LOW).exists():
        raise Conflict(
            "Only low-risk calls can be decided together.", remedy="Open each call separately."
        )
