"""What goes through the broker, and what is kept of it. Alone in its file: it decides when its
worker starts."""

from __future__ import annotations

import sys

import pytest

from mcpregistry.models import AuditEntry, Credential, ServerEvent, ServerTest
from mcpregistry.services.servers.checks import request_refresh, request_test
from tests.services.rows import confirmed
from tests.tasks import worker
from tests.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.one_database]
SECRET = "canary-7f3a91"


def test_messages_events_audit_and_logs_hold_no_secret(site_env, broker):
    worker.empty_broker()
    Credential.objects.create(name="github", value=SECRET, scope=["server:loud"])
    loud = [
        sys.executable,
        "-S",
        "-c",
        "import os, sys; sys.exit('bad token ' + os.environ['TOKEN'])",
    ]
    server = confirmed(
        "loud", command=loud, env={"TOKEN": "${cred:github}", "PLAIN": SECRET + "-2"}
    )
    test = request_test(server=server, actor="test")
    assert request_refresh(server=server, actor="test")
    messages = worker.queued_messages()
    assert len(messages) == 2
    with worker.running(site_env) as output:
        eventually(lambda: refreshed(test).finished_at)
        eventually(lambda: type(server).objects.get(pk=server.pk).consecutive_failures == 2)
    server.refresh_from_db()
    assert test.stderr_tail == "bad token [secret]\n"
    seen = [
        *map(str, messages),
        output.read_text(),
        test.error,
        test.stderr_tail,
        server.last_error,
    ]
    seen += [entry.body for entry in AuditEntry.objects.all()]
    seen += [note.message for note in ServerEvent.objects.all()]
    assert [text for text in seen if SECRET in text] == []


def refreshed(test: ServerTest) -> ServerTest:
    test.refresh_from_db()
    return test
