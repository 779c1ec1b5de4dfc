"""A server that is only connected when a person says so."""

from __future__ import annotations

from mcpregistry.db import db_call
from mcpregistry.services.servers.checks import request_reconnect
from tests.calls.conftest import ACTOR, add_server, tool
from tests.waiting import until


async def test_no_call_starts_it_and_reconnect_does(site):
    server = await db_call(add_server, "echo", tool("echo"), connect_mode="manual")
    here = await site()
    refused = await here.call("echo__echo")
    assert (refused.state, refused.error_code) == ("not_sent", "CONNECTION_FAILED")
    assert "Connect server" in refused.remedy
    await db_call(request_reconnect, server=server, actor=ACTOR)
    await until(
        lambda: any(state.state == "connected" for state in here.engine.pool.list_states().values())
    )
    answered = await here.call("echo__echo")
    assert answered.state == "succeeded"
