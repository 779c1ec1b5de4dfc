"""The inbox of definitions: what servers say that is not what was approved, and the decision about
it.

A definition never changes, so the id in a form names exactly what was shown; if the server says
something else by now, the decision is refused. Deciding is POST only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from mcpregistry.domain.definitions.definition import INSTRUCTIONS, strip_instructions
from mcpregistry.domain.definitions.diff import Rewording, list_rewordings
from mcpregistry.domain.definitions.findings import ScanFinding, Severity
from mcpregistry.domain.errors import ConfigInvalid, Conflict, NotFound, SlipsnisseError
from mcpregistry.domain.host_definitions import MemberChange, compare_members
from mcpregistry.domain.text.canonical import hash_parts
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Definition, Server, Tool
from mcpregistry.queries import attention, consequences
from mcpregistry.queries import definitions as queries
from mcpregistry.queries.definitions import InboxFilter, WaitingTally
from mcpregistry.services.definitions import behaviour, decisions
from mcpregistry.services.servers import checks
from mcpregistry.web.pages import page, person, show

_PER_PAGE = 25


@dataclass(frozen=True, slots=True)
class InboxEntry:
    """One tool of the inbox, with what is needed to decide. ``data`` is the whole text of a new
    one.

    ``repairs``: what hosts get in another form than the server's.
    """

    tool: Tool
    definition: Definition | None
    status: str
    changes: list[Rewording]
    data: dict[str, Any]
    repairs: list[MemberChange]
    findings: list[ScanFinding]
    claims: dict[str, Any]
    revertible: bool
    seen: str

    @property
    def severity(self) -> Severity:
        """The severity of the worst finding."""
        return max((finding.severity for finding in self.findings), default=Severity.CLEAN)


@dataclass(frozen=True, slots=True)
class ServerGroup:
    """One server's entries. What its instructions say concerns each of its tools, so it is shown
    once."""

    server: Server
    entries: list[InboxEntry]
    tally: WaitingTally | None
    instructions: str = ""
    rewording: Rewording | None = None
    findings: list[ScanFinding] = field(default_factory=list)


@page("view_definition")
def inbox(request: HttpRequest) -> HttpResponse:
    """Tools whose newest definition is not the approved one, by server."""
    wanted = _read_filters(request)
    shown = Paginator(queries.inbox(wanted), _PER_PAGE).get_page(request.GET.get("page"))
    kept = request.GET.copy()
    kept.pop("page", None)
    context = {
        "title": _("Definitions"),
        "wanted": wanted,
        "page": shown,
        "groups": _groups([*shown.object_list]),
        "counts": queries.counts(),
        "servers": queries.servers_with_drift(),
        "severities": [*queries.SEVERITIES],
        "show": wanted.show or "waiting",
        "query": kept.urlencode(),
        "here": request.get_full_path(),
        "incomplete": [] if wanted or shown.number > 1 else attention.list_incomplete_servers(),
        "may_decide": request.user.has_perm("mcpregistry.approve_definition"),
    }
    return show(request, "definitions/inbox.html", context)


def _read_filters(request: HttpRequest) -> InboxFilter:
    names = ("show", "server", "severity", "search")
    return InboxFilter(
        **{name: request.GET.get(name, "").replace("\x00", "").strip()[:300] for name in names}
    )


def _groups(tools: list[Tool]) -> list[ServerGroup]:
    tallies = queries.tallies({tool.server_id for tool in tools})
    groups = [(server, [*rows]) for server, rows in groupby(tools, key=lambda tool: tool.server)]
    return [
        _group(server, [_entry(tool) for tool in rows], tallies.get(server.pk))
        for server, rows in groups
    ]


def _group(server: Server, entries: list[InboxEntry], tally: WaitingTally | None) -> ServerGroup:
    """Lift what all entries say of the server's instructions to the server."""
    told = next(
        (
            e
            for e in entries
            if e.tool.present and e.definition and INSTRUCTIONS in e.definition.data
        ),
        None,
    )
    if told is None:
        return ServerGroup(server, entries, tally)
    changes = (change for entry in entries for change in entry.changes)
    reworded = (change for change in changes if change.field == INSTRUCTIONS)
    findings = [finding for finding in told.findings if _of_instructions(finding)]
    said = str(told.definition.data[INSTRUCTIONS]) if told.definition else ""
    return ServerGroup(
        server, [_own(entry) for entry in entries], tally, said, next(reworded, None), findings
    )


def _own(entry: InboxEntry) -> InboxEntry:
    """Without what is shown with the server."""
    return replace(
        entry,
        changes=[change for change in entry.changes if change.field != INSTRUCTIONS],
        data={key: value for key, value in entry.data.items() if key != INSTRUCTIONS},
        findings=[finding for finding in entry.findings if not _of_instructions(finding)],
    )


def _of_instructions(finding: ScanFinding) -> bool:
    return finding.where == f"/{INSTRUCTIONS}"


def _entry(tool: Tool) -> InboxEntry:
    old = tool.pinned
    new = tool.latest
    compared = old is not None and new is not None and old.pk != new.pk
    data = new.data if new else {}
    return InboxEntry(
        tool=tool,
        definition=new,
        status="new" if tool.status == "quarantined" else tool.status,
        changes=list_rewordings(old.data, data) if old and compared else [],
        data={} if compared else data,
        repairs=compare_members(tool.kind, strip_instructions(data)) if new else [],
        findings=new.findings if new else [],
        claims=_claims(data),
        revertible=compared,
        seen=behaviour.fingerprint_behaviour(tool),
    )


def _claims(data: dict[str, Any]) -> dict[str, Any]:
    """What the server says the tool does (its annotations); nobody has checked it."""
    said = data.get("annotations")
    return {
        hint: said[hint]
        for hint in behaviour.HINTS.values()
        if isinstance(said, dict) and hint in said
    }


# Decisions


@page("approve_definition", "POST")
def decide(request: HttpRequest, pk: int, verdict: str) -> HttpResponse:
    """``verdict``: approve, reject or revert. A GET leads to the inbox: links decide nothing."""
    if request.method != "POST":
        return HttpResponseRedirect(reverse("definitions:inbox"))
    try:
        _tell(request, _VERDICTS[verdict](request, _find_newest(pk)))
    except SlipsnisseError as error:
        messages.error(request, show_invisible_characters(str(error), 1_000))
    return _back(request)


@page("approve_definition", "POST")
def approve_clean(request: HttpRequest, slug: str) -> HttpResponse:
    """Approve everything of one server that waited when the page was shown and gave no alarm.

    ``up_to`` is the newest definition's id that the page showed, so that later ones are not
    approved unseen.
    """
    if request.method != "POST":
        return HttpResponseRedirect(reverse("definitions:inbox"))
    server = Server.objects.filter(slug=slug).first()
    up_to = request.POST.get("up_to", "")
    if server is None or not up_to.isdecimal() or len(up_to) > 18:
        raise NotFound("This server does not exist.", remedy="Go back to the list of definitions.")
    sentences = consequences.approving_clean(
        server, decisions.select_clean_tools(server, int(up_to)).count()
    )
    sure = hash_parts("sure", *sentences)
    said = request.POST.get("sure", "")
    if said != sure:
        kept = [("up_to", up_to), ("back", request.POST.get("back", "")), ("sure", sure)]
        title = _("Approve definitions of %(server)s") % {"server": server.slug}
        asked = {
            "title": title,
            "label": _("Approve definitions"),
            "sentences": sentences,
            "kept": kept,
            "changed": bool(said),
            "back": reverse("definitions:inbox"),
            "sure": sure,
        }
        return show(request, "definitions/ask.html", asked, status=409 if said else 200)
    count = decisions.approve_clean(
        server=server, up_to=int(up_to), actor=actor(request), user=person(request)
    )
    text = ngettext(
        "Approved %(count)s definition of %(server)s.",
        "Approved %(count)s definitions of %(server)s.",
        count,
    )
    _tell(request, text % {"count": count, "server": server.slug})
    return _back(request)


def _find_newest(pk: int) -> Definition:
    definition = Definition.objects.select_related("tool__server").filter(pk=pk).first()
    if definition is None:
        raise NotFound(
            "This definition does not exist.", remedy="Go back to the list of definitions."
        )
    if definition.tool.latest_id != pk:
        raise Conflict(
            "The server has changed the definition since you opened this page.",
            remedy="Read the new definition, then decide.",
        )
    return definition


@transaction.atomic
def _approve(request: HttpRequest, definition: Definition) -> str:
    confirms = request.POST.get("confirm") == "on"
    if confirms:
        behaviour.lock_as_shown(definition.tool, request.POST.get("seen", ""))
    tool = decisions.approve(definition=definition, actor=actor(request), user=person(request))
    if confirms:
        # the server has returned to a text that was approved before
        if tool.pinned_id != definition.pk:
            raise Conflict(
                "The server has changed the definition since you opened this page.",
                remedy="Read the new definition, then decide.",
            )
        behaviour.confirm_claims(tool=tool, actor=actor(request))
    text = _(
        "Approved %(name)s. Agents can use it as long as its server offers exactly this definition."
    )
    return text % {"name": _name(definition)}


def _reject(request: HttpRequest, definition: Definition) -> str:
    decisions.reject(definition=definition, actor=actor(request), user=person(request))
    return _("Rejected %(name)s. This definition is never offered to agents.") % {
        "name": _name(definition)
    }


def _revert(request: HttpRequest, definition: Definition) -> str:
    decisions.revert(definition=definition, actor=actor(request), user=person(request))
    try:
        asked = checks.request_refresh(server=definition.tool.server, actor=actor(request))
    except (Conflict, ConfigInvalid):  # the server is switched off: it is read when it comes back
        asked = False
    text = _(
        "%(name)s keeps its approved definition, and is offered again as soon as the server declares this definition again."
    )
    soon = (
        _("The site is reading the server's definitions now.")
        if asked
        else _("The site checks this the next time it reads the server's definitions.")
    )
    return f"{text % {'name': _name(definition)}} {soon}"


_VERDICTS: dict[str, Callable[[HttpRequest, Definition], str]] = {
    "approve": _approve,
    "reject": _reject,
    "revert": _revert,
}


def actor(request: HttpRequest) -> str:
    """The person as the audit log names them, as in the admin."""
    return f"user:{person(request).get_username()}"


def _name(definition: Definition) -> str:
    return show_invisible_characters(definition.tool.name, 100)


def _tell(request: HttpRequest, text: str) -> None:
    messages.success(request, text)


def _back(request: HttpRequest) -> HttpResponse:
    """To the list as it was narrowed, if the form says where it was."""
    where = request.POST.get("back", "")
    ours = url_has_allowed_host_and_scheme(where, allowed_hosts=None) and where.startswith(
        "/definitions/"
    )
    return HttpResponseRedirect(where if ours else reverse("definitions:inbox"))
