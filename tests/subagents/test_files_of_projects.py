"""Files that ``runmcp --config`` serves: each has servers of its own, and one that is not served
leaves nothing behind."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from mcpregistry.models import Agent, Credential, Endpoint, ImportedFile, Server, Tool
from mcpregistry.models.server import Lifecycle
from mcpregistry.services.exchange import trusted_files
from mcpregistry.services.exchange.trusted_files import FileRefusedError, Served, serve_file
from mcpregistry.services.servers import lifecycle
from subagents.models import ExpertTool, LanguageModel, Provider
from tests.fakes.stage import listed
from tests.fakes.targets import SERVERS


def git(*names: str, program: str = "echo", **env: str) -> dict[str, Any]:
    env = {"FAKE_LISTED": json.dumps(listed(*names))} | env
    return {"command": sys.executable, "args": ["-S", str(SERVERS / f"{program}.py")], "env": env}


def write(folder: Path, server: dict[str, Any], tool: str, uses: str) -> Path:
    """A file in the format of the worked example, whose provider nobody has set up."""
    folder.mkdir(exist_ok=True)
    expert = {
        "name": tool,
        "description": "Knows.",
        "arguments": {"query": {"type": "string"}},
        "internal_tools": {"git": [uses]},
        "provider": "ollama",
        "model": "llama3",
        "system_prompt": "Answer.",
    }
    file = folder / "slipsnisse.yaml"
    file.write_text(yaml.safe_dump({"mcps": {"git": server}, "tools": [expert]}, sort_keys=False))
    return file


def served(file: Path) -> Served:
    return serve_file(path=file, agent="local", endpoint="", actor="test", environ={})


def uses(expert: str) -> set[str]:
    tools = Tool.objects.filter(grants__agent__expert__name=expert)
    return {f"{tool.server.slug}::{tool.name}" for tool in tools.select_related("server")}


@pytest.mark.exhaustive
def test_two_projects_have_a_server_of_the_same_name(live_db: None, tmp_path: Path) -> None:
    first = write(tmp_path / "shop", git("log"), "shop_expert", "log")
    second = write(tmp_path / "Web site", git("show"), "web_expert", "show")
    for file in (first, second, second, first):
        served(file)
    assert set(Server.objects.values_list("slug", "lifecycle")) == {
        ("git", Lifecycle.ACTIVE),
        ("git-web-site", Lifecycle.ACTIVE),
    }
    assert (uses("shop_expert"), uses("web_expert")) == ({"git::log"}, {"git-web-site::show"})
    write(tmp_path / "Web site", git("show", "blame"), "web_expert", "blame")
    served(second)
    assert (uses("shop_expert"), uses("web_expert")) == ({"git::log"}, {"git-web-site::blame"})


def test_a_server_that_somebody_here_has_made_stays_and_the_file_gets_its_own(
    live_db: None, tmp_path: Path
) -> None:
    mine = lifecycle.save_server(server=Server(slug="git", command=["my-git"]), actor="test")
    served(write(tmp_path / "shop", git("log"), "expert", "log"))
    assert Server.objects.get(slug="git").command == mine.command
    assert uses("expert") == {"git-shop::log"}


def everything() -> list[int]:
    kept = [row.rest.get("brought", {}) for row in ImportedFile.objects.all()]
    models = (Server, ExpertTool, Provider, LanguageModel, Agent, Endpoint, Credential)
    return [*(model.objects.count() for model in models), sum(map(len, kept))]


@pytest.mark.exhaustive(one_in=4)
@pytest.mark.parametrize(
    "broken",
    [
        git("log", program="crash", FAKE_CRASH="start"),
        git("show"),
        {"command": "no-such-program", "args": []},
    ],
)
def test_a_first_start_that_fails_leaves_nothing_and_the_next_one_works(
    live_db: None, tmp_path: Path, broken: dict[str, Any]
) -> None:
    before = everything()
    with pytest.raises(FileRefusedError) as refused:
        served(write(tmp_path, broken, "expert", "log"))
    assert everything() == before
    is_ended = "FAKE_CRASH" in broken.get("env", {})
    assert (
        "The last lines of the log of the server:\n  cannot find my configuration"
        in refused.value.problems[0]
    ) is is_ended
    served(write(tmp_path, git("log"), "expert", "log"))
    assert uses("expert") == {"git::log"}


@pytest.mark.exhaustive
def test_a_later_start_that_fails_leaves_what_was_there(live_db: None, tmp_path: Path) -> None:
    file = write(tmp_path, git("log"), "expert", "log")
    served(file)
    before = everything()
    write(tmp_path, git("log", program="crash", FAKE_CRASH="start"), "expert", "log")
    with pytest.raises(FileRefusedError):
        served(file)
    assert everything() == before
    write(tmp_path, git("log"), "expert", "log")
    served(file)


def test_a_first_start_that_was_killed_is_completed_by_the_next(
    live_db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the import, so that nothing could be taken back."""
    file = write(tmp_path, git("log"), "expert", "log")
    with monkeypatch.context() as patched:
        patched.setattr(trusted_files._Made, "take_back", lambda *_: None)
        patched.setattr(
            trusted_files, "ask_servers", lambda _: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            served(file)
    assert Provider.objects.get().draft_problem() is not None
    served(file)
    assert Provider.objects.get().draft_problem() is None
