"""For the page of a call: the run that it began, and the run that made it."""

from __future__ import annotations

from collections.abc import Iterator

from django.urls import reverse

from mcpregistry.models import Invocation
from mcpregistry.queries.related_calls import Kin
from subagents.models import Run, ToolCall


def find_runs_of_call(call: Invocation) -> Iterator[Kin]:
    """Both ways, each by its index; a call that is neither has none."""
    for run in Run.objects.filter(call_id=call.pk).only("expert_name", "created_at")[:5]:
        yield _kin("Started the run", run)
    for made in ToolCall.objects.filter(invocation=call.pk).select_related("run")[:5]:
        yield _kin("Made by the run", made.run)


def _kin(how: str, run: Run) -> Kin:
    return Kin(
        how, str(run), reverse("admin:subagents_run_change", args=[run.pk]), "subagents.view_run"
    )
