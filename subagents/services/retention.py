"""Retention of runs: their texts go first, then the runs, by the site's own settings."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import Exists, OuterRef

from mcpregistry.models import Configuration
from subagents.domain.maintenance import ProposalState
from subagents.models import (
    CycleLog,
    MaintenanceRequest,
    Run,
    StoredOutput,
    ToolCall,
    TracedRequest,
    TrialReport,
    Turn,
)

_BATCH = 500


def prune(now: datetime) -> dict[str, int]:
    """Erase texts after ``keep_payloads_days`` and runs after ``keep_calls_days``. Returns counts
    of rows."""
    keep = Configuration.load()
    ended = Run.objects.filter(finished_at__isnull=False)
    old = list(
        ended.filter(finished_at__lt=now - timedelta(days=keep.keep_payloads_days))
        .exclude(arguments="{}", answer="")
        .values_list("pk", flat=True)[:_BATCH]
    )
    StoredOutput.objects.filter(run_id__in=old).delete()
    TracedRequest.objects.filter(run_id__in=old).delete()
    ToolCall.objects.filter(run_id__in=old).update(arguments="", result="")
    Turn.objects.filter(run_id__in=old).update(text="", note="")
    Run.objects.filter(pk__in=old).update(arguments="{}", answer="", structured="")
    gone = list(
        ended.filter(finished_at__lt=now - timedelta(days=keep.keep_calls_days)).values_list(
            "pk", flat=True
        )[:_BATCH]
    )
    Run.objects.filter(pk__in=gone).delete()
    CycleLog.objects.filter(at__lt=now - timedelta(days=keep.keep_payloads_days)).delete()
    return {"texts": len(old), "runs": len(gone), "maintenance": _prune_maintenance(now, keep)}


def _prune_maintenance(now: datetime, keep: Configuration) -> int:
    """Requests to the background sub-agent go with the calls of their time; not those whose
    proposal still waits."""
    ended = MaintenanceRequest.objects.filter(
        finished_at__lt=now - timedelta(days=keep.keep_calls_days)
    )
    decided = ended.exclude(proposal__state=ProposalState.WAITING)
    gone = list(decided.values_list("pk", flat=True)[:_BATCH])
    MaintenanceRequest.objects.filter(pk__in=gone).delete()
    _prune_trials(now, keep)
    return len(gone)


def _prune_trials(now: datetime, keep: Configuration) -> None:
    """Reports of trials as well, but the newest of each server: the next is compared with it."""
    newer = TrialReport.objects.filter(
        server=OuterRef("server"), created_at__gt=OuterRef("created_at")
    )
    old = TrialReport.objects.filter(
        Exists(newer), created_at__lt=now - timedelta(days=keep.keep_calls_days)
    )
    old = old.exclude(request__proposal__state=ProposalState.WAITING)
    TrialReport.objects.filter(pk__in=list(old.values_list("pk", flat=True)[:_BATCH])).delete()
