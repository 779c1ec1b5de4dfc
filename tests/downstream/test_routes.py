"""Servers that speak both protocol versions: the connection on which they can ask the host of a
call."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from mcpregistry.domain.calls.forwarding import Forwarding
from mcpregistry.domain.definitions.definition import hash_definition
from mcpregistry.domain.errors import DownstreamError, InputNeeded
from mcpregistry.domain.servers import health
from mcpregistry.domain.servers.target import ServerTarget
from mcpregistry.downstream.pool import routes
from tests.downstream.conftest import Bench
from tests.fakes import sdk
from tests.fakes.servers.sdk_asker import make_server
from tests.fakes.targets import SERVERS, http_target, stdio_target
from tests.waiting import until

Make = Callable[..., Bench]
ABLE = {"elicitation": {"form": {}}, "sampling": {}}
KINDS = frozenset(ABLE)
ELICIT = b'{"message":"Who?"}'
SAMPLE = b'{"prompt":"Hi"}'


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with sdk.serving(make_server().streamable_http_app()) as found:
        yield f"{found}/mcp"


@pytest.fixture
def here(bench: Make, address: str) -> Bench:
    return bench(http_target(address, questions=KINDS))


class Person:
    """At a host that can be asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def __call__(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.append(method)
        if method == "elicitation/create":
            return {"action": "accept", "content": {"username": "ann"}}
        return {"role": "assistant", "content": {"type": "text", "text": "yes"}, "model": "m"}

    def older(self) -> Forwarding:
        return Forwarding(ABLE, ask=self)

    def modern(self) -> Forwarding:
        return Forwarding(ABLE, ask=self, rounds=True)


def said(result: dict[str, Any]) -> str:
    return str(result["content"][0]["text"])


async def version(here: Bench, host: Forwarding, **options: Any) -> str:
    return said(await here.call("pid", host=host, **options)).split()[1]


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize("stdio", [False, True])
async def test_an_older_host_is_asked_in_its_first_call(bench: Make, address: str, stdio: bool):
    target = http_target(address, questions=KINDS)
    if stdio:
        argv = (sys.executable, str(SERVERS / "sdk_asker.py"))
        target = stdio_target("sdk_asker", argv=argv, questions=KINDS)
    here = bench(target)
    person = Person()
    assert said(await here.call("test_elicitation", ELICIT, host=person.older())) == "accept: ann"
    assert said(await here.call("test_sampling", SAMPLE, host=person.older())) == "model: yes"
    assert person.asked == ["elicitation/create", "sampling/createMessage"]
    state = here.pool.list_states()[1]
    assert (state.era, state.sessions) == ("modern", 0)


async def test_only_the_shared_connection_says_what_the_server_offers(here: Bench):
    await here.call("test_elicitation", ELICIT, host=Person().older())
    told = [event.discovery.era for event in here.events if event.discovery]
    assert told == ["modern"]
    assert {event.era for event in here.events if event.era} == {"modern"}


async def test_hosts_that_cannot_be_asked_share_the_newer_connection(here: Bench):
    person = Person()
    able = person.older()
    for host in (Forwarding(), Forwarding(ABLE), replace(able, capabilities={}), person.modern()):
        assert await version(here, host) == "2026-07-28"
    assert here.pool.sessions.list_slots() == []


@pytest.mark.parametrize("kinds", [{"protocol": "modern"}, {"connect": "manual"}])
async def test_the_operators_choice_stays(bench: Make, address: str, kinds: dict[str, Any]):
    here = bench(http_target(address, questions=KINDS, **kinds))
    await here.pool.connect(1)
    assert await version(here, Person().older()) == "2026-07-28"


async def test_a_modern_host_is_asked_as_soon_as_the_tool_has_shown_how_it_asks(here: Bench):
    person = Person()
    with pytest.raises(InputNeeded, match=r"protocol version 2025-11-25 and earlier.*call again"):
        await here.call("test_elicitation", ELICIT, host=person.modern())
    assert not here.pool.is_asking_in_answers(1, ("tool", "test_elicitation"))
    assert said(await here.call("test_elicitation", ELICIT, host=person.modern())) == "accept: ann"
    assert "no back-channel" in said(await here.call("test_sampling", SAMPLE, host=person.modern()))
    assert said(await here.call("test_sampling", SAMPLE, host=person.modern())) == "model: yes"
    assert await version(here, person.modern()) == "2026-07-28"
    assert here.pool.is_asking_in_answers(1, ("tool", "pid"))


async def test_a_question_to_an_older_host_shows_it_for_modern_hosts_too(here: Bench):
    await here.call("test_elicitation", ELICIT, host=Person().older())
    assert (
        said(await here.call("test_elicitation", ELICIT, host=Person().modern())) == "accept: ann"
    )


async def test_a_tool_that_asks_with_its_result_is_called_on_the_newer_connection(here: Bench):
    person = Person()
    with pytest.raises(InputNeeded, match=r"protocol version 2026-07-28.*call again"):
        await here.call("in_rounds", host=person.older())
    asked = await here.call("in_rounds", host=person.older())
    assert asked["resultType"] == "input_required"
    answers = {"inputResponses": {"who": {"action": "accept", "content": {"username": "bob"}}}}
    assert (
        said(await here.call("in_rounds", host=replace(person.older(), answers=answers)))
        == "accept: bob"
    )


async def test_what_a_modern_host_has_shown_counts_for_older_hosts(here: Bench):
    assert (await here.call("in_rounds", host=Person().modern()))["resultType"] == "input_required"
    assert (await here.call("in_rounds", host=Person().older()))["resultType"] == "input_required"


async def test_nobody_is_told_to_call_again_where_that_does_not_help(bench: Make, address: str):
    here = bench(http_target(address, questions=KINDS, protocol="modern"))
    with pytest.raises(InputNeeded, match="set “Protocol” to “2025-11-25 and earlier”"):
        await here.call("test_elicitation", ELICIT, host=Person().modern())


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_a_server_of_one_version_has_one_connection(bench: Make, era: str):
    here = bench(stdio_target("crash", env={"FAKE_ERA": era}, questions=KINDS))
    first = said(await here.call("pid", host=Person().older()))
    assert said(await here.call("pid", host=Person().older())) == first
    assert said(await here.call("pid")) == first
    await until(lambda: not here.pool.sessions.list_slots())
    assert [event.kind for event in here.events if event.kind == "call_failed"] == []
    assert here.pool.list_states()[1].state == "connected"


async def test_a_refusal_of_the_older_handshake_is_not_asked_for_with_every_call(
    bench: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
):
    journal = tmp_path / "journal"
    here = bench(
        stdio_target(
            "crash", env={"FAKE_ERA": "modern", "FAKE_JOURNAL": str(journal)}, questions=KINDS
        )
    )
    for _ in range(3):
        await here.call("pid", host=Person().older())
    assert journal.read_text().count('"initialize"') == 1
    monkeypatch.setattr(routes, "RETRY_SECONDS", 0.0)
    for server in here.pool._routes._servers.values():
        server.refused_until = 0.0
    await here.call("pid", host=Person().older())
    assert journal.read_text().count('"initialize"') == 2


async def test_a_definition_that_the_older_connection_does_not_have_is_called_on_the_newer_one(
    here: Bench,
):
    person = Person()
    found = await here.pool.discover(1)
    tool = next(each for each in found.tools if each["name"] == "pid")
    definition = hash_definition(tool, found.instructions, "tool")
    assert await version(here, person.older(), definition=definition) == "2025-11-25"
    [older] = here.pool.sessions.list_slots()
    assert older.connection is not None
    other = hash_definition(tool | {"description": "New."}, found.instructions, "tool")
    here.pool._slots[1].connection.offers._hashes["tool", "pid"] = other  # type: ignore[union-attr]
    assert await version(here, person.older(), definition=other) == "2026-07-28"
    assert await version(here, person.older(), definition=definition, session="a/1") == "2025-11-25"


async def test_a_session_has_one_connection_whose_version_is_that_of_its_host(here: Bench):
    person = Person()
    assert await version(here, person.modern(), session="a/1") == "2026-07-28"
    assert await version(here, person.older(), session="a/1") == "2026-07-28"
    assert (
        said(await here.call("test_elicitation", ELICIT, host=person.older(), session="a/2"))
        == "accept: ann"
    )
    assert await version(here, person.modern(), session="a/2") == "2025-11-25"
    assert here.pool.list_states()[1].sessions == 2
    with pytest.raises(InputNeeded, match="set “Protocol” to “2025-11-25 and earlier”"):
        await here.call("test_elicitation", ELICIT, host=person.modern(), session="a/1")
    # A later session of a modern host is opened so that the tool can ask.
    assert (
        said(await here.call("test_elicitation", ELICIT, host=person.modern(), session="a/3"))
        == "accept: ann"
    )


async def test_sessions_at_a_server_of_the_newer_version_alone_are_opened_all_the_same(bench: Make):
    here = bench(stdio_target("crash", env={"FAKE_ERA": "modern"}, questions=KINDS))
    calls = [here.call("pid", host=Person().older(), session="a/1") for _ in range(3)]
    assert len({said(result) for result in await asyncio.gather(*calls)}) == 1
    assert here.pool.list_states()[1].sessions == 1


async def test_the_second_connection_goes_with_its_configuration(here: Bench):
    await here.call("test_elicitation", ELICIT, host=Person().older())
    target: ServerTarget = here.targets[1]
    here.targets[1] = replace(target, revision=2)
    assert (
        said(await here.call("test_elicitation", ELICIT, host=Person().older(), revision=2))
        == "accept: ann"
    )
    await here.pool.disconnect(1)
    assert here.pool.list_states() == {}


async def test_a_lost_second_connection_is_opened_again(
    bench: Make, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(health, "FIRST_DELAY", health.MAX_DELAY)
    here = bench(stdio_target("crash", questions=KINDS))
    older = Person().older()
    shared = said(await here.call("pid"))
    first = said(await here.call("pid", host=older))
    with pytest.raises(DownstreamError):
        await here.call("crash", host=older)
    assert len({shared, first, said(await here.call("pid", host=older))}) == 3
    for _ in range(2):
        with pytest.raises(DownstreamError):
            await here.call("crash", host=older)
    assert said(await here.call("pid", host=older)) == shared  # until it may be opened again
    assert here.pool.list_states()[1].state == "connected"
