"""Retention: payloads are erased first, then the records of calls. The audit log stays, and says
until when.

Work is done in small batches, each its own transaction, so that calls are never kept waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any, TypeVar

from django.apps import apps
from django.db import transaction
from django.db.models import Exists, F, Model, OuterRef, Q, QuerySet
from simple_history.manager import HistoryManager

from mcpregistry.domain.lifecycle import TERMINAL
from mcpregistry.models import (
    ApprovalRequest,
    BudgetEntry,
    BudgetPeriod,
    Configuration,
    Conversation,
    CountedSpan,
    Delivery,
    EnergyEntry,
    HostTask,
    Invocation,
    KeptAnswer,
    LoginAttempts,
    Message,
    Server,
    ServerTest,
    SpanFailure,
    SpanUsage,
)
from mcpregistry.services.records import audit, call_hours, signed_calls
from mcpregistry.services.records.idempotency import KEPT_FOR
from mcpregistry.services.servers.notes import trim_events
from mcpregistry.services.tasks import host_tasks

_LONGEST_PERIOD = timedelta(days=32)  # of a budget: what goes on counts all of its entries
BATCH = 500
MAX_BATCHES = 200  # per run and kind: the next run goes on

_Row = TypeVar("_Row", bound=Model)


def prune(now: datetime) -> dict[str, int]:
    """Apply the site's retention. Returns how many rows each kind of forgetting touched."""
    keep = Configuration.load()
    calls_before = now - timedelta(days=keep.keep_calls_days)
    payloads_before = now - timedelta(days=keep.keep_payloads_days)
    _record_retention(calls_before, payloads_before)
    promised = Q(host_task__isnull=False) & Q(
        finished_at__gt=now - timedelta(milliseconds=host_tasks.KEPT_MS)
    )
    # their hosts may still come
    ended = Invocation.objects.filter(state__in=[*TERMINAL]).exclude(promised)
    return {
        "calls": _delete(ended.filter(received_at__lt=calls_before)),
        "payloads": _empty_payloads(ended.filter(received_at__lt=payloads_before)),
        "approvals": _empty_requests(ended.filter(received_at__lt=payloads_before)),
        "tasks": _empty_tasks(ended.filter(received_at__lt=payloads_before)),
        "deliveries": _delete(
            Delivery.objects.filter(created_at__lt=payloads_before, next_at=None)
        ),
        "tests": _delete(ServerTest.objects.filter(finished_at__lt=calls_before)),
        "answers": _delete(KeptAnswer.objects.filter(created_at__lt=now - KEPT_FOR)),
        "attempts": _delete(
            LoginAttempts.objects.filter(began_at__lt=now - timedelta(days=1)).exclude(
                known_until__gt=now
            )
        ),
        "conversations": _run_in_batches(
            Conversation.objects.filter(last_used_at__lt=calls_before), _delete_and_record
        ),
        "energy": _delete(
            EnergyEntry.objects.filter(at__lt=calls_before).exclude(_match_last_entries("pool"))
        ),
        "budgets": _delete(
            BudgetEntry.objects.filter(at__lt=min(calls_before, now - _LONGEST_PERIOD)).exclude(
                _match_last_entries("budget")
            )
        )
        + _delete(BudgetPeriod.objects.filter(end__lt=calls_before)),
        "versions": sum(
            _forget_versions(model, now - timedelta(days=keep.keep_history_days))
            for model in iterate_history_models()
        ),
        "messages": _empty_messages(payloads_before),
        "hours": sum(
            _delete(model._default_manager.filter(begins__lt=now - call_hours.KEPT))
            for model in (CountedSpan, SpanUsage)
        ),
        # words of tools stand in them
        "failures": _delete(SpanFailure.objects.filter(begins__lt=payloads_before)),
        "events": trim_events(Server.objects.values_list("pk", flat=True)),
    }


def _record_retention(calls_before: datetime, payloads_before: datetime) -> None:
    """Ahead of it, say in the audit log what is forgotten: by it verifying knows what was not taken
    away by hand."""
    full = Invocation.objects.filter(received_at__lt=payloads_before).exclude(
        Q(arguments="") & Q(result="")
    )
    calls = full.exists() or Invocation.objects.filter(received_at__lt=calls_before).exists()
    if calls or _select_with_text(payloads_before).exists():
        said = {
            "calls_before": calls_before.isoformat(),
            "payloads_before": payloads_before.isoformat(),
        }
        audit.record_entry(
            kind="calls.forgotten", actor="retention", subject=signed_calls.FORGOTTEN, **said
        )


def _match_last_entries(book: str) -> Q:
    """Entries that their book names: without them, its balance would follow from nothing."""
    return Q(seq__gt=0, seq=F(f"{book}__book_seq"))


def _delete(rows: QuerySet[Any]) -> int:
    return _run_in_batches(rows, lambda batch: batch.delete()[0])


@transaction.atomic
def _delete_and_record(batch: QuerySet[Any]) -> int:
    """Where each deletion is told in the log: all at once."""
    with audit.collect_entries():
        return batch.delete()[0]


def iterate_history_models() -> Iterator[Any]:
    """The histories of all models, of every app."""
    for model in apps.get_models():
        if isinstance(manager := getattr(model, "history", None), HistoryManager):
            yield manager.model


def _forget_versions(versions: Any, before: datetime) -> int:
    """But for the newest of each record that is there; of one that was deleted, all."""
    key = versions.instance_type._meta.pk.attname
    same = versions.objects.filter(**{key: OuterRef(key)})
    newer = same.filter(history_id__gt=OuterRef("history_id"))
    older = same.filter(history_id__lt=OuterRef("history_id"))
    old = versions.objects.filter(history_date__lt=before)
    # That a record was deleted goes last, or an earlier version would look like the newest.
    ended = old.filter(~Exists(older), history_type="-")
    return _run_in_batches(old.filter(Exists(newer)), _forget_whole) + _run_in_batches(
        ended, _forget_whole
    )


def _forget_whole(batch: QuerySet[Any]) -> int:
    """With their lists of other records, which refer to them without the database's help."""
    for listed in batch.model._meta.related_objects:
        listed.related_model._default_manager.filter(**{f"{listed.field.name}__in": batch}).delete()
    return batch.delete()[0]


def _empty_payloads(calls: QuerySet[Invocation]) -> int:
    """``result_bytes`` stays: how large an answer was is no secret."""
    full = calls.exclude(Q(arguments="") & Q(result=""))
    return _run_in_batches(full, lambda batch: batch.update(arguments="", result=""))


def _empty_requests(calls: QuerySet[Invocation]) -> int:
    """What was asked, edited and answered goes; who decided how, and why, stays with the call."""
    requests = ApprovalRequest.objects.filter(call__in=calls)
    full = requests.exclude(edited="", result="", said="")
    return _run_in_batches(full, lambda batch: batch.update(edited="", result="", said=""))


def _empty_tasks(calls: QuerySet[Invocation]) -> int:
    full = HostTask.objects.filter(call__in=calls).exclude(
        result="", input_requests="", input_responses=""
    )
    return _run_in_batches(
        full, lambda batch: batch.update(result="", input_requests="", input_responses="")
    )


def _empty_messages(before: datetime) -> int:
    """Who wrote when stays as long as the conversation does."""
    return _run_in_batches(_select_with_text(before), lambda batch: batch.update(text=""))


def _select_with_text(before: datetime) -> QuerySet[Message]:
    return Message.objects.filter(created_at__lt=before).exclude(text="")


def _run_in_batches(rows: QuerySet[_Row], forget: Callable[[QuerySet[_Row]], int]) -> int:
    done = 0
    for _ in range(MAX_BATCHES):
        keys = list(rows.order_by().values_list("pk", flat=True)[:BATCH])
        if not keys:
            break
        done += forget(rows.model._default_manager.filter(pk__in=keys))
    return done
