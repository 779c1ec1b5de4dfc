"""Servers that end at any message before ``initialize`` or answer it oddly, and the reason of a
failed handshake."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcpregistry.domain.errors import ConnectionFailed, ProtocolError, TimedOut
from mcpregistry.domain.servers.target import ServerLimits, ServerTarget
from mcpregistry.downstream.peers.neighbours import is_alive
from mcpregistry.downstream.pool.handshakes import REMEMBERED_FOR, RememberedEras
from mcpregistry.downstream.pool.server_probe import ProbeProgress, probe_once, send_only
from mcpregistry.downstream.transports.stdio import StdioChannel
from tests.downstream.conftest import Bench, gone
from tests.fakes.targets import stdio_target
from tests.waiting import until

Make = Callable[..., Bench]


def opening(
    mode: str, journal: Path | None = None, era: str = "legacy", **changes: Any
) -> ServerTarget:
    env = {"FAKE_ERA": era, "FAKE_OPENING": mode} | (
        {"FAKE_JOURNAL": str(journal)} if journal else {}
    )
    return stdio_target("opening", env=env, **changes)


def methods(journal: Path) -> list[str]:
    return [json.loads(line).get("method", "") for line in journal.read_text().splitlines()]


def openings(journal: Path) -> list[str]:
    return [method for method in methods(journal) if method in ("server/discover", "initialize")]


@pytest.mark.fault
@pytest.mark.parametrize("mode", ["strict", "refuses"])
async def test_a_server_that_bears_nothing_before_initialize_is_started_again(
    bench: Make, mode: str
):
    here = bench(opening(mode))
    assert (await here.call("pid"))["content"]
    assert [each.state for each in here.events if each.kind == "state"] == [
        "connecting",
        "connected",
    ]


@pytest.mark.fault
async def test_the_handshake_that_worked_is_used_the_next_time(bench: Make, tmp_path: Path):
    journal = tmp_path / "journal"
    journal.touch()
    here = bench(opening("refuses", journal))
    pid = int((await here.call("pid"))["content"][0]["text"])
    before = len(openings(journal))
    await here.pool.disconnect(1)
    await gone(pid)
    await here.call("pid")
    assert openings(journal)[before:] == ["initialize"]


@pytest.mark.fault
async def test_the_handshake_that_is_known_is_used_first(bench: Make, tmp_path: Path):
    journal = tmp_path / "journal"
    await bench(opening("silent", journal, last_era="legacy")).call("pid")
    assert openings(journal) == ["initialize"]


async def test_a_server_that_speaks_only_the_newer_protocol_by_now_is_asked_again(bench: Make):
    here = bench(opening("", era="modern", last_era="legacy"))
    found = await here.pool.discover(1)
    assert found.era == "modern"


@pytest.mark.exhaustive
@pytest.mark.fault
async def test_a_server_that_never_answers_is_tried_with_the_older_handshake_next(
    bench: Make, tmp_path: Path
):
    journal = tmp_path / "journal"
    here = bench(opening("deaf", journal, limits={"connect_timeout": 2.0}))
    with pytest.raises(TimedOut, match="set “Protocol” to “2025-11-25 and earlier”"):
        await here.pool.discover(1)
    here.targets[1] = replace(here.targets[1], limits=ServerLimits())
    await here.pool.reconnect(1)
    assert openings(journal) == ["initialize"]
    assert (await here.call("pid"))["content"]


async def test_what_a_process_remembers_ends_with_the_record_and_with_time():
    target = opening("", last_era="")
    now = 0.0

    async def read(server_id: int) -> ServerTarget:
        return target

    eras = RememberedEras(read, lambda: now)
    eras.note(await eras(1), "legacy")
    assert (await eras(1)).last_era == "legacy"
    target = replace(target, last_era="legacy")  # on record now
    await eras(1)
    target = replace(target, last_era="")  # and forgotten there
    assert (await eras(1)).last_era == ""
    eras.note(await eras(1), "legacy")
    now = REMEMBERED_FOR + 1
    assert (await eras(1)).last_era == ""


ODD = {
    "draft": "protocol version 'DRAFT-2025-v2'",
    "number": "protocolVersion",
    "no version": "protocolVersion",
    "no info": "serverInfo",
    "info": "serverInfo.version",
    "capabilities": "capabilities.tools",
}


@pytest.mark.fault
@pytest.mark.parametrize("mode", ODD)
async def test_the_reason_of_a_failed_handshake_is_the_real_one(bench: Make, mode: str):
    here = bench(opening(mode))
    report = await probe_once(here.targets[1], None, ProbeProgress(), send_only)
    assert isinstance(report.error, ProtocolError)
    assert ODD[mode] in report.error.message
    assert report.error.remedy


@pytest.mark.fault
async def test_the_words_of_a_server_that_refuses_the_handshake_are_passed_on_without_secrets(
    bench: Make,
):
    here = bench(opening("never", secrets=frozenset({"hush-hush"})))
    with pytest.raises(ConnectionFailed, match="The first message was not initialize") as caught:
        await here.pool.discover(1)
    assert "hush-hush" not in str(caught.value)
    assert "“Protocol”" in caught.value.remedy


@pytest.mark.fault
async def test_a_server_that_ends_at_every_handshake_says_so(bench: Make):
    here = bench(stdio_target("crash", env={"FAKE_CRASH": "start"}))
    with pytest.raises(ConnectionFailed, match="closed the connection") as caught:
        await here.pool.discover(1)
    assert "stderr" in caught.value.remedy


@pytest.mark.fault
async def test_a_server_that_ends_before_it_reads_anything_is_started_once(
    bench: Make, tmp_path: Path
):
    counter = tmp_path / "starts"
    here = bench(stdio_target("flaky", env={"FAKE_COUNTER": str(counter), "FAKE_FAILURES": "1"}))
    with pytest.raises(ConnectionFailed, match="closed the connection"):
        await here.pool.connect(1)
    assert len(counter.read_text()) == 1


@pytest.mark.fault
@pytest.mark.parametrize("is_noticed", [True, False])
async def test_a_server_that_ends_before_anything_is_written_is_started_once(
    bench: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_noticed: bool
):
    """``is_noticed``: this side knows that it has ended when it would write the first message."""
    open_channel = StdioChannel.open
    opened = []

    async def open_and_wait(channel: StdioChannel) -> None:
        await open_channel(channel)
        opened.append(channel)
        if len(opened) > 1:
            return  # started again: that is the defect
        if is_noticed:
            await until(lambda: channel.error is not None)
        else:  # nothing else runs meanwhile
            assert channel.pid is not None
            while is_alive(channel.pid):
                time.sleep(0.001)

    monkeypatch.setattr(StdioChannel, "open", open_and_wait)
    counter = tmp_path / "starts"
    here = bench(stdio_target("flaky", env={"FAKE_COUNTER": str(counter), "FAKE_FAILURES": "1"}))
    with pytest.raises(ConnectionFailed):
        await here.pool.connect(1)
    assert len(counter.read_text()) == 1
