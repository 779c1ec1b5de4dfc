"""A call is approved while the database refuses to write: its caller is told to come back, and
finds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User

from mcpregistry.calls.approvals import background_writes
from mcpregistry.calls.call import CallHost
from mcpregistry.db import db_call
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import ApprovalRequest, Server
from tests.calls.conftest import Site, journal, site
from tests.calls.test_approvals import asking, bob, calling, held, vote
from tests.fault.database import until
from tests.fault.refusals import refuse_held_calls

__all__ = ["asking", "bob", "journal", "site"]  # fixtures

pytestmark = pytest.mark.fault
Make = Callable[..., Any]


async def test_an_approved_call_that_cannot_be_noted_is_told_as_pending(
    site: Make, asking: Server, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_writes, "FIRST_PAUSE", 0.01)
    here: Site = await site()
    call = calling(here)
    await held()
    refuse_held_calls(monkeypatch, "load", 1)
    refuse_held_calls(monkeypatch, "mark_caller_away", 3)
    await vote(bob)
    outcome = await call
    assert (outcome.state, outcome.error_code) == (InvocationState.PENDING, "")
    assert outcome.ticket is not None
    assert here.sent() == []
    await until(lambda: ApprovalRequest.objects.get().waiting_as == ApprovalRequest.Waiting.AWAY)
    again = await here.call("echo__echo", {"n": 1}, host=CallHost(hold=60))
    assert again.state == InvocationState.SUCCEEDED
    assert len(here.sent()) == 1
    assert await db_call(ApprovalRequest.objects.count) == 1
