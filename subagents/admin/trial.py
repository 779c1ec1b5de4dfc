"""The report of a trial: its verdict first, then why, beside the trial before, and what one click would do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

from django.contrib import admin
from django.contrib.auth.models import User
from django.http import HttpRequest
from unfold.decorators import display

from mcpregistry.admin.base import ReadOnlyAdmin, Verb, actor
from mcpregistry.domain.text.display import printable
from mcpregistry.templatetags.slipsnisse import milliseconds
from subagents.domain.maintenance import ProposalState
from subagents.maintenance import proposals
from subagents.models import Proposal, TrialReport

COLOURS = {"ok": "success", "attention": "warning", "refuse": "danger"}
RULES = {"allow": "serve, and run at once", "ask": "serve, and ask a person", "hide": "hide"}
_SHOWN = 200  # tools on the page


def proposal_of(row: TrialReport) -> Proposal | None:
    """What this trial has led to; none where it proposes nothing."""
    return Proposal.objects.filter(request=row.request_id).select_related("server").first() if row.request_id else None


def waits(row: TrialReport) -> bool:
    """For verbs that decide on its proposal."""
    found = proposal_of(row)
    return found is not None and found.state == ProposalState.WAITING


def _ready(row: TrialReport) -> bool:
    found = proposal_of(row)
    return found is not None and found.state == ProposalState.WAITING and found.fits(found.server)


def _apply(request: HttpRequest, row: TrialReport) -> str:
    found = proposal_of(row)
    if found is None:
        return "It proposes nothing."
    proposals.apply(proposal_id=found.pk, user=cast(User, request.user), actor=actor(request))
    return "Done, as your own change. If it made the launch wider, the server is a draft until somebody confirms it."


def _decline(request: HttpRequest, row: TrialReport) -> str:
    found = proposal_of(row)
    if found is None:
        return "It proposes nothing."
    proposals.decline(proposal_id=found.pk, actor=actor(request))
    return "Declined: everything stays as it is."


@admin.register(TrialReport)
class TrialReportAdmin(ReadOnlyAdmin):
    """Reports of trials, newest first."""

    list_display = ("shown", "shown_verdict", "shown_tools", "shown_differences", "version_shown", "created_at")
    list_filter = ("verdict", "behaves_otherwise")
    list_select_related = ("server",)
    search_fields = ("server__slug", "version")
    search_help_text = "Server or its version"
    sortable_by = ("created_at",)
    fields = ("server", "server_revision", "created_at")
    change_form_outer_before_template = "admin/subagents/trial.html"
    verbs = (
        Verb("apply", "Apply", "subagents.decide_proposal", "check", "Make everything so that is proposed below.", _apply,
             applies=_ready, style="primary"),
        Verb("decline", "Decline", "subagents.decide_proposal", "close", "Leave everything as it is.", _decline, applies=waits),
    )  # fmt: skip

    @display(description="server")
    def shown(self, row: TrialReport) -> str:
        return str(row.server)

    @display(description="verdict", label=COLOURS)
    def shown_verdict(self, row: TrialReport) -> tuple[str, str]:
        return row.verdict, row.get_verdict_display()

    @display(description="tools")
    def shown_tools(self, row: TrialReport) -> str:
        return f"{row.figures.get('tools', 0):,}"

    @display(description="new since the last")
    def shown_differences(self, row: TrialReport) -> str:
        return "behaves otherwise" if row.behaves_otherwise else "other figures" if row.differences else "nothing"

    @display(description="version")
    def version_shown(self, row: TrialReport) -> str:
        return printable(row.version, 60)

    def overview(self, request: HttpRequest, row: TrialReport) -> dict[str, Any]:
        found, rules = proposal_of(row), {each["tool"]: each for each in row.proposed.get("tools", ())}
        before = TrialReport.objects.filter(server=row.server_id, created_at__lt=row.created_at).first()
        tools = [each | {"proposed": _rule(rules.get(each["name"]))} for each in row.tools[:_SHOWN]]
        return {
            "trial": row, "colour": COLOURS[row.verdict], "before": before, "figures": list(_figures(row, before)),
            "tools": tools, "more_tools": max(0, len(row.tools) - _SHOWN), "proposal": found,
            "fields": [(name.replace("_", " "), value) for name, value in row.proposed.get("fields", {}).items()],
            "outdated": found is not None and found.server is not None and not found.fits(found.server),
        }  # fmt: skip


def _rule(row: dict[str, Any] | None) -> tuple[str, str]:
    return (RULES[row["rule"]], row["why"]) if row else ("", "somebody has decided on it")


def _figures(row: TrialReport, before: TrialReport | None) -> Iterator[tuple[str, str, str]]:
    """(what, now, in the trial before) of everything that was measured."""
    for name, words, show in _FIGURES:
        yield words, show(row.figures.get(name)), show(before.figures.get(name)) if before else ""


def _plain(value: Any) -> str:
    return "not observed" if value is None else f"{value:,}" if isinstance(value, int) else str(value) or "not said"


def _names(value: Any) -> str:
    return "not observed" if value is None else printable(", ".join(map(str, value)), 1_500) or "none"


def _network(value: Any) -> str:
    return {True: "yes", False: "no", None: "not known"}[value]


def _calls(value: Any) -> str:
    words = {
        "ok": "answered",
        "error": "answered with an error",
        "failed": "without an answer",
        "skipped": "not called",
    }
    return ", ".join(f"{value[name]} {text}" for name, text in words.items() if value.get(name)) if value else "none"


_FIGURES: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("eras", "Eras of the protocol", _names),
    ("version", "Calls its version", lambda value: printable(str(value or ""), 200) or "not said"),
    ("connect_ms", "Start-up, to its first answer", lambda value: milliseconds(value) if value else "not observed"),
    ("list_ms", "Reading its list", lambda value: milliseconds(value) if value else "not observed"),
    ("tools", "Tools", _plain),
    ("prompts", "Prompts", _plain),
    ("resources", "Resources", _plain),
    ("tokens", "Tokens of its definitions", _plain),
    ("calls", "Tools called", _calls),
    ("slowest_call_ms", "Slowest call", lambda value: milliseconds(value) if value else "none"),
    ("memory_kb", "Memory, at most", lambda value: "not observed" if value is None else f"{value / 1024:,.0f} MB"),
    ("processes", "Processes, at most", _plain),
    ("network_needed", "Needs the network", _network),
    ("written", "Written in its own folder", _names),
    ("elsewhere", "Of the paths that it was given, seen in use", _names),
)
