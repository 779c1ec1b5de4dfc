"""Whole way: what happens here is told by a real worker, woken through a real broker, to a real
receiver."""

from __future__ import annotations

import json

import pytest
from django.db import transaction

from mcpregistry.models import Delivery
from mcpregistry.services.notifications import outbox
from tests.conftest import child_env
from tests.fakes.receiver import Receiver, listening
from tests.services.telling import held, webhook
from tests.tasks import worker
from tests.waiting import eventually

pytestmark = pytest.mark.e2e


@pytest.mark.usefixtures("live_db", "site_worker")
def test_a_committed_event_reaches_the_receiver_without_a_tick():
    with listening(Receiver()) as receiver:
        webhook(receiver.url)
        requests = [held() for _ in range(20)]
        for request in requests:
            with transaction.atomic():
                outbox.enqueue("asked", request)
        eventually(lambda: len(receiver.requests) == 20)
        told = {json.loads(got.body)["data"]["request"] for got in receiver.requests}
        assert told == {request.pk for request in requests}
        eventually(lambda: Delivery.objects.filter(state="sent", attempts=1).count() == 20)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("live_db")
def test_what_was_owed_while_nobody_worked_is_sent_by_the_next_tick(broker: str):
    from celery import current_app

    worker.empty_broker()
    with listening(Receiver()) as receiver:
        webhook(receiver.url)
        request = held()
        with transaction.atomic():
            outbox.enqueue("asked", request)
        worker.empty_broker()  # the wake-up was lost
        with worker.running(child_env()):
            current_app.send_task("mcpregistry.tasks.deliver_notifications")  # as the clock does
            eventually(lambda: receiver.requests)
            eventually(lambda: Delivery.objects.filter(state="sent").exists())
