"""The report of a trial: its verdict first, then why, beside the trial before, and what one click
would do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

from django.contrib import admin
from django.contrib.auth.models import User
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display

from mcpregistry.admin.base import ReadOnlyAdmin, Verb, actor
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.templatetags.slipsnisse import milliseconds
from subagents.domain.maintenance import ProposalState
from subagents.maintenance import proposals
from subagents.models import Proposal, TrialReport

COLOURS = {"ok": "success", "attention": "warning", "refuse": "danger"}
RULES = {
    "allow": _("offer, and run without approval"),
    "ask": _("offer, and ask an approver"),
    "hide": _("hide"),
}
_SHOWN = 200  # tools on the page


def find_proposal(row: TrialReport) -> Proposal | None:
    """What this trial has led to; none where it proposes nothing."""
    return (
        Proposal.objects.filter(request=row.request_id).select_related("server").first()
        if row.request_id
        else None
    )


def waits(row: TrialReport) -> bool:
    """For verbs that decide on its proposal."""
    found = find_proposal(row)
    return found is not None and found.state == ProposalState.WAITING


def _ready(row: TrialReport) -> bool:
    found = find_proposal(row)
    return found is not None and found.state == ProposalState.WAITING and found.fits(found.server)


def _apply(request: HttpRequest, row: TrialReport) -> str:
    found = find_proposal(row)
    if found is None:
        return gettext("This trial proposes nothing.")
    proposals.apply(proposal_id=found.pk, user=cast(User, request.user), actor=actor(request))
    return gettext(
        "The proposal is applied as your own change. If it gives the server more access than before, the "
        "server is a draft until a user confirms it."
    )


def _decline(request: HttpRequest, row: TrialReport) -> str:
    found = find_proposal(row)
    if found is None:
        return gettext("This trial proposes nothing.")
    proposals.decline(proposal_id=found.pk, actor=actor(request))
    return gettext("The proposal is declined. Nothing was changed.")


@admin.register(TrialReport)
class TrialReportAdmin(ReadOnlyAdmin):
    """Reports of trials, newest first."""

    list_display = (
        "shown",
        "shown_verdict",
        "shown_tools",
        "shown_differences",
        "version_shown",
        "created_at",
    )
    list_filter = ("verdict", "behaves_otherwise")
    list_select_related = ("server",)
    search_fields = ("server__slug", "version")
    search_help_text = _("Server, or version of the server")
    sortable_by = ("created_at",)
    fields = ("server", "server_revision", "created_at")
    change_form_outer_before_template = "admin/subagents/trial.html"
    verbs = (
        Verb(
            "apply",
            _("Apply proposal"),
            "subagents.decide_proposal",
            "check",
            _("Make all changes that are proposed below."),
            _apply,
            applies=_ready,
            style="primary",
        ),
        Verb(
            "decline",
            _("Decline proposal"),
            "subagents.decide_proposal",
            "close",
            _("Change nothing."),
            _decline,
            applies=waits,
        ),
    )

    @display(description=_("server"))
    def shown(self, row: TrialReport) -> str:
        return str(row.server)

    @display(description=_("verdict"), label=COLOURS)
    def shown_verdict(self, row: TrialReport) -> tuple[str, str]:
        return row.verdict, row.get_verdict_display()

    @display(description=_("tools"))
    def shown_tools(self, row: TrialReport) -> str:
        return f"{row.figures.get('tools', 0):,}"

    @display(description=_("changes"))
    def shown_differences(self, row: TrialReport) -> str:
        if row.behaves_otherwise:
            return gettext("behaves differently")
        return gettext("different measurements") if row.differences else gettext("none")

    @display(description=_("version"))
    def version_shown(self, row: TrialReport) -> str:
        return show_invisible_characters(row.version, 60)

    def overview(self, request: HttpRequest, row: TrialReport) -> dict[str, Any]:
        found = find_proposal(row)
        rules = {each["tool"]: each for each in row.proposed.get("tools", ())}
        before = TrialReport.objects.filter(
            server=row.server_id, created_at__lt=row.created_at
        ).first()
        tools = [each | {"proposed": _rule(rules.get(each["name"]))} for each in row.tools[:_SHOWN]]
        return {
            "trial": row,
            "colour": COLOURS[row.verdict],
            "before": before,
            "figures": list(_list_figures(row, before)),
            "tools": tools,
            "more_tools": max(0, len(row.tools) - _SHOWN),
            "proposal": found,
            "fields": [
                (name.replace("_", " "), value)
                for name, value in row.proposed.get("fields", {}).items()
            ],
            "outdated": found is not None
            and found.server is not None
            and not found.fits(found.server),
        }


def _rule(row: dict[str, Any] | None) -> tuple[str, str]:
    return (
        (str(RULES[row["rule"]]), row["why"])
        if row
        else ("", gettext("a user has already decided"))
    )


def _list_figures(row: TrialReport, before: TrialReport | None) -> Iterator[tuple[str, str, str]]:
    """(what, now, in the trial before) of everything that was measured."""
    for name, words, show in _FIGURES:
        yield (
            str(words),
            show(row.figures.get(name)),
            show(before.figures.get(name)) if before else "",
        )


def _plain(value: Any) -> str:
    if value is None:
        return gettext("not observed")
    return f"{value:,}" if isinstance(value, int) else str(value) or gettext("not reported")


def _names(value: Any) -> str:
    return (
        gettext("not observed")
        if value is None
        else show_invisible_characters(", ".join(map(str, value)), 1_500) or gettext("none")
    )


def _network(value: Any) -> str:
    return {True: gettext("yes"), False: gettext("no"), None: gettext("not known")}[value]


def _calls(value: Any) -> str:
    words = {
        "ok": gettext("answered"),
        "error": gettext("answered with an error"),
        "failed": gettext("without an answer"),
        "skipped": gettext("not called"),
    }
    return (
        ", ".join(f"{value[name]} {text}" for name, text in words.items() if value.get(name))
        if value
        else "none"
    )


_FIGURES: tuple[tuple[str, str | Promise, Callable[[Any], str]], ...] = (
    ("eras", _("Protocol versions"), _names),
    (
        "version",
        _("Reported version"),
        lambda value: show_invisible_characters(str(value or ""), 200) or gettext("not reported"),
    ),
    (
        "connect_ms",
        _("Time to the first answer"),
        lambda value: milliseconds(value) if value else gettext("not observed"),
    ),
    (
        "list_ms",
        _("Time to list the tools"),
        lambda value: milliseconds(value) if value else gettext("not observed"),
    ),
    ("tools", _("Tools"), _plain),
    ("prompts", _("Prompts"), _plain),
    ("resources", _("Resources"), _plain),
    ("tokens", _("Tokens in its definitions"), _plain),
    ("calls", _("Called tools"), _calls),
    (
        "slowest_call_ms",
        _("Slowest call"),
        lambda value: milliseconds(value) if value else gettext("none"),
    ),
    (
        "memory_kb",
        _("Peak memory"),
        lambda value: gettext("not observed") if value is None else f"{value / 1024:,.0f} MB",
    ),
    ("processes", _("Peak number of processes"), _plain),
    ("network_needed", _("Needs the network"), _network),
    ("written", _("Files that the server wrote in its own folder"), _names),
    ("elsewhere", _("Allowed paths that the server used"), _names),
)
