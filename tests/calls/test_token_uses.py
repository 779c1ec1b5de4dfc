"""When a token was last used is known of MCP as well, and a database that is away loses nothing of
it."""

from __future__ import annotations

import httpx2

from mcpregistry.calls.token_uses import TokenUses
from mcpregistry.db import db_call
from mcpregistry.models import Token
from tests.fakes.stage import Stage, fresh, outside
from tests.fault.database import failing
from tests.gateway.conftest import stage
from tests.gateway.doors import doors

__all__ = ["stage"]


def agents(stage: Stage) -> list[str]:
    """Two agents of one endpoint."""
    names = [fresh("used"), fresh("unused")]
    stage.endpoint(names[0])
    for name in names:
        stage.agent(name)
    return names


def used(name: str) -> bool:
    return Token.objects.get(agent__slug=name).last_used_at is not None


async def test_the_door_notes_the_tokens_that_it_takes(stage: Stage) -> None:
    name, other = await outside(agents, stage)
    async with doors(name, stage.tokens[name]) as both:
        answer = await both.ask(True, "POST", b"{}", [("content-type", "application/json")])
        assert answer[0] == 400
        transport = httpx2.ASGITransport(app=both.app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://testserver") as http:
            refused = await http.post(
                f"/mcp/{name}", json={}, headers={"authorization": "Bearer slp_wrong"}
            )
        assert refused.status_code == 401
        await both.app.engine.token_uses.write()
        assert [await outside(used, each) for each in (name, other)] == [True, False]


async def test_what_the_database_does_not_take_is_written_later(stage: Stage) -> None:
    name, _ = await outside(agents, stage)
    uses = TokenUses()
    uses.add((await db_call(Token.objects.get, agent__slug=name)).hash)
    with failing("tokens.note_uses"):
        await uses.write()
    assert not await outside(used, name)
    await uses.write()
    assert await outside(used, name)
