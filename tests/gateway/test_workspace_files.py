"""``runmcp --workspace`` as hosts start it: the file of the directory, a person's confirmation, and
the tools after it."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from mcpregistry.domain.hosts.table import HOSTS
from mcpregistry.models import ProjectFile, Server
from mcpregistry.services.exchange.projects import confirm_project, take_back_project
from mcpregistry.services.hosts.connecting import connect
from mcpregistry.services.hosts.files import open_user_file
from tests.fakes.stage import ACTOR, RawHost, Stage, folder, listed, outside, raw_host
from tests.fakes.targets import SERVERS

pytestmark = [pytest.mark.e2e, pytest.mark.one_database]
STATUS = "mcp_workspace_status"


def entry(program: str, *names: str, **env: str) -> dict[str, Any]:
    env = {"FAKE_LISTED": json.dumps(listed(*names))} | env
    return {"command": sys.executable, "args": ["-S", str(SERVERS / f"{program}.py")], "env": env}


def write(directory: Path, name: str = ".mcp.json", **servers: dict[str, Any]) -> Path:
    file = directory / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"mcpServers": servers}))
    return file


@pytest.fixture
def project() -> Iterator[Path]:
    """A directory whose server is called ``git`` and writes its process id as soon as it starts."""
    directory = folder() / "shop"
    directory.mkdir()
    write(directory, git=entry("echo", "echo", "pid"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module", autouse=True)
def _calls_run(stage: Stage) -> None:
    """Let every call run, so that the tool about held calls is not listed."""
    stage.endpoint()


def start(stage: Stage, directory: Path, *words: str, **env: str) -> Any:
    return raw_host(
        stage.runmcp("--workspace", "--cwd", str(directory), *words, **env), forked=True
    )


class Asking:
    """One host and the numbers of its requests."""

    def __init__(self, host: RawHost) -> None:
        self.host = host
        self.number = 0

    async def ask(self, method: str, **params: Any) -> Any:
        self.number += 1
        answer = await self.host.ask(self.number, method, **params)
        return answer.get("result", answer)

    async def tools(self) -> dict[str, dict[str, Any]]:
        return {tool["name"]: tool for tool in (await self.ask("tools/list"))["tools"]}

    async def names_after_change(self, count: int) -> set[str]:
        """The names of the tools after so many notifications of changes."""
        await self.host.until(lambda _: self._changes() >= count)
        return set(await self.tools())

    async def names_until(self, expected: set[str]) -> set[str]:
        """The names of the tools as soon as they are these: asked again after each reported
        change."""
        count = 0
        while (names := set(await self.tools())) != expected:
            count = max(count + 1, self._changes())
            await self.names_after_change(count)
        return names

    def _changes(self) -> int:
        return sum(
            each.get("method") == "notifications/tools/list_changed" for each in self.host.messages
        )


def confirm(directory: Path) -> ProjectFile:
    row = ProjectFile.objects.get(directory=str(directory))
    return confirm_project(project=row, shown=row.content, actor=ACTOR)


@pytest.mark.exhaustive  # a host starts the whole program
async def test_entry_that_connect_writes_serves_the_file_of_the_directory(stage, project, tmp_path):
    file = open_user_file(HOSTS["claude-code"], {"HOME": str(tmp_path)})
    await outside(lambda: connect(file=file, endpoint="", agent="", http=False, actor=ACTOR))
    (entry,) = json.loads(file.path.read_text())["mcpServers"].values()
    env = stage.env | entry["env"]
    started = StdioServerParameters(
        command=entry["command"], args=entry["args"], env=env, cwd=str(project)
    )
    async with Client(stdio_client(started)) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == [STATUS]
        result = await client.call_tool(STATUS, {})
    assert str(project / ".mcp.json") in result.content[0].text
    await outside(ProjectFile.objects.filter(directory=str(project)).delete)


async def test_nothing_of_the_file_runs_until_a_person_confirms_and_then_both_hosts_get_the_tools(
    stage, project
):
    async with start(stage, project) as first, start(stage, project) as second:
        hosts = [Asking(first), Asking(second)]
        for host in hosts:
            await host.host.handshake()
        for host in hosts:
            tools = await host.tools()
            assert set(tools) == {STATUS}
            called = await host.ask("tools/call", name=STATUS, arguments={})
            for report in (tools[STATUS]["description"], called["content"][0]["text"]):
                assert str(project / ".mcp.json") in report
                assert "git: " in report
                assert "echo.py" in report
                assert "confirmworkspace" in report
                assert "/admin/mcpregistry/projectfile/" in report
            assert not host.host.runs("echo.py")
            refused = await host.ask("tools/call", name="git__echo", arguments={})
            assert "Unknown tool" in json.dumps(refused)
        assert not await outside(Server.objects.exists)
        row = await outside(confirm, project)
        for host in hosts:
            assert await host.names_until({"git__echo", "git__pid"})
            answer = await host.ask("tools/call", name="git__echo", arguments={"a": 1})
            assert "content" in answer, answer
            assert not answer.get("isError"), answer
        server = await outside(Server.objects.get)
        assert (server.slug, server.only_on) == ("git", row.endpoint_slug)
        await outside(lambda: take_back_project(project=ProjectFile.objects.get(), actor=ACTOR))
        for host in hosts:
            assert await host.names_until({STATUS})
            assert await host.host.end() == 0
    async with start(stage, project) as again:
        host = Asking(again)
        await again.handshake()
        assert set(await host.tools()) == {STATUS}
        assert await again.end() == 0


@pytest.mark.exhaustive
async def test_a_changed_file_stops_what_changed_and_a_variable_of_the_host_reaches_its_server(
    stage, project
):
    (project / ".mcp.json").unlink()
    given = entry("envdump", "env", GIVEN="${PROJECT_TOKEN}", KEPT="${SLIPSNISSE_KEYS}")
    servers = {"echo": entry("echo", "echo"), "env": given}
    file = write(project, ".cursor/mcp.json", **servers)
    async with start(stage, project, PROJECT_TOKEN="of-the-host") as raw:
        host = Asking(raw)
        await raw.handshake()
        assert set(await host.tools()) == {STATUS}
        await outside(confirm, project)
        assert await host.names_until({"echo__echo", "env__env"})
        answer = await host.ask("tools/call", name="env__env", arguments={})
        found = json.loads(answer["content"][0]["text"])["env"]
        assert found["GIVEN"] != "${PROJECT_TOKEN}"
        assert "KEPT" not in found
        # One is changed and one is new: both wait, and the third stays.
        write(
            project,
            ".cursor/mcp.json",
            echo=servers["echo"],
            env=given | {"cwd": str(project)},
            more=entry("echo", "more"),
        )
        assert await host.names_until({"echo__echo", STATUS})
        file.write_text("{ no JSON")
        await raw.until(lambda _: "tools/list_changed" in str(raw.messages[-1]))
        assert await host.names_until({STATUS})
        report = (await host.tools())[STATUS]["description"]
        assert str(file) in report
        assert await raw.end() == 0
    states = dict(
        await outside(
            lambda: list(
                Server.objects.filter(slug__in=["echo", "env", "more"]).values_list(
                    "slug", "lifecycle"
                )
            )
        )
    )
    assert states == {"echo": "draft", "env": "draft"}
