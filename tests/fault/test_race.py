"""Many approvals, two workers, every message twice: each call reaches the server once."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import pytest
from django.contrib.auth.models import User
from django.db import transaction

from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import ApprovalRequest, AuditEntry
from mcpregistry.services.approvals import votes
from mcpregistry.services.configuration.dispatch import wake_worker
from tests.conftest import child_env
from tests.tasks import worker
from tests.tasks.test_approved import ask, bob, broken, ended, journal, sent
from tests.waiting import eventually

__all__ = ["bob", "journal"]  # fixtures

pytestmark = [pytest.mark.fault, pytest.mark.e2e]
MANY = 150  # each is a race of its own: calls share no row that is claimed


def approve_all(user: User) -> None:
    """In one commit, and without waking workers, which the test does itself."""
    with patch("mcpregistry.services.approvals.votes.wake_worker"), transaction.atomic():
        for key in list(ApprovalRequest.objects.values_list("pk", flat=True)):
            votes.vote(request_id=key, user=user, approve=True, via="web")


@pytest.mark.exhaustive
def test_many_approvals_two_workers_every_message_twice(journal: Path, bob: User, broker: str):
    """The server's own journal says what really happened."""
    worker.empty_broker()
    with transaction.atomic():  # one commit instead of one for each
        tickets = [ask(number) for number in range(MANY)]
    approve_all(bob)
    with ExitStack() as stack:
        # both are up before there is anything to do, else the first does it all
        for name in ("one", "two"):
            stack.enter_context(worker.running(child_env(), name))
        for ticket in tickets * 2:
            wake_worker("run_approved", ticket.call_id)
        eventually(lambda: ended(MANY))
    assert sorted(sent(journal)) == list(range(MANY))
    assert {call.state for call in ended(MANY)} == {InvocationState.SUCCEEDED}
    dispatched = AuditEntry.objects.filter(kind="call.dispatched").order_by()
    assert (dispatched.count(), dispatched.values("writer").distinct().count()) == (MANY, 2)
    assert broken() == []
