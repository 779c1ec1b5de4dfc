"""Runs: the list, and the page of one run with its timeline; looked at, steered, never edited."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
)
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display

from mcpregistry.admin.base import ReadOnlyAdmin, Verb, actor
from mcpregistry.admin.live_parts import LiveAdmin, LivePart
from mcpregistry.domain.calls.requester import Requester
from mcpregistry.domain.errors import NotFound, SlipsnisseError
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.templatetags.slipsnisse import dollars, milliseconds
from subagents.domain.lifecycle import CallState, Exit, RunState
from subagents.models import LanguageModel, Run, ToolCall
from subagents.queries import RunColumn, compare_runs, list_timeline
from subagents.runs.run_answers import describe_activity, read_progress
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

STEER = "subagents.steer_run"
_LONGEST_NOTE = 1_000
_SETTLED = {
    "done": _("recorded as done"),
    "failed": _("recorded as having no effect"),
    "repeat": _("will be made again"),
}


def _cancel(request: HttpRequest, run: Run) -> str:
    runs.cancel(run_id=run.pk, actor=actor(request))
    return gettext(
        "The run stops within a second. A call that was sent to a server is cancelled there."
    )


def _wake(request: HttpRequest, run: Run) -> str:
    runs.resume(run_id=run.pk, actor=actor(request))
    return gettext("A worker is resuming the run.")


def _replay_run(request: HttpRequest, run: Run) -> str:
    """POST ``version`` (its number) and ``model`` (its id), both optional."""
    number = request.POST.get("version", "")
    model_id = request.POST.get("model", "")
    model = LanguageModel.objects.filter(pk=_whole(model_id)).first()
    if model_id and model is None:
        raise NotFound("The model no longer exists.", remedy="Choose another model.")
    version = _whole(number) if number else None
    asks = Requester(request.user.pk, request.user.get_username())
    new = runs.replay(
        run_id=run.pk, actor=actor(request), version=version, model=model, requester=asks
    )
    return gettext(
        "A new run has started with version {version}. It is compared with this run below."
    ).format(version=new.version.number)


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 10 else 0


@admin.register(Run)
class RunAdmin(LiveAdmin, ReadOnlyAdmin):
    """Runs, read only: timeline, comparison with replays, and the verbs cancel, wake and ask
    again."""

    list_display = (
        "shown_name",
        "shown_state",
        "caller",
        "tokens",
        "shown_cost",
        "saved",
        "took",
        "created_at",
    )
    list_filter = ("state", "exit", "origin", "expert_name")
    search_fields = ("=id", "expert_name", "caller", "=call_id")
    search_help_text = _("ID of a run or call, or name of an expert tool or agent")
    sortable_by = ("created_at",)
    list_select_related = ("version",)
    fields = (("origin", "caller"), ("endpoint_slug", "call_id"), ("depth", "worker"), "wake_at")
    change_form_outer_before_template = "admin/subagents/run.html"
    verbs = (
        Verb(
            "cancel",
            _("Cancel run"),
            "subagents.run_expert",
            "cancel",
            _("Stop the run and the call that it has sent."),
            _cancel,
            applies=lambda run: run.finished_at is None,
            style="danger",
        ),
        Verb(
            "resume",
            _("Resume run"),
            "subagents.steer_run",
            "play_arrow",
            _("Continue the run now."),
            _wake,
            applies=lambda run: run.finished_at is None,
        ),
        Verb(
            "replay",
            _("Replay run"),
            "subagents.run_expert",
            "replay",
            _("Run it again with the same arguments, to compare cost and answer."),
            _replay_run,
            applies=lambda run: run.finished_at is not None,
        ),
    )

    @display(description=_("expert tool"))
    def shown_name(self, run: Run) -> str:
        return show_invisible_characters(run.expert_name)

    @display(description=_("state"), label=STATE_COLOURS)
    def shown_state(self, run: Run) -> tuple[str, str]:
        ended = run.exit and run.exit not in (Exit.ANSWER, Exit.CANCELLED)
        return run.state, f"{run.state}: {exit_words(run.exit)}" if ended else run.state

    @display(description=_("tokens"))
    def tokens(self, run: Run) -> str:
        return f"{run.input_tokens + run.output_tokens:,}"

    @display(description=_("cost"))
    def shown_cost(self, run: Run) -> str:
        return "unknown" if run.cost is None else dollars(run.cost)

    @display(description=_("saved context"))
    def saved(self, run: Run) -> str:
        value = run.savings.get("context_saved")
        return "-" if value is None else f"{value:,}"

    @display(description=_("duration"))
    def took(self, run: Run) -> str:
        if run.finished_at is None:
            return str(getattr(run, "doing", ""))
        return milliseconds((run.finished_at - run.created_at).total_seconds() * 1000)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Run]:
        return (
            super().get_queryset(request).select_related("version", "replay_of", "asks__provider")
        )

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        page = super().get_changelist_instance(request)
        found = read_progress([run.pk for run in page.result_list if run.finished_at is None])
        for run in page.result_list:
            run.doing = found[run.pk].doing if run.pk in found else ""
        return page

    def overview(self, request: HttpRequest, row: Run) -> dict[str, Any]:
        raw = request.GET.get("raw") == "1"
        again = next(
            (url for verb, url in self.verbs_for(request, row) if verb.name == "replay"), ""
        )
        columns = compare_runs(row)
        return run_context(row, steers=request.user.has_perm(STEER), raw=raw) | {
            "verbs": [
                (verb, url) for verb, url in self.verbs_for(request, row) if verb.name != "replay"
            ],
            "live_url": self.live_url(row),
            "columns": columns,
            "compared_live": self.live_url(row, "compared") if _others_go_on(columns) else "",
            "again_url": again,
            "versions": row.version.expert.versions.defer("body")[:20] if again else (),
            "models": _query_askable_models() if again else (),
        }

    def get_urls(self) -> list[URLPattern]:
        settle = path(
            "<path:object_id>/calls/<int:call_id>/<slug:what>/",
            self.admin_site.admin_view(self.settle_view),
            name="subagents_run_settle",
        )
        return [settle, *super().get_urls()]

    def live_part(self, request: HttpRequest, row: Run, name: str) -> LivePart:
        if name == "compared":
            columns = compare_runs(row)
            return LivePart(
                "admin/subagents/compared_columns.html",
                {"columns": columns},
                _others_go_on(columns),
            )
        context = run_context(row, steers=request.user.has_perm(STEER))
        return LivePart("admin/subagents/timeline.html", context, row.finished_at is None)

    def settle_view(
        self, request: HttpRequest, object_id: str, call_id: int, what: str
    ) -> HttpResponse:
        """Note what became of a call whose outcome is unknown: done, failed, or to be made once
        more.

        POST only; ``note`` is for the model.
        """
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        row = self.get_object(request, object_id)
        call = ToolCall.objects.filter(run=row, pk=call_id).first() if row else None
        if row is None or call is None:
            raise Http404
        if not request.user.has_perm(STEER):
            raise PermissionDenied
        back = reverse("admin:subagents_run_change", args=[row.pk])
        try:
            note = request.POST.get("note", "")[:_LONGEST_NOTE]
            runs.settle(
                call_id=call.pk,
                as_what=what,
                actor=actor(request),
                user_id=request.user.pk,
                note=note,
            )
        except SlipsnisseError as error:
            return self._redirect_with_error(request, error, back)
        self.message_user(
            request,
            f"{show_invisible_characters(call.name, 80)}: {_SETTLED[what]}.",
            messages.SUCCESS,
        )
        return HttpResponseRedirect(back)


def _others_go_on(columns: list[RunColumn]) -> bool:
    return any(column.run.finished_at is None for column in columns[1:])


def _query_askable_models() -> QuerySet[LanguageModel]:
    return LanguageModel.objects.filter(enabled=True, provider__enabled=True).select_related(
        "provider"
    )


def exit_words(exit: str) -> str:
    """The reason of an end as people say it: EXIT-MODEL-ERROR is "model error"."""
    return exit.removeprefix("EXIT-").replace("-", " ").lower()


def run_context(run: Run, *, steers: bool, raw: bool = False) -> dict[str, Any]:
    """The context of the run's page and of its live part.

    ``steers``: whether this person may settle unknown calls; ``raw``: with all texts in full.
    """
    lines = list_timeline(run, whole=raw)
    for line in lines:
        if line.kind == "call":
            line.row.colour = CALL_COLOURS.get(line.row.state, "info")
    unknown = [
        line for line in lines if line.kind == "call" and line.row.state == CallState.UNKNOWN
    ]
    return {
        "run": run,
        "raw": raw,
        "lines": lines,
        "unknown": unknown,
        "settles": steers and run.finished_at is None,
        "last_turn": max((line.row.number for line in lines if line.kind == "turn"), default=0),
        "state_colour": STATE_COLOURS.get(run.state, ""),
        "ended": exit_words(run.exit),
        "doing": "" if run.finished_at else describe_activity(run),
        "seconds": ((run.finished_at or timezone.now()) - run.created_at).total_seconds(),
    }
