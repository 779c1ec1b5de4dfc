"""Runs: the list, and the page of one run with its timeline; looked at, steered, never edited."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from unfold.decorators import display

from mcpregistry.admin.base import ReadOnlyAdmin, Verb, actor
from mcpregistry.domain.reveal import reveal
from mcpregistry.templatetags.slipsnisse import milliseconds
from subagents.domain.lifecycle import CallState, RunState
from subagents.models import Run, ToolCall
from subagents.queries import timeline
from subagents.runs.answers import doing
from subagents.services import runs

STATE_COLOURS = {
    RunState.DONE.value: "success",
    RunState.FAILED.value: "danger",
    RunState.CANCELLED.value: "warning",
    RunState.WAITING.value: "warning",
    RunState.RUNNING.value: "info",
    RunState.QUEUED.value: "info",
}
CALL_COLOURS = {
    CallState.DONE.value: "success",
    CallState.FAILED.value: "danger",
    CallState.UNKNOWN.value: "danger",
    CallState.REFUSED.value: "warning",
    CallState.WAITING.value: "warning",
}


def _cancel(request: HttpRequest, run: Run) -> str:
    runs.cancel(run_id=run.pk, actor=actor(request))
    return "The run stops within a second; what is out at a server is cancelled there."


def _wake(request: HttpRequest, run: Run) -> str:
    runs.resume(run_id=run.pk, actor=actor(request))
    return "A worker looks at the run now."


def _again(request: HttpRequest, run: Run) -> str:
    new = runs.replay(run_id=run.pk, actor=actor(request))
    return f"Started again as {new.pk[:8]} with version {new.version.number} of the expert tool."


def _settler(as_what: str) -> Any:
    def settle(request: HttpRequest, run: Run) -> str:
        call = ToolCall.objects.filter(run=run, state=CallState.UNKNOWN).order_by("turn_number", "index").first()
        if call is None:
            return "No call of this run is unknown."
        runs.settle(call_id=call.pk, as_what=as_what, actor=actor(request))
        return f"{reveal(call.name, 80)}: noted as {as_what}."

    return settle


def _has_unknown(run: Run) -> bool:
    return run.finished_at is None and run.calls.filter(state=CallState.UNKNOWN).exists()


@admin.register(Run)
class RunAdmin(ReadOnlyAdmin):
    list_display = (
        "shown_name",
        "shown_state",
        "exit",
        "caller",
        "tokens",
        "shown_cost",
        "saved",
        "took",
        "created_at",
    )
    list_filter = ("state", "exit", "origin", "expert_name")
    search_fields = ("=id", "expert_name", "caller", "=call_id")
    search_help_text = "Run id, expert tool, agent or call id"
    sortable_by = ("created_at",)
    fields = ("origin", "call_id", "depth", "worker", "fence", "wake_at")
    change_form_outer_before_template = "admin/subagents/run.html"
    verbs = (
        Verb("cancel", "Cancel", "subagents.run_expert", "cancel", "Stop it, down to the call that is out.", _cancel,
             applies=lambda run: run.finished_at is None, style="danger"),
        Verb("resume", "Wake", "subagents.steer_run", "play_arrow", "Let a worker look at it now.", _wake,
             applies=lambda run: run.finished_at is None),
        Verb("replay", "Run again", "subagents.run_expert", "replay",
             "The same question to the newest version, to compare cost and answer.", _again,
             applies=lambda run: run.finished_at is not None),
        Verb("done", "It took effect", "subagents.steer_run", "check", "Of the oldest unknown call.", _settler("done"),
             applies=_has_unknown),
        Verb("failed", "It had no effect", "subagents.steer_run", "close", "Of the oldest unknown call.",
             _settler("failed"), applies=_has_unknown),
        Verb("repeat", "Make it again", "subagents.steer_run", "redo", "The oldest unknown call, once more.",
             _settler("repeat"), applies=_has_unknown),
    )  # fmt: skip

    @display(description="expert tool")
    def shown_name(self, run: Run) -> str:
        return f"{reveal(run.expert_name)} {run.pk[:8]}"

    @display(description="state", label=STATE_COLOURS)
    def shown_state(self, run: Run) -> str:
        return run.state

    @display(description="tokens")
    def tokens(self, run: Run) -> str:
        return f"{run.input_tokens + run.output_tokens:,}"

    @display(description="cost")
    def shown_cost(self, run: Run) -> str:
        return "unknown" if run.cost is None else f"${run.cost:.4f}"

    @display(description="context saved")
    def saved(self, run: Run) -> str:
        value = run.savings.get("context_saved")
        return "" if value is None else f"{value:,}"

    @display(description="took")
    def took(self, run: Run) -> str:
        if run.finished_at is None:
            return doing(run)
        return milliseconds((run.finished_at - run.created_at).total_seconds() * 1000)

    def overview(self, request: HttpRequest, row: Run) -> dict[str, Any]:
        return run_context(row, raw=request.GET.get("raw") == "1") | {
            "live_url": reverse("admin:subagents_run_live", args=[row.pk])
        }

    def get_urls(self) -> list[URLPattern]:
        live = self.admin_site.admin_view(self.live_view)
        return [path("<path:object_id>/live/", live, name="subagents_run_live"), *super().get_urls()]

    def live_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """The timeline alone, for the page to look again; 286 tells htmx to stop when the run has ended."""
        row = self.get_object(request, object_id)
        if row is None or not self.has_view_permission(request, row):
            return HttpResponse(status=404)
        answer = TemplateResponse(request, "admin/subagents/timeline.html", run_context(row))
        answer.status_code = 286 if row.finished_at else 200
        return answer


def run_context(run: Run, *, raw: bool = False) -> dict[str, Any]:
    return {
        "run": run,
        "raw": raw,
        "lines": timeline(run),
        "state_colour": STATE_COLOURS.get(run.state, ""),
        "call_colours": CALL_COLOURS,
        "doing": "" if run.finished_at else doing(run),
        "tokens": run.input_tokens + run.output_tokens,
        "seconds": ((run.finished_at or run.created_at) - run.created_at).total_seconds(),
    }
