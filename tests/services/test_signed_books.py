"""Somebody who writes to the database without keys cannot empty the books of energy and budgets
unnoticed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db.models import F
from django.utils import timezone

from mcpregistry.db import read_database_now
from mcpregistry.domain.caller_rights import grant_all_rights
from mcpregistry.models import Agent, Budget, BudgetEntry, BudgetPeriod, EnergyEntry, EnergyPool
from mcpregistry.models.audit import GENESIS
from mcpregistry.services.access import agents
from mcpregistry.services.budgets import books
from mcpregistry.services.energy import pools
from mcpregistry.services.upkeep import retention
from mcpregistry.services.upkeep.invariants.calls import check_invariants
from tests.fakes.tampered import seal, sealed_anew, verify

pytestmark = [pytest.mark.django_db, pytest.mark.attack]
ENTRIES = 4


@pytest.fixture
def pool() -> EnergyPool:
    """A pool that was charged four times."""
    row = pools.save_pool(pool=EnergyPool(slug="shared", regeneration=0.0), actor="test")
    for number in range(ENTRIES):
        charge(row, f"c{number}")
    return EnergyPool.objects.get()


@pytest.fixture
def budget() -> Budget:
    """A budget of which four calls were spent."""
    owner = agents.save_agent(agent=Agent(slug="ann"), actor="test")
    row = books.save_budget(
        budget=Budget(slug="daily", agent=owner, unit="calls", period="day", hard=Decimal(10)),
        actor="test",
    )
    for number in range(ENTRIES):
        spend(row, f"c{number}")
    return row


@pytest.fixture
def sealed(pool: EnergyPool, budget: Budget) -> None:
    """Both, sealed and verified, and nothing wrong with them."""
    sealed_anew()
    assert seal() is not None
    for _ in range(2):
        assert verify().problems == ()
    assert broken() == set()


def charge(row: EnergyPool, reference: str) -> None:
    pools.charge_pool(
        pools.lock_pool(row.pk),
        EnergyEntry.Kind.CALL,
        10.0,
        now=read_database_now(),
        reference=reference,
    )


def spend(row: Budget, reference: str) -> None:
    fresh = Budget.objects.select_for_update().get(pk=row.pk)
    books.spend(
        fresh, BudgetEntry.Kind.CALL, 1, agent="ann", reference=reference, now=read_database_now()
    )


def broken() -> set[str]:
    return {found.rule for found in check_invariants(timezone.now()) if found.violations}


def fill_up() -> None:
    EnergyPool.objects.update(level=F("capacity"))


def add_setting() -> None:
    """A level that an entry of the kind *setting* seems to tell."""
    row = EnergyPool.objects.get()
    EnergyEntry.objects.create(
        pool=row,
        kind="setting",
        amount=0,
        before=100,
        after=100,
        at=timezone.now(),
        seq=ENTRIES + 1,
        prev=row.book_hash,
        hash="f" * 64,
        key_id=EnergyEntry.objects.first().key_id,
    )
    EnergyPool.objects.update(level=100, book_seq=ENTRIES + 1, book_hash="f" * 64)


def turn_time_back() -> None:
    EnergyPool.objects.update(level_at=timezone.now() - timedelta(days=1))


def empty_the_pool() -> None:
    EnergyEntry.objects.all().delete()
    EnergyPool.objects.update(level=F("capacity"), book_seq=0, book_hash=GENESIS, book_at=None)


def wind_the_pool_back() -> None:
    first = EnergyEntry.objects.order_by("seq")[0]
    EnergyEntry.objects.filter(seq__gt=1).delete()
    EnergyPool.objects.update(level=first.after, book_seq=1, book_hash=first.hash, book_at=first.at)


def forget_spending() -> None:
    BudgetPeriod.objects.update(spent=0)


def empty_the_budget() -> None:
    BudgetEntry.objects.all().delete()
    BudgetPeriod.objects.all().delete()
    Budget.objects.update(book_seq=0, book_hash=GENESIS, book_at=None)


def keep_the_last_entry() -> None:
    BudgetEntry.objects.filter(seq__lt=ENTRIES).delete()
    BudgetPeriod.objects.update(spent=1)


def hide_from_seals() -> None:
    """Seals look at books that say that they have a new entry."""
    Budget.objects.update(book_at=timezone.now() - timedelta(days=1))


def change_an_entry() -> None:
    BudgetEntry.objects.filter(seq=ENTRIES).update(spent=0)
    BudgetPeriod.objects.update(spent=0)


@pytest.mark.exhaustive(one_in=12)
@pytest.mark.parametrize(
    "tamper",
    [
        fill_up,
        add_setting,
        turn_time_back,
        empty_the_pool,
        wind_the_pool_back,
        forget_spending,
        empty_the_budget,
        keep_the_last_entry,
        change_an_entry,
        hide_from_seals,
    ],
)
def test_books_that_were_emptied_are_found_by_the_scheduled_check(
    sealed: None, tamper: Callable[[], Any]
):
    tamper()
    assert verify().problems != ()
    assert verify(full=True).problems != ()


@pytest.mark.exhaustive(one_in=6)
@pytest.mark.parametrize(
    "tamper", [fill_up, add_setting, forget_spending, keep_the_last_entry, change_an_entry]
)
def test_books_that_were_emptied_break_an_invariant(sealed: None, tamper: Callable[[], Any]):
    tamper()
    assert broken() & {
        "The entries of each energy pool add up.",
        "The entries of each budget add up.",
    }


def test_changed_entry_in_the_middle_breaks_an_invariant(sealed: None):
    EnergyEntry.objects.filter(seq=2).update(agent_slug="eve")
    assert broken() == {"Every energy entry is signed and follows the one before it."}


def test_books_wound_back_are_found_after_new_entries(sealed: None):
    """Also when the book is as long again as it was sealed."""
    wind_the_pool_back()
    for number in range(ENTRIES):
        charge(EnergyPool.objects.get(), f"later{number}")
    assert seal() is not None
    for full in (False, True, False):
        assert any(
            "was changed, although a checkpoint covers it" in found
            for found in verify(full=full).problems
        )


def test_deleted_period_is_made_again_with_what_was_spent(budget: Budget):
    BudgetPeriod.objects.all().delete()
    BudgetEntry.objects.filter(seq__lt=ENTRIES).delete()
    spend(budget, "later")
    assert BudgetPeriod.objects.get().spent == ENTRIES + 1


def test_lowered_spending_is_corrected_before_the_next_call(budget: Budget):
    forget_spending()
    spend(budget, "later")
    assert BudgetPeriod.objects.get().spent == ENTRIES + 1
    assert BudgetEntry.objects.order_by("-seq")[0].spent == ENTRIES + 1


@pytest.mark.exhaustive
def test_spending_that_was_lowered_for_a_moment_is_found(sealed: None):
    """The last entry was changed while the next one was written, and is again as it was."""
    forget_spending()
    BudgetEntry.objects.filter(seq=ENTRIES).update(spent=0)
    spend(Budget.objects.get(), "later")
    BudgetEntry.objects.filter(seq=ENTRIES).update(spent=ENTRIES)
    said = "the total in this entry is not the total in the entry before it plus the amount of this entry"
    for full in (False, True, False):
        assert [found.rpartition(": ")[2] for found in verify(full=full).problems] == [said]
    assert broken() == {"Every budget entry is signed and follows the one before it."}


def test_pool_that_was_filled_up_is_found_after_the_next_charge(sealed: None):
    fill_up()
    charge(EnergyPool.objects.get(), "later")
    assert seal() is not None
    said = "since the entry before it, more units were added than the pool refills in this time"
    for full in (False, True, False):
        assert [found.rpartition(": ")[2] for found in verify(full=full).problems] == [said]


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize("days", [0, 1000])
def test_level_that_was_changed_counts_for_nothing_where_the_books_go_on(sealed: None, days: int):
    """A person saves the pool, or a clock seems to have been far ahead when the level was
    written."""
    EnergyPool.objects.update(
        level=F("capacity"), level_at=timezone.now() + timedelta(days=days), regeneration=0.001
    )
    row = EnergyPool.objects.get()
    if days:
        charge(row, "later")
    else:
        pools.save_pool(pool=row, actor="test")
    last = EnergyEntry.objects.get(seq=ENTRIES + 1)
    assert last.kind == ("clock" if days else "setting")
    assert last.before == pytest.approx(100 - 10 * ENTRIES, abs=1)
    assert seal() is not None
    assert verify().problems == ()
    assert broken() == set()


def test_retention_and_deletion_are_no_faults(sealed: None):
    spend(Budget.objects.get(), "later")
    assert seal() is not None
    assert verify().problems == ()
    retention.prune(timezone.now() + timedelta(days=400))
    assert (EnergyEntry.objects.count(), BudgetEntry.objects.count()) == (1, 1)
    for full in (False, True):
        assert verify(full=full).problems == ()
    pools.delete_pool(pool=EnergyPool.objects.get(), actor="test")
    agents.delete_agent(agent=Agent.objects.get(), actor="test", rights=grant_all_rights)
    for full in (False, True):
        assert verify(full=full).problems == ()


@pytest.mark.exhaustive
def test_pool_deleted_by_hand_is_found(sealed: None):
    EnergyPool.objects.all().delete()
    assert any("no audit entry records its deletion." in found for found in verify().problems)


@pytest.mark.exhaustive
def test_saved_pool_and_budget_go_on_in_their_books(sealed: None):
    """A form has read the row before the last entry was added."""
    pool = EnergyPool.objects.get()
    budget = Budget.objects.get()
    charge(pool, "meanwhile")
    spend(budget, "meanwhile")
    pools.save_pool(pool=pool, actor="test")
    books.save_budget(budget=budget, actor="test")
    charge(pool, "later")
    spend(budget, "later")
    assert seal() is not None
    assert verify().problems == ()
    assert broken() == set()
