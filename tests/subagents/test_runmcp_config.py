"""``runmcp --config FILE`` as a host starts it: the first source design's example on real servers,
nothing else running."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
import yaml
from mcp import Client, MCPError
from mcp.client.stdio import StdioServerParameters, stdio_client

from mcpregistry.db import db_call
from mcpregistry.models import Definition, Endpoint, Invocation, PolicyRule, Server, Tool
from mcpregistry.models.server import Lifecycle
from mcpregistry.services.definitions import observe
from mcpregistry.services.servers import lifecycle
from subagents.domain.lifecycle import RunState
from subagents.llm.scripted.app import ScriptedModels
from subagents.llm.scripted.local_server import run_server
from subagents.llm.scripted.script import load
from subagents.models import ExpertTool, Provider, Run, ToolCall
from tests import forkserver
from tests.domain.formats.samples import sample
from tests.externals import ROOT
from tests.fakes.journals import called
from tests.fakes.stage import listed, raw_host
from tests.fakes.targets import SERVERS
from tests.processes import alive
from tests.subagents.kit import calls, ready_provider
from tests.tasks import worker
from tests.waiting import HANG_LIMIT, until

pytestmark = [pytest.mark.e2e, pytest.mark.one_database]
BIN = Path(sys.executable).parent
# bytes of text in each
COMMITS = 20
SIZE = 11_000
MODEL = "gemini-2.0-flash-001"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository whose every commit adds a page of text, each below what a tool result may
    hold."""
    path = tmp_path_factory.mktemp("repository")
    git = ["git", "-C", str(path), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    for number in range(COMMITS):
        (path / f"page-{number}.txt").write_text(
            f"page {number}: the crate answers.\n" * (SIZE // 30)
        )
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-q", "-m", f"Page {number}"], check=True)
    return path


@pytest.fixture
def scripted(live_db: None, repository: Path) -> Iterator[ScriptedModels]:
    """The provider "google" of the file, which is a script here: one field makes it the real
    one."""

    def show(first: int) -> dict[str, Any]:
        revisions = [
            f"HEAD~{number}" if number else "HEAD" for number in range(first, first + COMMITS // 2)
        ]
        return calls(
            *(
                ("git__git_show", {"repo_path": str(repository), "revision": each})
                for each in revisions
            )
        )

    turns = [
        show(0),
        show(COMMITS // 2),
        calls(("time__get_current_time", {"timezone": "Etc/UTC"})),
        {"text": "Use the crate of page 19. Checked: {{ last.text | first:120 }}"},
    ]
    with provided(turns) as models:
        yield models


@pytest.fixture
def endless(live_db: None) -> Iterator[None]:
    """A model whose first tool call goes on for minutes."""
    with provided([calls(("git__git_show", {"steps": 1000, "pause": 0.5}))]):
        yield


@contextlib.contextmanager
def provided(turns: list[dict[str, Any]]) -> Iterator[ScriptedModels]:
    models = ScriptedModels(load({MODEL: {"turns": turns}}))
    with run_server(models) as base:
        ready_provider("google", base_url=f"{base}/v1")
        yield models


GIT_TOOLS = ("git_show", "git_log", "git_status")
TIME_TOOLS = ("get_current_time", "convert_time")


def stand_in(program: str, *names: str, **env: str) -> dict[str, Any]:
    """A server that offers these tools and starts in a moment, where it does not matter what they
    do."""
    command = ["-S", str(SERVERS / f"{program}.py")]
    return {
        "command": sys.executable,
        "args": command,
        "env": {"FAKE_LISTED": json.dumps(listed(*names))} | env,
    }


QUICK = {"git": stand_in("echo", *GIT_TOOLS), "time": stand_in("echo", *TIME_TOOLS)}


def example(path: Path, servers: dict[str, Any], **changes: Any) -> Path:
    """The example of the first source design with these servers in place of its own."""
    data = yaml.safe_load(sample("slipsnisse/worked_example.yaml"))
    data["mcps"] = servers
    tools = {"git": ["git_show", "git_log"], "time": ["get_current_time"]}
    data["tools"][0] |= {"internal_tools": tools, "max_seconds": int(4 * HANG_LIMIT)} | changes
    file = path / "slipsnisse.config.yaml"
    file.write_text(yaml.safe_dump(data, sort_keys=False))
    return file


@pytest.fixture
def file(tmp_path: Path, repository: Path, scripted: ScriptedModels) -> Path:
    """On the two demo servers."""
    git = {"command": str(BIN / "mcp-server-git"), "args": ["--repository", str(repository)]}
    return example(
        tmp_path, {"git": git, "time": {"command": str(BIN / "mcp-server-time"), "args": []}}
    )


def runmcp(env: dict[str, str], file: Path) -> StdioServerParameters:
    arguments = ["manage.py", "runmcp", "--config", str(file)]
    return StdioServerParameters(command=sys.executable, args=arguments, env=env, cwd=str(ROOT))


@contextlib.asynccontextmanager
async def host(
    parameters: StdioServerParameters, seen: list[str], mode: str = "legacy"
) -> AsyncIterator[Client]:
    """The SDK's client; ``seen`` gets every message that reaches the host, as it was written."""

    @contextlib.asynccontextmanager
    async def transport(log: Any) -> AsyncIterator[Any]:
        async with (
            stdio_client(parameters, errlog=log) as (read, write),
            anyio.create_task_group() as tasks,
        ):
            to_client, out = anyio.create_memory_object_stream[Any](0)

            async def pump() -> None:
                async with to_client:
                    async for message in read:
                        if not isinstance(message, Exception):
                            seen.append(
                                message.message.model_dump_json(by_alias=True, exclude_unset=True)
                            )
                        await to_client.send(message)

            tasks.start_soon(pump)
            yield out, write
            tasks.cancel_scope.cancel()

    with tempfile.TemporaryFile("w+") as log:
        async with Client(
            transport(log), mode=mode, cache=None, read_timeout_seconds=4 * HANG_LIMIT
        ) as client:  # type: ignore[arg-type]
            yield client


def read_bytes() -> int:
    """What the run's model was given by tools."""
    return sum(len(text.encode()) for text in ToolCall.objects.values_list("result", flat=True))


async def test_the_example_of_the_first_source_design_runs_and_answers_in_few_words(
    file: Path, site_env: dict[str, str]
) -> None:
    seen: list[str] = []
    async with host(runmcp(site_env, file), seen) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert "research_dependency" in names
        assert not any("git" in name or "time" in name for name in names)
        result = await client.call_tool(
            "research_dependency", {"query": "Which crate parses dates?"}
        )
        transcript = sum(map(len, seen))
        for name in ("git__git_log", "git::git_log", "git_log"):
            with pytest.raises(MCPError, match=f"Unknown tool: {name}"):
                await client.call_tool(name, {"repo_path": "."})
    assert result.content[0].text.startswith("Use the crate of page 19."), result  # type: ignore[union-attr]
    assert not result.is_error
    assert (await db_call(Run.objects.get)).state == RunState.DONE
    read = await db_call(read_bytes)
    print(f"the run read {read} bytes, the host saw {transcript}")
    assert read >= 200_000
    assert transcript < 4_096
    used = await db_call(
        lambda: set(Invocation.objects.filter(origin="run").values_list("tool_name", flat=True))
    )
    assert used == {"git_show", "get_current_time"}


@pytest.mark.exhaustive
async def test_a_file_is_vouched_for_by_whoever_names_it_and_no_further(
    tmp_path: Path, scripted: ScriptedModels, site_env: dict[str, str]
) -> None:
    file = example(tmp_path, QUICK)
    async with raw_host(runmcp(site_env, file), forked=True) as raw:
        await raw.handshake()
        await raw.ask(1, "tools/list")
        assert await raw.end() == 0

    def look() -> None:
        assert set(Server.objects.values_list("lifecycle", flat=True)) == {Lifecycle.ACTIVE}
        approved = Tool.objects.filter(pinned__isnull=False).values_list("name", flat=True)
        assert set(approved) == {"git_show", "git_log", "get_current_time"}
        endpoint = Endpoint.objects.get(slug__startswith="slipsnisse.config-")
        assert endpoint.scope == Endpoint.Scope.LISTED
        expert = ExpertTool.objects.get()
        assert [agent.slug for agent in expert.users.all()] == ["local"]
        assert [each.slug for each in expert.endpoints.all()] == [endpoint.slug]
        rule = PolicyRule.objects.get()
        assert (rule.agent, rule.outcome, rule.priority) == (expert.agent, "allow", 50)
        assert '"git_show"' in rule.condition
        # What changes after that is nobody's word any more.
        tool = Tool.objects.get(name="git_log")
        changed = {**tool.pinned.data, "description": "Something else."}  # type: ignore[union-attr]
        others = [
            each.latest.data for each in Tool.objects.filter(server=tool.server).exclude(pk=tool.pk)
        ]
        observe.observe(server=tool.server, listed=[changed, *others])

    await db_call(look)
    code, said = await db_call(start, site_env, file)
    assert code == 1
    assert (
        "git::git_log is on the whitelist, but its definition waits for approval. Approve or reject"
        in said
    )
    assert await db_call(Definition.objects.filter(approved=True).count) == 3


def start(env: dict[str, str], file: Path) -> tuple[int, str]:
    """Exit code and standard error of a start that a host would see; its standard input is closed
    at once."""
    words = ["manage.py", "runmcp", "--config", str(file)]
    with open(os.devnull) as nothing, tempfile.TemporaryFile("w+") as log:
        child = forkserver.popen(words, env=env, stdin=nothing, stdout=subprocess.PIPE, stderr=log)
        assert child.communicate(HANG_LIMIT)[0] == ""
        log.seek(0)
        return child.wait(), log.read()


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a tool that its server does not offer": (
        {"internal_tools": {"git": ["git_lgo"]}},
        'offers no tool named "git_lgo". Correct the name, or remove it. The server offers: git_',
    ),
    "an unknown provider": (
        {"provider": "gogle"},
        'No provider named "gogle". Describe it under providers',
    ),
    "a provider without key": (
        {"provider": "anthropic"},
        'The provider "anthropic" does not have a key. Enter the key in the admin',
    ),
    "an unknown model": (
        {"provider": "scripted"},
        'has no model named "gemini-2.0-flash-001". Correct the name',
    ),
    "a server that is not in the file": (
        {"internal_tools": {"gti": ["x"]}},
        "No server with this name is under mcps.",
    ),
    "a circle": (
        {"users": ["expert.research_dependency"]},
        "would call itself through other expert tools.",
    ),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", BAD)
def test_a_file_that_cannot_work_is_refused_at_start_with_the_remedy(
    name: str, tmp_path: Path, scripted: ScriptedModels, site_env: dict[str, str]
) -> None:
    Provider.objects.create(slug="anthropic", kind="anthropic")
    Provider.objects.create(slug="scripted", kind="scripted")
    changes, words = BAD[name]
    code, said = start(site_env, example(tmp_path, QUICK, **changes))
    assert code == 1
    assert words in said
    assert not Run.objects.exists()
    assert not ExpertTool.objects.filter(endpoints__isnull=False).exists()


@pytest.mark.exhaustive
def test_what_is_no_file_of_expert_tools_or_has_a_broken_server_is_refused(
    tmp_path: Path, scripted: ScriptedModels, site_env: dict[str, str]
) -> None:
    broken = example(
        tmp_path, QUICK | {"time": {"command": str(BIN / "mcp-server-tmie"), "args": []}}
    )
    broken.rename(tmp_path / "broken.yaml")
    assert "The server 'time' does not work" in start(site_env, tmp_path / "broken.yaml")[1]
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"a": {"command": "x"}}}')
    assert (
        "cannot contain expert tools. To use the servers of the file"
        in start(site_env, tmp_path / "mcp.json")[1]
    )
    assert "cannot be read" in start(site_env, tmp_path / "nowhere.yaml")[1]
    assert not ExpertTool.objects.filter(endpoints__isnull=False).exists()


@pytest.mark.exhaustive
def test_what_was_decided_here_stands(
    tmp_path: Path, scripted: ScriptedModels, site_env: dict[str, str]
) -> None:
    """A server of somebody else is not changed by a file, and one that was switched off is not
    switched on."""
    file = example(tmp_path, QUICK)
    mine = lifecycle.save_server(server=Server(slug="time", command=["my-time"]), actor="test")
    assert start(site_env, file)[0] == 0
    assert Server.objects.get(pk=mine.pk).command == ["my-time"]
    assert Server.objects.filter(slug__startswith="time-").count() == 1
    lifecycle.disable_server(server=Server.objects.get(slug="git"), actor="test")
    code, said = start(site_env, file)
    assert code == 1
    assert "The server 'git' is disabled. Enable it, or remove it from the file." in said


@pytest.mark.exhaustive
@pytest.mark.fault
@pytest.mark.parametrize("ending", [None, signal.SIGTERM, signal.SIGKILL])
async def test_its_own_worker_goes_with_the_host(
    tmp_path: Path, endless: None, site_env: dict[str, str], ending: signal.Signals | None
) -> None:
    """In the middle of a tool call."""
    journal = tmp_path / "journal"
    slow = stand_in("slow", *GIT_TOOLS, FAKE_JOURNAL=str(journal))
    file = example(tmp_path, QUICK | {"git": slow})
    async with raw_host(runmcp(site_env, file), forked=True) as raw:
        await raw.handshake()
        arguments = {"query": "Which crate?"}
        raw.send(
            {
                "id": 5,
                "method": "tools/call",
                "params": {"name": "research_dependency", "arguments": arguments},
            }
        )
        await until(lambda: called(journal))
        assert raw.runs("soloworker")
        assert raw.runs("slow.py")
        family: list[psutil.Process] = raw.family()
        if ending is None:
            await raw.end()
        else:
            raw.process.send_signal(ending)
            await raw.ended()
        await until(lambda: not alive(family))
        assert all(json.loads(line)["jsonrpc"] == "2.0" for line in raw.lines)


@pytest.mark.exhaustive
async def test_a_worker_of_the_site_is_used_where_one_runs(
    tmp_path: Path, scripted: ScriptedModels, site_env: dict[str, str], broker: str
) -> None:
    file = example(tmp_path, QUICK)
    worker.empty_broker()
    # What a first run needs is loaded: a worker that loads it meanwhile may say too late that it is
    # there.
    env = site_env | {forkserver.PRELOAD: "tests.fault.preloaded"}
    with worker.running(env, "site-worker"), worker.ticking("subagents.tasks.advance_due"):
        async with raw_host(runmcp(site_env, file), forked=True) as raw:
            await raw.handshake()
            arguments = {"query": "Which crate?"}
            answer = await raw.ask(5, "tools/call", name="research_dependency", arguments=arguments)
            assert "Use the crate of page 19" in json.dumps(answer)
            assert not raw.runs("soloworker")
            await raw.end()


@pytest.mark.exhaustive
def test_a_site_whose_worker_does_not_see_the_keys_of_the_file_is_told_at_start(
    file: Path, site_env: dict[str, str], broker: str
) -> None:
    """Else it starts cleanly, and every call fails with "no model answered"."""
    data = yaml.safe_load(file.read_text())
    address = Provider.objects.get(slug="google").base_url
    data["providers"] = {"oai": {"kind": "compatible", "base_url": address, "key": "${OAI_KEY}"}}
    data["tools"][0]["provider"] = "oai"
    file.write_text(yaml.safe_dump(data, sort_keys=False))
    env = site_env | {"OAI_KEY": "hunter2"}  # as the host's entry has it
    worker.empty_broker()
    with worker.running(site_env, "site-worker"):
        code, said = start(env, file)
    assert code == 1
    assert (
        "The file refers to the variables OAI_KEY, but the worker of the site does not have these variables."
        in said
    )
    assert (
        "Set them and SLIPSNISSE_PASS_ENV=OAI_KEY for the site, then restart the site. Or enter the keys in the admin"
        in said
    )
    assert "hunter2" not in said
    worker.empty_broker()
    with worker.running(env | {"SLIPSNISSE_PASS_ENV": "OAI_KEY"}, "site-worker"):
        assert start(env, file) == (0, "")
    assert not Run.objects.exists()
