"""Idempotency keys whose request did not end with an answer."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from mcpregistry.domain.errors import Conflict
from mcpregistry.models import KeptAnswer
from mcpregistry.services.records import idempotency
from mcpregistry.services.records.idempotency import KeyUse
from tests.services.rows import dispatched, ended

pytestmark = pytest.mark.django_db
KEY = {"caller": "agent:ann", "key": "k-1"}


def claim(call_id: str) -> KeyUse:
    return idempotency.claim(**KEY, fingerprint="f", call_id=call_id)


@pytest.mark.parametrize("state", ["not_sent", "cancelled"])
def test_key_of_a_call_that_never_ran_is_released(state: str):
    claim("c")
    ended("c", state=state, finished_at=timezone.now())
    idempotency.release(**KEY)
    assert claim("d") == KeyUse("d")


@pytest.mark.parametrize("state", ["succeeded", "tool_error", "unknown", "dispatched"])
def test_key_of_a_call_that_may_have_run_is_not_released(state: str):
    claim("c")
    if state == "dispatched":
        dispatched("c")
    else:
        ended("c", state=state, finished_at=timezone.now())
    idempotency.release(**KEY)
    if state == "dispatched":
        with pytest.raises(Conflict, match="is still in progress"):
            claim("d")
    else:
        again = claim("d")
        assert again.ended is not None
        assert again.call_id == "c"


def test_abandoned_key_goes_to_one_of_two_who_find_it(monkeypatch: pytest.MonkeyPatch):
    claim("c")
    KeptAnswer.objects.update(
        created_at=timezone.now() - idempotency.BEGINS_WITHIN - timedelta(seconds=1)
    )
    take = idempotency._retake_unused_key

    def take_second(*args):
        monkeypatch.setattr(idempotency, "_retake_unused_key", take)
        assert claim("d") == KeyUse("c")
        return take(*args)

    monkeypatch.setattr(idempotency, "_retake_unused_key", take_second)
    with pytest.raises(Conflict, match="is still in progress"):
        claim("e")
