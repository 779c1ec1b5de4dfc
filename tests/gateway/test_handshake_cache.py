"""The early answers of ``runmcp``: identical to the real ones, never stale, never twice.

On a site of its own with the embedded database, where an early ``tools/list`` is possible. Where a
host gets what was kept, a real command line starts beside the forked ones.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from mcp import StdioServerParameters

from mcpregistry.domain.snapshot import Snapshot
from mcpregistry.gateway.stdio import preload
from mcpregistry.gateway.stdio.handshake_cache import _rank_pairs, _read_wanted_times
from mcpregistry.gateway.stdio.kept_answers import get_lists_path, get_wanted_path
from tests import forkserver, migrated
from tests.externals import ROOT
from tests.fakes.stage import MODERN, RawHost, envelope, folder, raw_host
from tests.waiting import HANG_LIMIT, until

pytestmark = pytest.mark.e2e

ROWS = """
import django; django.setup()
from tests.fakes.stage import Stage, listed
stage = Stage({})
stage.endpoint(instructions="Ask first.")
stage.agent("local", stage.fake("echo", listed("echo", "pid")))
stage.endpoint("plain")
"""
ENDPOINTS = "naming_style, description_style, instructions"


class OwnSite:
    """Its configuration is changed as by another program: with SQL."""

    def __init__(self) -> None:
        self.var = folder()
        self.env = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
        self.env |= {"SLIPSNISSE_VAR": str(self.var)}
        migrated.put_into(self.var)
        self.run("-c", ROWS)
        self._rows = self._database(f"SELECT {ENDPOINTS}, id FROM mcpregistry_endpoint")

    def _database(self, statement: str, *values: Any) -> list[Any]:
        with (
            closing(
                sqlite3.connect(self.var / "slipsnisse.sqlite3", timeout=HANG_LIMIT)
            ) as database,
            database,
        ):
            return database.execute(statement, values).fetchall()

    def as_new(self) -> None:
        """Nothing is kept, and every endpoint is as it was."""
        shutil.rmtree(self.var / "openings", ignore_errors=True)
        for row in self._rows:
            self._database(
                f"UPDATE mcpregistry_endpoint SET ({ENDPOINTS}) = (?, ?, ?) WHERE id = ?", *row
            )

    def change(self, assignments: str) -> None:
        """Of every endpoint."""
        self._database(f"UPDATE mcpregistry_endpoint SET {assignments}")

    def run(self, *arguments: str) -> None:
        with open(os.devnull, "w") as nothing:
            assert (
                forkserver.popen(arguments, env=self.env, stdout=nothing).wait(2 * HANG_LIMIT) == 0
            )

    def web(self, *arguments: str) -> None:
        """A web process, until it has kept what ``programs/web.py`` says."""
        self.run("-m", "tests.gateway.programs.web", *arguments)

    def runmcp(self, *arguments: str) -> StdioServerParameters:
        """The real command line."""
        arguments = ("manage.py", "runmcp", *arguments)
        return StdioServerParameters(
            command=sys.executable, args=list(arguments), env=self.env, cwd=str(ROOT)
        )

    def late(self, lines: int, *arguments: str) -> StdioServerParameters:
        """Forked; the server is there once so many lines were read."""
        arguments = ("-m", "tests.gateway.programs.runmcp", str(lines), *arguments)
        return StdioServerParameters(
            command=sys.executable, args=list(arguments), env=self.env, cwd=str(ROOT)
        )

    def kept(self) -> list[Path]:
        return list((self.var / "openings").glob("*.json"))


def start(parameters: StdioServerParameters) -> Any:
    return raw_host(parameters, forked=parameters.args[0] == "-m")


@pytest.fixture(scope="module")
def site() -> OwnSite:
    return OwnSite()


@pytest.fixture
def own(site: OwnSite) -> OwnSite:
    site.as_new()
    return site


INFO = {"name": "raw", "version": "1"}
OPENINGS: dict[str, list[dict[str, Any]]] = {
    "legacy": [
        {
            "method": "initialize",
            "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": INFO},
        },
        {"method": "tools/list"},
    ],
    "modern": [
        {"method": "server/discover", "params": {"_meta": envelope()}},
        {"method": "tools/list", "params": {"_meta": envelope()}},
    ],
}


def mark(kept: Path) -> None:
    """To see that they are used: with other bytes in them, the host gets those."""
    answers = json.loads(kept.read_text()).items()
    marked = {
        question: [answer[0].replace("{", '{"mark":1,', 1), *answer[1:]]
        for question, answer in answers
    }
    kept.write_text(json.dumps(marked))


LINES = {"legacy": 3, "modern": 2}  # of an opening


async def converse(host: RawHost, era: str) -> list[dict[str, Any]]:
    """Open as a host of that era; the answers in order of asking."""
    for number, question in enumerate(OPENINGS[era]):
        host.send({"id": f"q{number}"} | question)
        if question["method"] == "initialize":
            host.send({"method": "notifications/initialized"})
    answers = [await host.answer(f"q{number}") for number in range(len(OPENINGS[era]))]
    meta = {"_meta": envelope()} if era == "modern" else {}
    call = await host.ask("call", "tools/call", name="echo__echo", arguments={"n": 1}, **meta)
    assert call.get("result", {}).get("structuredContent", {}).get("arguments", {"n": 1}) == {
        "n": 1
    }
    assert await host.end() == 0
    ids = [message["id"] for message in host.messages if "id" in message]
    assert sorted(ids) == ["call", "q0", "q1"]  # each once
    return answers


@pytest.mark.exhaustive
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_the_second_start_answers_the_same_from_kept_bytes(own, era):
    where = str(folder())
    late = own.late(LINES[era], "--cwd", where)
    async with start(late) as host:
        first = await converse(host, era)
    async with start(late) as host:
        assert await converse(host, era) == first
    (kept,) = own.kept()
    stored = json.loads(kept.read_text())
    assert len(stored) == 2
    mark(kept)
    async with start(own.runmcp("--cwd", where)) as host:
        answers = await converse(host, era)
        assert [answer["result"].pop("mark") for answer in answers] == [1, 1]
        assert answers == first
    assert json.loads(kept.read_text()) == stored  # and the real ones are kept again


LISTEN = {
    "method": "subscriptions/listen",
    "params": {"notifications": {"toolsListChanged": True}, "_meta": envelope()},
}
ACK = "notifications/subscriptions/acknowledged"


def acks(host: RawHost) -> list[dict[str, Any]]:
    return [message for message in host.messages if message.get("method") == ACK]


async def test_a_change_stream_is_acknowledged_at_once_in_the_servers_own_words_and_then_works(own):
    """Modern hosts wait for it before they ask for the tools; so all three come before the server
    is loaded."""
    where = str(folder())
    opening, tools = OPENINGS["modern"]
    async with start(own.late(1, "--cwd", where)) as host:
        host.send({"id": "q0"} | opening)
        await host.answer("q0")
        host.send({"id": "listen:0"} | LISTEN)
        real = await host.until(lambda m: m.get("method") == ACK)
        host.send({"id": "q1"} | tools)
        await host.answer("q1")
        assert await host.end() == 0
    for kept in own.kept():
        mark(kept)
    async with start(own.late(3, "--cwd", where)) as host:
        host.send({"id": "q0"} | opening, {"id": "listen:0"} | LISTEN, {"id": "q1"} | tools)
        early = await host.until(lambda m: m.get("method") == ACK)
        assert early == real
        listed = await host.answer("q1")
        assert listed["result"].pop("mark") == 1, "from kept bytes: the server was not there yet"
        meta = {"_meta": envelope()}
        assert "result" in await host.ask(
            "call", "tools/call", name="echo__echo", arguments={"n": 1}, **meta
        )
        own.change("description_style = 'bracket'")
        await host.until(lambda m: m.get("method") == "notifications/tools/list_changed")
        assert len(acks(host)) == 1
        assert await host.end() == 0


async def test_a_change_stream_of_more_than_lists_is_left_to_the_server(own):
    async with start(own.late(2, "--cwd", str(folder()))) as host:
        params = {"notifications": {"toolsListChanged": True, "taskIds": []}, "_meta": envelope()}
        host.send({"id": "q0"} | OPENINGS["modern"][0], {"id": "l"} | LISTEN | {"params": params})
        assert (await host.answer("l"))["error"]["code"] == -32021, (
            "this host takes no tasks, as the server knows"
        )
        assert await host.end() == 0
        assert acks(host) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_the_very_first_start_answers_an_opening_with_what_a_web_process_kept(own, era):
    """From the same bytes; not where some endpoint has instructions, and not what a forced era
    would refuse."""
    own.web("common.json")
    common = own.var / "openings" / "common.json"
    mark(common)

    async def opened(parameters: StdioServerParameters) -> dict[str, Any]:
        async with start(parameters) as host:
            host.send({"id": "q0"} | OPENINGS[era][0])
            answer = await host.answer("q0")
            await host.end()  # it may have been answered before anything was loaded
        return answer

    def anywhere() -> tuple[str, str]:
        return "--cwd", str(folder())

    told = await opened(own.late(1, *anywhere()))
    assert "mark" not in told["result"]
    own.change("instructions = ''")
    first = (await opened(own.runmcp(*anywhere())))["result"]
    assert first.pop("mark") == 1
    assert "mark" not in (await opened(own.late(1, *anywhere(), "--era", "legacy"))).get(
        "result", {}
    )
    common.unlink()
    assert (await opened(own.late(1, *anywhere())))["result"] == first


@pytest.mark.exhaustive
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_the_very_first_start_answers_with_the_list_that_a_web_process_kept(own, era):
    """The real server's own bytes; no others once the configuration has changed, until they are
    kept anew."""
    named = ("--endpoint", "default", "--agent", "local")
    late = own.late(LINES[era], *named)
    lists = own.var / "openings" / "lists"
    own.web("lists/*.json")
    assert get_lists_path(own.var, "default", "local").exists()  # the likeliest comes first

    async def listed(parameters: StdioServerParameters) -> tuple[dict[str, Any], list[str]]:
        shutil.rmtree(own.var / "openings", ignore_errors=True)
        shutil.copytree(kept, lists)
        async with start(parameters) as host:
            tools = (await converse(host, era))[1]["result"]
        return tools, [message["method"] for message in host.messages if "method" in message]

    kept = folder() / "lists"
    shutil.copytree(lists, kept)
    tools, told = await listed(late)
    assert ([tool["name"] for tool in tools["tools"]], told) == (["echo__echo", "echo__pid"], [])
    mark(kept / get_lists_path(own.var, "default", "local").name)
    assert (await listed(own.runmcp(*named)))[0]["mark"] == 1
    own.change("naming_style = 'single'")
    tools, _ = await listed(late)
    assert [tool["name"] for tool in tools["tools"]] == ["echo_echo", "echo_pid"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_an_opening_that_is_kept_while_the_server_loads_is_answered_from_it(own, era):
    """As right after a change: the endpoint has instructions, and what was kept before does not
    count any more."""
    named = ("--endpoint", "default", "--agent", "local")
    own.web("lists/*.json", "naming_style = 'single'", "echo_echo")
    path = get_lists_path(own.var, "default", "local")
    mark(path)
    path.rename(later := path.with_suffix(".later"))
    opening, listing = OPENINGS[era]
    # the opening alone does not bring the server
    async with start(own.late(LINES[era], *named)) as host:
        host.send({"id": "q0"} | opening)
        await until(get_wanted_path(own.var, "default", "local").exists)
        later.rename(path)
        first = (await host.answer("q0"))["result"]
        assert (first["mark"], first["instructions"]) == (1, "Ask first.")
        if era == "legacy":
            host.send({"method": "notifications/initialized"})
        host.send({"id": "q1"} | listing)
        tools = (await host.answer("q1"))["result"]["tools"]
        assert [tool["name"] for tool in tools] == ["echo_echo", "echo_pid"]
        assert await host.end() == 0
    assert sorted(message["id"] for message in host.messages if "id" in message) == ["q0", "q1"]


def test_a_web_process_prepares_those_first_that_were_started_last(tmp_path: Path) -> None:
    names = [f"n{number:02}" for number in range(40)]
    snapshot = cast(
        "Snapshot",
        SimpleNamespace(endpoints={"default", *names}, agents={"local", *names}, workspaces=()),
    )
    assert _rank_pairs(snapshot, {}, tmp_path)[0] == ("default", "local")
    for at, pair in enumerate([("n39", "n38"), ("n20", "n21")]):
        path = get_wanted_path(tmp_path, *pair)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (at + 1, at + 1))
    pairs = _rank_pairs(snapshot, _read_wanted_times(tmp_path), tmp_path)
    assert pairs[:3] == [("n20", "n21"), ("n39", "n38"), ("default", "local")]
    assert len(pairs) == len(set(pairs)) == 41 * 41


@pytest.mark.exhaustive
async def test_after_a_change_a_web_process_keeps_the_list_anew(own):
    own.web("lists/*.json", "naming_style = 'single'", "echo_echo")
    mark(get_lists_path(own.var, "default", "local"))
    async with start(own.late(1, "--agent=local", "--endpoint=default")) as host:
        host.send({"id": "q0"} | OPENINGS["modern"][1])
        tools = (await host.answer("q0"))["result"]
        await host.end()
    assert (tools["mark"], [tool["name"] for tool in tools["tools"]]) == (
        1,
        ["echo_echo", "echo_pid"],
    )


@pytest.mark.parametrize(
    ("arguments", "agent"),
    [
        ([], ""),
        (["--agent"], ""),
        (["--agent", "ann"], "ann"),
        (["--endpoint", "e", "--agent=ann", "--era", "auto"], "ann"),
        (["--agent", "bob", "--agent", "ann"], "ann"),
    ],
)
def test_whom_the_command_line_names(arguments: list[str], agent: str) -> None:
    assert preload._find_option(arguments, "--agent") == agent


@pytest.mark.exhaustive
async def test_damaged_kept_bytes_are_no_obstacle(own):
    parameters = own.late(LINES["legacy"], "--cwd", str(folder()))
    async with start(parameters) as host:
        first = await converse(host, "legacy")
    (kept,) = own.kept()
    for damage in ("", "{", "[]", '{"initialize 2025-06-18": 5}', '{"initialize 2025-06-18": []}'):
        kept.write_text(damage)
        async with start(parameters) as host:
            assert await converse(host, "legacy") == first


@pytest.mark.exhaustive(but=("legacy",))
@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_a_probe_and_then_a_handshake_on_one_pipe_get_what_the_sdk_says(own, era):
    """Whatever is kept: the first line decides the era, unless it was told to be the older one."""
    where = ("--era", era, "--cwd", str(folder()))
    probe = OPENINGS["modern"][0]
    handshake = OPENINGS["legacy"][0]
    for alone in (probe, handshake):  # both answers are kept, if there are any
        async with start(own.late(1, *where)) as host:
            host.send({"id": 1} | alone)
            await host.answer(1)
            await host.end()
    async with start(own.late(2, *where)) as host:
        host.send({"id": 1} | probe, {"id": 2} | handshake)
        answers = [await host.answer(1), await host.answer(2)]
        await host.end()
        assert len(host.messages) == 2
    if era == "auto":
        assert answers[0]["result"]["supportedVersions"] == [MODERN]
        assert answers[1]["error"]["code"] == -32022
    else:
        assert answers[0]["error"]["code"] == -32601
        assert answers[1]["result"]["protocolVersion"] == "2025-06-18"


async def test_nothing_stale_is_said_after_a_change(own):
    parameters = own.late(LINES["legacy"], "--cwd", str(folder()))
    for _ in range(2):
        async with start(parameters) as host:
            opened, tools = await converse(host, "legacy")
    assert opened["result"]["instructions"] == "Ask first."
    own.change("naming_style = 'single', instructions = 'Ask twice.'")
    async with start(parameters) as host:
        opened, tools = await converse(host, "legacy")
    assert opened["result"]["instructions"] == "Ask twice."
    assert [tool["name"] for tool in tools["result"]["tools"]] == ["echo_echo", "echo_pid"]


_START = """
import json, sys, threading
from pathlib import Path
from mcpregistry.gateway.stdio.kept_answers import StoredAnswer
from mcpregistry.gateway.stdio.preload import claim_pipe
door = claim_pipe(Path(sys.argv[1]), json.loads(sys.argv[2]))
door.set_variables(json.loads(sys.argv[4]))
[thread.join() for thread in threading.enumerate() if thread.name == "stdin"]
door.settle_answer("1", StoredAnswer(sys.argv[3]))
"""


class Files:
    """Starts of ``runmcp --config``, each of which is asked for its list."""

    def __init__(self, folder: Path) -> None:
        self.var = folder / "var"
        self.file = folder / "experts.yaml"
        self.words = ["--config", str(self.file)]
        self.env = {
            name: value
            for name, value in os.environ.items()
            if "DATABASE" not in name and "CELERY" not in name
        }

    def said(self, result: str, *variables: str) -> str:
        """What the host hears early; ``result`` is the real answer, ``variables`` what is referred
        to besides."""
        meta = {"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}}
        asked = (
            json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": meta}) + "\n"
        )
        argv = [
            sys.executable,
            "-S",
            "-c",
            _START,
            str(self.var),
            json.dumps(self.words),
            result,
            json.dumps(variables),
        ]
        return subprocess.run(
            argv, cwd=ROOT, env=self.env, input=asked, capture_output=True, text=True, check=True
        ).stdout

    def again(self, result: str, *variables: str) -> None:
        """What was kept does not count any more, and what is kept instead does."""
        assert self.said(result, *variables) == ""
        assert result in self.said(result, *variables)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    made = Files(tmp_path)
    made.file.write_text("tools: [one]")
    made.again('{"tools":["one"]}')
    return made


def test_a_list_made_of_a_file_is_said_again_only_while_the_file_is_the_same(files):
    """An edited one may be refused, and then its host must not have seen what it offered before."""
    files.file.write_text("tools: [two]")
    files.again('{"tools":["two"]}')
    (kept,) = (files.var / "openings").iterdir()
    assert "one" not in kept.read_text()


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize(
    "text", ["command: ${TOOL_DIR}/x", "url: http://x/{env:TOOL_DIR}", 'key: "${env:TOOL_DIR:-d}"']
)
def test_a_list_made_of_a_file_is_said_again_only_while_its_variables_are_the_same(files, text):
    """Without one of them it is refused."""
    files.file.write_text(text)
    files.env["TOOL_DIR"] = "/opt/secret"
    files.again('{"tools":["a"]}')
    (kept,) = (files.var / "openings").iterdir()
    assert "secret" not in kept.read_text()
    del files.env["TOOL_DIR"]
    files.again('{"tools":["b"]}')


def test_list_of_a_directory_is_repeated_only_while_its_project_files_are_the_same(files, tmp_path):
    files.words = ["--workspace", "--cwd", str(tmp_path)]
    (tmp_path / ".mcp.json").write_text("{}")
    files.again('{"tools":["one"]}')
    (tmp_path / ".cursor").mkdir()
    (tmp_path / ".cursor" / "mcp.json").write_text("{}")
    files.again('{"tools":["two"]}')


@pytest.mark.exhaustive
def test_so_it_is_with_variables_that_only_a_record_refers_to(files):
    """A record that begins to refer to one has changed the configuration, and with it the revision
    of the list."""
    files.env["SOME_KEY"] = "k"
    # the first start does not know of it when it is asked, or just so
    files.said('{"tools":["a"]}', "SOME_KEY")
    assert '{"tools":["a"]}' in files.said('{"tools":["a"]}', "SOME_KEY")
    del files.env["SOME_KEY"]
    files.again('{"tools":["b"]}', "SOME_KEY")


@pytest.mark.exhaustive
def test_a_site_that_has_started_meanwhile_may_not_know_the_keys_of_a_file(files):
    """Its workers are asked, and the file is refused if they do not get them."""
    (files.var / "up.lock").write_text("4711")
    files.again('{"tools":["b"]}')
    files.env["CELERY_BROKER_URL"] = "redis://broker"  # whose workers start and end unseen
    assert (files.said('{"tools":["c"]}'), files.said('{"tools":["c"]}')) == ("", "")
