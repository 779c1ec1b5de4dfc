"""Configuration facts share one chain, in the transaction of the change that they tell of."""

from __future__ import annotations

import threading

import pytest
from django.db import connections, transaction

from mcpregistry.models import Agent, AuditEntry
from mcpregistry.services.access import agents
from mcpregistry.services.records import audit, chains


def record(subject: str = "s") -> AuditEntry:
    audit.record_entry(kind="x", actor="ann", subject=subject, n=1)
    return AuditEntry.objects.latest("id")


@pytest.mark.django_db
def test_entries_follow_one_another_and_the_chain_holds():
    first = record()
    second = record()
    assert (first.seq, second.seq, second.prev) == (1, 2, first.hash)
    assert list(chains.verify_chains()) == []


@pytest.mark.django_db
def test_a_change_that_is_taken_back_takes_its_entry_with_it():
    record()
    with transaction.atomic():
        agents.save_agent(agent=Agent(slug="gone"), actor="ann")
        transaction.set_rollback(True)
    assert AuditEntry.objects.count() == 1
    record()
    assert list(chains.verify_chains()) == []


@pytest.mark.django_db
def test_what_is_recorded_together_stands_in_order_and_the_chain_holds():
    record("before")
    with audit.collect_entries():
        audit.record_entry(kind="x", actor="ann", subject="one")
        with audit.collect_entries():  # a verb within a verb
            audit.record_entry(kind="x", actor="ann", subject="two")
        assert AuditEntry.objects.count() == 1
    record("after")
    assert [*AuditEntry.objects.order_by("seq").values_list("subject", flat=True)] == [
        "before",
        "one",
        "two",
        "after",
    ]
    assert list(chains.verify_chains()) == []


@pytest.mark.django_db
def test_what_fails_together_leaves_no_entry_and_nothing_for_the_next():
    def fail() -> None:
        with transaction.atomic(), audit.collect_entries():
            audit.record_entry(kind="x", actor="ann", subject="never")
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    with transaction.atomic(), audit.collect_entries():
        audit.record_entry(kind="x", actor="ann", subject="taken back")
        transaction.set_rollback(True)
    assert record().seq == 1
    assert AuditEntry.objects.count() == 1


@pytest.mark.django_db
@pytest.mark.attack
@pytest.mark.parametrize(
    "text", ["a\x00b", "\ud800", "x" * 500, "\u202e", "'; DROP TABLE x; --"], ids=range(5)
)
def test_odd_names_neither_fail_nor_break_the_chain(text: str):
    audit.record_entry(kind="x", actor=text, subject=text, fact=text, number=float("nan"))
    assert list(chains.verify_chains()) == []


def test_writers_at_the_same_time_do_not_fork_the_chain(live_db: None):
    errors: list[BaseException] = []

    def write() -> None:
        try:
            for _ in range(15):
                record()
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=write) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert list(AuditEntry.objects.order_by("seq").values_list("seq", flat=True)) == list(
        range(1, 91)
    )
    assert list(chains.verify_chains()) == []
