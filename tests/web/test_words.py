"""What pages say of a call is so: nothing that waits is said to run."""

from __future__ import annotations

import pytest
from django.urls import reverse

from mcpregistry.services.approvals import held_calls
from tests.fakes.held import hold
from tests.web.conftest import ClientOf
from tests.web.test_detail import address, decide, plain
from tests.web.test_queue import seen

pytestmark = pytest.mark.one_database


def test_what_waits_for_its_caller_is_not_said_to_run(client_of: ClientOf) -> None:
    """Its caller was told to come back and has gone: nothing runs until the same call comes
    again."""
    held = hold()
    client = client_of("approver")
    held_calls.mark_caller_away(request_id=held.pk, caller=held.call_id)
    decide(client, held, "approve", reason="fine")
    text = plain(seen(client, address(held)))
    assert (
        "It has not run, because its caller disconnected. It runs if the caller makes the same call again before"
        in text
    )
    assert "runs now" not in text
    record = plain(
        seen(client, reverse("admin:mcpregistry_invocation_change", args=[held.call_id]))
    )
    assert "Not sent yet It has not run, because its caller disconnected" in record
    assert "being made" not in record
    task = hold(waiting_as="task", arguments={"query": "other"})
    decide(client, task, "approve", reason="fine")
    assert "It is running now." in plain(seen(client, address(task)))
