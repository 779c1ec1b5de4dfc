"""The chat client llm (https://llm.datasette.io), unmodified, with an expert tool as its model."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mcpregistry.db import db_call
from subagents.models import Run
from tests import externals
from tests.subagents.headends.conftest import headend, token
from tests.subagents.kit import Bench, offered
from tests.waiting import HANG_LIMIT

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.e2e,
    pytest.mark.one_database,
    pytest.mark.chat_client,
]

_MODELS = """
- model_id: expert
  model_name: expert
  api_base: {address}/v1
  api_key_name: slipsnisse
  supports_schema: true
- model_id: absent
  model_name: absent
  api_base: {address}/v1
  api_key_name: slipsnisse
"""


BLUE = {"text": "Blue."}


@dataclass(frozen=True)
class ChatClient:
    """The program with its own folder: the headend is configured as its documentation describes."""

    home: Path
    address: str
    key: str

    async def run(self, *words: str, given: str | None = None) -> tuple[int, str, str]:
        """Return the exit code, standard output and standard error."""
        (self.home / "keys.json").write_text(json.dumps({"slipsnisse": self.key}))
        (self.home / "extra-openai-models.yaml").write_text(_MODELS.format(address=self.address))
        env = {"PATH": "/usr/bin:/bin", "HOME": str(self.home), "LLM_USER_PATH": str(self.home)}
        process = await asyncio.create_subprocess_exec(
            str(externals.CHAT_CLIENT.found),
            *words,
            cwd=self.home,
            env=env,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, err = await asyncio.wait_for(
                process.communicate((given or "").encode()), 2 * HANG_LIMIT
            )
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()


async def client(bench: Bench, serving: Any, home: Path, *turns: Any, key: str = "") -> ChatClient:
    def prepare() -> str:
        offered(bench, *turns)
        headend()
        return key or token()

    found = await db_call(prepare)
    return ChatClient(home, (await serving()).address, found)


async def questions() -> list[str]:
    """The arguments of all runs, the oldest first."""
    return await db_call(
        lambda: [
            json.loads(run.arguments)["text"] for run in Run.objects.order_by("created_at", "id")
        ]
    )


@pytest.mark.parametrize("options", [[], ["--no-stream"]])
async def test_a_prompt_gets_the_experts_answer(
    bench: Bench, serving: Any, tmp_path: Path, options: list[str]
) -> None:
    llm = await client(bench, serving, tmp_path, {"text": "It is an expert: grüß, 🦜."})
    assert await llm.run("-m", "expert", *options, "Say hello.") == (
        0,
        "It is an expert: grüß, 🦜.\n",
        "",
    )
    assert await questions() == ["Say hello."]
    _, logged, _ = await llm.run("logs", "--json")
    (entry,) = json.loads(logged)
    run = await db_call(Run.objects.get)
    if options:  # it asks for the usage of a stream only from OpenAI itself
        assert (entry["input_tokens"], entry["output_tokens"]) == (
            run.input_tokens,
            run.output_tokens,
        )


async def test_its_models_are_those_of_the_headend(
    bench: Bench, serving: Any, tmp_path: Path
) -> None:
    llm = await client(bench, serving, tmp_path, {"text": "x"})
    code, out, _ = await llm.run(
        "openai", "endpoint", f"{llm.address}/v1", "--models", "--key", llm.key
    )
    assert (code, out.split()) == (0, ["expert"])
    code, out, _ = await llm.run(
        "openai",
        "endpoint",
        f"{llm.address}/v1",
        "-m",
        "expert",
        "--responses",
        "--key",
        llm.key,
        "Hi.",
    )
    assert (code, out) == (0, "x\n")


async def test_a_conversation_continues_with_what_was_said(
    bench: Bench, serving: Any, tmp_path: Path
) -> None:
    llm = await client(bench, serving, tmp_path, BLUE, BLUE)
    await llm.run("-m", "expert", "-s", "Be short.", "Which colour?")
    code, _, err = await llm.run("-c", "Why?")
    assert code == 0, err
    first, second = await questions()
    assert "Be short." in first
    assert [second.index(part) for part in ("Which colour?", "Blue.", "Why?")] == sorted(
        second.index(part) for part in ("Which colour?", "Blue.", "Why?")
    )


async def test_a_chat_continues_with_what_was_said(
    bench: Bench, serving: Any, tmp_path: Path
) -> None:
    llm = await client(bench, serving, tmp_path, BLUE, BLUE)
    code, out, err = await llm.run("chat", "-m", "expert", given="Which colour?\nWhy?\nexit\n")
    assert code == 0, err
    assert out.count("Blue.") == 2
    first, second = await questions()
    assert first == "Which colour?"
    assert second.index("Which colour?") < second.index("Blue.") < second.index("Why?")


async def test_an_answer_fits_the_schema_of_the_client(
    bench: Bench, serving: Any, tmp_path: Path
) -> None:
    llm = await client(bench, serving, tmp_path, {"text": '{"name": "Ann", "age": 3}'})
    code, out, err = await llm.run("-m", "expert", "--schema", "name, age int", "Who?")
    assert code == 0, err
    assert json.loads(out) == {"name": "Ann", "age": 3}


@pytest.mark.parametrize("options", [[], ["--no-stream"]])
async def test_a_failed_run_is_shown_and_not_repeated(
    bench: Bench, serving: Any, tmp_path: Path, options: list[str]
) -> None:
    broken = {"text": "x", "attempts": [{"status": 401, "message": "no"}] * 3}
    llm = await client(bench, serving, tmp_path, broken)
    code, out, err = await llm.run("-m", "expert", *options, "Say hello.")
    assert (code, out.strip()) == (1, "")
    run = await db_call(Run.objects.get)
    assert run.exit in err or run.exit.lower() in err or run.error in err, err


@pytest.mark.parametrize(
    ("model", "key", "words"),
    [("absent", "", "Available models: expert"), ("expert", "wrong", "Issue token")],
)
async def test_an_error_says_what_to_do(
    bench: Bench, serving: Any, tmp_path: Path, model: str, key: str, words: str
) -> None:
    llm = await client(bench, serving, tmp_path, {"text": "x"}, key=key)
    code, _, err = await llm.run("-m", model, "Say hello.")
    assert code == 1
    assert words in err
    assert await questions() == []
