"""For the page of a call: the run that it began, and the run that made it."""

from __future__ import annotations

from collections.abc import Iterator

from django.urls import reverse

from mcpregistry.models import Invocation
from mcpregistry.queries.kin import Kin
from subagents.models import Run, ToolCall


def runs_of(call: Invocation) -> Iterator[Kin]:
    """Both ways, each by its index; a call that is neither has none."""
    for run in Run.objects.filter(call_id=call.pk).only("pk")[:5]:
        yield _kin("Began the run", run.pk)
    for made in ToolCall.objects.filter(invocation=call.pk).only("run_id")[:5]:
        yield _kin("Made by the run", made.run_id)


def _kin(how: str, run: object) -> Kin:
    return Kin(how, str(run)[:12], reverse("admin:subagents_run_change", args=[run]), "subagents.view_run")
