"""One held call: its facts from the stored bytes, and the form that decides. A GET never
decides."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from mcpregistry.domain.calls.arguments import list_arguments
from mcpregistry.domain.errors import ArgumentsInvalid, Conflict, Denied, NotFound, SlipsnisseError
from mcpregistry.domain.host_definitions import check_call, repair_definition
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.text.canonical import encode_canonical_json
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import ApprovalRequest
from mcpregistry.queries import approvals as queries
from mcpregistry.services.approvals import refusals, requests, votes
from mcpregistry.web.approvals import call_facts, decisions, form_tokens
from mcpregistry.web.pages import page, person, show


@page("view_approvalrequest", "POST")
def detail(request: HttpRequest, pk: str) -> HttpResponse:
    """The page of one request; POST is the decision."""
    held = _find_request(request, pk)
    return _decide(request, held) if request.method == "POST" else _show_detail(request, held)


def _find_request(request: HttpRequest, pk: str) -> ApprovalRequest:
    held = queries.find_request(pk, who=person(request))
    if held is None:
        raise NotFound(
            "This held call does not exist.",
            remedy="Retention may have deleted it. Go back to the list of held calls.",
        )
    return held


def _show_detail(
    request: HttpRequest,
    held: ApprovalRequest,
    *,
    status: int = 200,
    problem: str = "",
    field: str = "",
) -> HttpResponse:
    """The page; ``problem`` is told at ``field`` ("reason", "arguments", "permit"), or above
    all."""
    around = queries.load_surroundings(held)
    shown = call_facts.arguments(held, around.before, whole=request.GET.get("all") == "1")
    words, url = call_facts.where(around.server)
    context = _status(request, held) | {
        "title": _("%(tool)s on %(server)s")
        % {
            "tool": show_invisible_characters(held.call.tool_name, 80),
            "server": show_invisible_characters(held.call.server_slug),
        },
        "around": around,
        "energy": call_facts.energy(held, around),
        "shown": shown,
        "asked_arguments": _compare_arguments(held),
        "words": words,
        "url": url,
        "warnings": call_facts.warnings(held, around),
        "tool_says": around.definition.data if around.definition else None,
        "said_limit": call_facts.SAID,
        "problem": problem,
        "field": field,
        "form": _form(request, held),
        "token": form_tokens.sign(
            form_tokens.FormRendering(
                {held.pk: requests.hash_current_arguments(held)}, shown.whole
            ),
            person(request),
        ),
        "lasts": decisions.LASTS,
    }
    return show(request, "approvals/detail.html", context, status)


def _status(request: HttpRequest, held: ApprovalRequest) -> dict[str, Any]:
    """What changes while people look: state, votes, who may still decide."""
    pending = held.call.state == InvocationState.PENDING
    now_hash = requests.hash_current_arguments(held)
    return {
        "held": held,
        "call": held.call,
        "pending": pending,
        "now": timezone.now(),
        "version": call_facts.version(held),
        "until": int(held.decide_by.timestamp()),
        "state_words": call_facts.state_words(held),
        "end": queries.end_of(held),
        "agreed": _count_approvals(held),
        "votes": [(vote, vote.arguments_hash != now_hash) for vote in held.votes.all()],
        "why_not": votes.explain_ineligibility(held, person(request)) if pending else "",
        "refused_until": refusals.find_refusal_end(held, timezone.now()),
    }


def _count_approvals(held: ApprovalRequest) -> int:
    now = requests.hash_current_arguments(held)
    return sum(vote.approve and vote.arguments_hash == now for vote in held.votes.all())


def _compare_arguments(held: ApprovalRequest) -> list[Any] | None:
    """How the edited arguments differ from those that the agent asked for; None without an edit."""
    return list_arguments(held.edited, held.call.arguments) if held.edited else None


def _form(request: HttpRequest, held: ApprovalRequest) -> dict[str, Any]:
    """What the form holds: what was typed, after a refusal; else what a fresh one begins with."""
    typed = request.POST
    return {
        "reason": typed.get("reason", ""),
        "arguments": typed.get("arguments") or call_facts.editor(held),
        "permit": typed.get("permit") == "on",
        "lasts": typed.get("lasts", "60"),
        "uses": typed.get("uses", "5"),
    }


# Deciding


def _decide(request: HttpRequest, held: ApprovalRequest) -> HttpResponse:
    try:
        return _cast_vote(request, held)
    except ArgumentsInvalid as error:
        return _show_detail(request, held, status=422, problem=str(error), field="arguments")
    except Conflict as error:
        problem = _("Your decision was not saved. %(reason)s") % {"reason": error}
        return _show_detail(request, _find_request(request, held.pk), status=409, problem=problem)
    except Denied as error:
        return _show_detail(request, held, status=403, problem=str(error))
    except SlipsnisseError as error:
        field = (
            "permit"
            if request.POST.get("permit") == "on" and request.POST.get("do") == "approve"
            else "reason"
        )
        return _show_detail(request, held, status=422, problem=str(error), field=field)


def _cast_vote(request: HttpRequest, held: ApprovalRequest) -> HttpResponse:
    now = timezone.now()
    rendering = form_tokens.read(request.POST.get("token", ""), person(request))
    seen = rendering.seen.get(held.pk)
    if seen is None:
        raise Conflict(
            "This form belongs to another call.",
            remedy="Open the call again, and read it before you decide.",
        )
    if any(
        vote.user_id == request.user.pk and vote.arguments_hash == seen for vote in held.votes.all()
    ):
        raise Conflict(
            "This form was already used, and your vote is counted.",
            remedy="Open the call again to see its state.",
        )
    wish = decisions.read(request.POST, call_facts.effective(held), now)
    if wish.approve and not rendering.whole:
        raise Conflict(
            "You have not seen all of the arguments.", remedy="Press “Show all” before you approve."
        )
    after = votes.vote(
        request_id=held.pk,
        user=person(request),
        approve=wish.approve,
        reason=wish.reason,
        arguments=wish.arguments,
        seen=seen,
        permit=wish.permit,
        via="web",
        now=now,
    )
    messages.success(request, _describe_result(_find_request(request, after.pk), wish))
    return HttpResponseRedirect(reverse("approvals:queue"))


def _describe_result(held: ApprovalRequest, wish: decisions.RequestedVote) -> str:
    name = show_invisible_characters(held.call.tool_name, 80)
    if not wish.approve:
        return _("Rejected %(call)s. The agent receives your reason.") % {"call": name}
    if held.call.state == InvocationState.PENDING:
        values = {"call": name, "given": _count_approvals(held), "required": held.quorum}
        return _("You approved %(call)s. It has %(given)s of %(required)s approvals.") % values
    if wish.arguments is not None:
        return _("Approved %(call)s with your changes.") % {"call": name}
    return _("Approved %(call)s.") % {"call": name}


@page("decide_approval", "POST")
def ask_again(request: HttpRequest, pk: str) -> HttpResponse:
    """POST takes the refusal of this call back; a GET only leads to its page."""
    held = _find_request(request, pk)
    if request.method == "POST":
        try:
            votes.lift_refusal(request_id=held.pk, user=person(request))
        except (Denied, Conflict) as error:
            return _show_detail(
                request, held, status=403 if isinstance(error, Denied) else 409, problem=str(error)
            )
        messages.success(
            request,
            _(
                "The rejection was lifted. If the agent makes this call again, it waits for an approval."
            ),
        )
    return HttpResponseRedirect(reverse("approvals:detail", args=[held.pk]))


# What the page asks for while it is open


@page("view_approvalrequest")
def live(request: HttpRequest, pk: str) -> HttpResponse:
    """The changing part of the page, or 204 when nothing has changed since version ``v``. The page
    polls it."""
    held = _find_request(request, pk)
    if request.GET.get("v") == call_facts.version(held):
        return HttpResponse(status=204)
    known = request.GET.get("v", "").rpartition(".")[2]
    context = _status(request, held) | {
        "changed": known != call_facts.version(held).rpartition(".")[2]
    }
    return render(request, "approvals/status.html", context)


@page("view_approvalrequest", "POST")
def preview(request: HttpRequest, pk: str) -> HttpResponse:
    """What an edit would change, or what is wrong with it. Decides nothing and stores nothing."""
    held = _find_request(request, pk)
    around = queries.load_surroundings(held)
    try:
        value = decisions.read_edited_arguments(request.POST.get("arguments", ""))
        if around.definition is None:
            raise Conflict(
                "The tool's definition no longer exists, so changed arguments cannot be checked.",
                remedy="Reject the call.",
            )
        kind = around.definition.tool.kind
        check_call(kind, repair_definition(kind, around.definition.data).definition, value)
        changes = [
            each
            for each in list_arguments(encode_canonical_json(value), call_facts.effective(held))
            or []
            if each.change != "same"
        ]
        context: dict[str, Any] = {"changes": changes}
    except SlipsnisseError as error:
        context = {"problem": str(error)}
    return render(request, "approvals/preview.html", context)
