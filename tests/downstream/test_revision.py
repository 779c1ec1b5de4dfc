"""A call goes to the server as it was configured when it was decided on, or nowhere."""

from __future__ import annotations

import dataclasses

import pytest

from mcpregistry.domain.errors import Conflict, ConnectionFailed, StaleRevision
from mcpregistry.domain.servers.target import ServerTarget
from mcpregistry.downstream.pool.pool import Pool
from mcpregistry.downstream.server_call import ServerCall
from tests.fakes.targets import stdio_target


class Configured:
    """The current target of the one server, which a test may change."""

    def __init__(self) -> None:
        self.target = stdio_target("echo")
        self.refuse = False

    async def __call__(self, server_id: int) -> ServerTarget:
        if self.refuse:
            raise Conflict("The server is disabled.", remedy="Enable it first.")
        return self.target

    def change(self) -> None:
        self.target = dataclasses.replace(self.target, revision=self.target.revision + 1)


async def test_a_call_decided_on_an_older_revision_is_not_sent() -> None:
    configured = Configured()
    configured.change()
    pool = Pool(configured, lambda _: None)
    try:
        with pytest.raises(StaleRevision) as caught:
            await pool.call(ServerCall(1, "echo", b"{}", revision=1))
        assert not caught.value.sent
    finally:
        await pool.close()


async def test_a_call_decided_on_a_newer_revision_gets_a_new_connection() -> None:
    configured = Configured()
    pool = Pool(configured, lambda _: None)
    try:
        before = await pool.call(ServerCall(1, "pid", b"{}", revision=1))
        configured.change()
        after = await pool.call(ServerCall(1, "pid", b"{}", revision=2))
        assert before["content"] != after["content"]
    finally:
        await pool.close()


async def test_a_server_that_may_not_be_started_any_more_answers_why() -> None:
    configured = Configured()
    pool = Pool(configured, lambda _: None)
    try:
        await pool.call(ServerCall(1, "echo", b"{}", revision=1))
        await pool.disconnect(1)
        await pool._get_slot(1).load()
        configured.refuse = True
        with pytest.raises(ConnectionFailed, match="The server is disabled"):
            await pool.call(ServerCall(1, "echo", b"{}", revision=1))
    finally:
        await pool.close()
