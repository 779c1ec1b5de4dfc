"""A permit that was written by hand, or made wider, is not used: the audit log does not prove
it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db.models import F
from django.utils import timezone

from mcpregistry.models import AuditEntry, Permit
from mcpregistry.services.policy import permits
from mcpregistry.services.policy.permits import PermitWish
from tests.fakes.tampered import seal, sealed_anew, unguarded, verify
from tests.services.test_approvals import _site, ask, bob, hours, yes
from tests.services.test_invariants import broken

__all__ = ["_site", "bob"]  # fixtures

pytestmark = [pytest.mark.attack, pytest.mark.django_db]
RULE = "Permits match the audit log."


@pytest.fixture
def permit(bob: User) -> Permit:
    sealed_anew()
    yes(ask(), bob, permit=PermitWish(hours(1), {"n": 1}, uses=2))
    assert use() is not None
    return Permit.objects.get()


def use(call: str = "c") -> permits.Used | None:
    now = timezone.now()
    tool = Permit.objects.values_list("tool_id", flat=True).distinct().get()
    found = permits.find_covering_permits(
        agent_slug="ann",
        tool_id=tool,
        definition_hash="d",
        server_revision=1,
        arguments={"n": 1},
        fingerprint="f" * 64,
        now=now,
    )
    return permits.use_permit(call_id=call, permits=found, agent_slug="ann", now=now)


def copy_row() -> None:
    permit = Permit.objects.get()
    Permit.objects.update(uses_left=0)
    permit.pk = None
    permit.save(force_insert=True)


def revive() -> None:
    permits.revoke(permit=Permit.objects.get(), actor="user:bob")
    Permit.objects.update(revoked_at=None)


CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "inserted": (copy_row, "it has no audit entry about its creation"),
    "more uses": (lambda: Permit.objects.update(uses_left=F("uses_left") + 1), "it was changed"),
    "without a limit": (lambda: Permit.objects.update(uses_left=None), "it was changed"),
    "longer": (
        lambda: Permit.objects.update(expires_at=F("expires_at") + timedelta(days=9)),
        "it was changed",
    ),
    "wider": (lambda: Permit.objects.update(argument_pins={}), "it was changed"),
    "not revoked": (revive, "it was revoked"),
}


@pytest.mark.exhaustive(one_in=6)
@pytest.mark.both_databases
@pytest.mark.parametrize("case", CASES)
def test_permit_that_was_tampered_with_is_not_used(permit: Permit, case: str) -> None:
    act, words = CASES[case]
    assert (verify(full=True).problems, RULE in broken()) == ((), False)
    with unguarded():
        act()
    seal()
    changed = Permit.objects.exclude(uses_left=0).get()
    said = f"permit {changed.pk}: {words}"
    assert any(each.startswith(said) for each in verify(full=True).problems)
    assert RULE in broken()
    assert [use("d") for _ in range(2)] == [None, None]
    changed.refresh_from_db()
    assert changed.revoked_at is not None
    entry = AuditEntry.objects.get(kind="permit.unproven")
    assert words in entry.body
    with unguarded():
        Permit.objects.filter(pk=changed.pk).update(revoked_at=None)
    assert "it was revoked" in "".join(verify(full=True).problems)


def test_use_is_not_given_back_for_a_forged_entry(permit: Permit) -> None:
    """Whoever writes by hand that a use was taken gets none for it."""
    entry = AuditEntry.objects.filter(kind="permit.used").get()
    entry.pk = None
    entry.seq += 1_000
    entry.body = entry.body.replace('"call":"c"', '"call":"x"')
    entry._state.adding = True
    with unguarded():
        entry.save(force_insert=True)
    permits.give_back(permit_id=permit.pk, call_id="x", agent_slug="ann")
    assert Permit.objects.get().uses_left == 1


def test_uses_and_returns_are_proven(permit: Permit) -> None:
    permits.give_back(permit_id=permit.pk, call_id="c", agent_slug="ann")
    assert Permit.objects.get().uses_left == 2
    assert [use(call) is not None for call in ("d", "e", "f")] == [True, True, False]
    assert RULE not in broken()
