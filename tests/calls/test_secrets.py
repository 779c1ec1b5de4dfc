"""A server that tells what it was given tells it to nobody: not to the host, not to the record, not
in part."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from mcpregistry.db import db_call
from mcpregistry.models import AuditEntry, Credential, Invocation, ServerEvent
from mcpregistry.services.access.credentials import save_credential
from tests.calls.conftest import add_server, tool
from tests.waiting import until

pytestmark = [pytest.mark.attack]
SECRET = "canary-4b1d9e77"


def leaky(**fields):
    save_credential(
        credential=Credential(name="forge"), actor="test", value=SECRET, scope=["server:envdump"]
    )
    env = {
        "FORGE": "${cred:forge}",
        "LOG_LEVEL": "very-verbose",
        "B64": base64.b64encode(b"x:" + SECRET.encode()).decode(),
    }
    return add_server("envdump", tool("env"), env=env, **fields)


def everything() -> str:
    events = list(ServerEvent.objects.values_list("message", flat=True))
    calls = list(Invocation.objects.values_list("arguments", "result", "reason"))
    return json.dumps([events, calls, list(AuditEntry.objects.values_list("body", flat=True))])


@pytest.mark.one_database
async def test_secrets_are_replaced_before_host_and_record_see_them(live_db, site, caplog):
    await db_call(leaky)
    here = await site()
    outcome = await here.call("envdump__env")
    said = json.loads(outcome.result["content"][0]["text"])["env"]
    assert said["FORGE"] == "[secret]"
    assert said["LOG_LEVEL"] == "very-verbose", "ordinary values stay"
    assert "[secret]" in said["B64"]
    await here.engine.stop()  # what is noted is written
    whole = await db_call(everything) + caplog.text + json.dumps(outcome.result)
    assert SECRET not in whole
    assert base64.b64encode(b"x:" + SECRET.encode()).decode()[4:-4] not in whole
    notes = await db_call(
        lambda: list(ServerEvent.objects.filter(kind="secrets").values_list("message", flat=True))
    )
    assert len(notes) == 1
    assert "Answers contained secrets of this server" in notes[0]


async def test_a_changed_credential_ends_the_connections_that_hold_the_old_one(live_db, site):
    server = await db_call(leaky)
    here = await site()

    async def given() -> bytes:
        await here.call("envdump__env")
        state = here.engine.pool.list_states()[server.pk]
        return Path(f"/proc/{state.pid}/environ").read_bytes()

    assert f"FORGE={SECRET}".encode() in await given()
    await db_call(
        lambda: save_credential(
            credential=Credential.objects.get(), actor="test", value="canary-new-00"
        )
    )
    await noticed(here, server.pk, server.revision + 1)
    assert b"FORGE=canary-new-00" in await given()


async def noticed(here, server_id: int, revision: int) -> None:
    await until(lambda: here.engine.live.current.servers[server_id].revision == revision)


@pytest.mark.one_database
async def test_a_server_without_secrets_is_not_looked_through(live_db, site, monkeypatch):
    await db_call(add_server, "envdump", tool("env"), env={"LOG_LEVEL": "very-verbose"})
    here = await site()
    monkeypatch.setattr(
        "mcpregistry.downstream.pool.redact.count_characters",
        lambda _: pytest.fail("it was looked through"),
    )
    outcome = await here.call("envdump__env")
    assert "very-verbose" in outcome.result["content"][0]["text"]
