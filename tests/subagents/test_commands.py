"""The commands: an answer on standard output, everything else on standard error, honest exit
codes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Sequence
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from mcpregistry.models import AuditEntry
from subagents.domain.lifecycle import Exit, RunState
from subagents.models import ExpertTool, LanguageModel, Provider, Run, TracedRequest, Turn
from subagents.runs.run_views import view
from subagents.services import experts
from tests.subagents.kit import ready_provider
from tests.waiting import HANG_LIMIT, eventually

MANAGE = str(Path(__file__).parents[2] / "manage.py")


@pytest.fixture
def expert(live_db: None, monkeypatch: pytest.MonkeyPatch) -> ExpertTool:
    """An expert tool whose worker is a thread that ends every run as the test says."""
    monkeypatch.setattr("subagents.services.runs.wake", lambda run_id: None)
    provider = ready_provider("acme", kind="compatible", base_url="http://127.0.0.1:9/v1")
    model = LanguageModel.objects.create(provider=provider, name="small")
    arguments = {"q": {"type": "string"}, "n": {"type": "integer", "optional": True}}
    return experts.save_expert(
        expert=ExpertTool(name="digest", description="Reads.", arguments=arguments),
        targets=[model],
        actor="test",
    )


def ending(monkeypatch: pytest.MonkeyPatch, *, traced: Sequence[str] = (), **end: Any) -> None:
    def soon(run_id: str) -> None:
        def work() -> None:
            run = Run.objects.get(pk=run_id)
            Turn.objects.create(
                run=run,
                number=1,
                model_name="acme/small",
                finish="stop",
                input_tokens=7,
                output_tokens=3,
                started_at=timezone.now(),
                duration_ms=5,
            )
            for text in traced:
                TracedRequest.objects.create(run=run, at=timezone.now(), text=text)
            Run.objects.filter(pk=run_id).update(finished_at=timezone.now(), **end)
            connection.close()

        threading.Thread(target=work).start()

    monkeypatch.setattr("subagents.services.runs.wake", soon)


def run(*words: str, **options: Any) -> tuple[int, str, str]:
    out = StringIO()
    err = StringIO()
    code = 0
    try:
        call_command("mcprun", *words, stdout=out, stderr=err, **options)
    except SystemExit as error:
        code = int(error.code or 0)
    return code, out.getvalue(), err.getvalue()


def test_mcprun_prints_the_answer_alone(
    expert: ExpertTool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ending(
        monkeypatch, state=RunState.DONE, exit=Exit.ANSWER, answer="forty-two", cost=Decimal("0.01")
    )
    book = tmp_path / "book.jsonl"
    code, out, err = run("digest", "q=why", "n=5", accounting=book)
    assert (code, out) == (0, "forty-two\n")
    assert "EXIT-FINAL-ANSWER" in err
    assert json.loads(Run.objects.get().arguments) == {"q": "why", "n": 5}
    (entry,) = map(json.loads, book.read_text().splitlines())
    assert (entry["type"], entry["inputTokens"], entry["totalTokens"]) == ("llm", 7, 10)


def test_mcprun_takes_options_of_models_and_a_format(
    expert: ExpertTool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ending(monkeypatch, state=RunState.DONE, exit=Exit.ANSWER, answer="x")
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object"}')
    model = LanguageModel.objects.get()
    run(
        "digest",
        "q=why",
        model=str(model),
        temperature=0.5,
        top_p=0.9,
        no_parallel=True,
        schema=schema,
    )
    made = Run.objects.get()
    assert json.loads(made.model_options) == {
        "temperature": 0.5,
        "top_p": 0.9,
        "parallel_tool_calls": False,
    }
    assert (made.asks, made.answer_format, made.answer_schema) == (
        model,
        "json",
        '{"type":"object"}',
    )
    spec = view(made.pk, now=timezone.now()).spec
    assert (spec.model_options["top_p"], spec.output_schema) == (0.9, {"type": "object"})


@pytest.mark.parametrize("name", ["trace.jsonl", "-"])
def test_mcprun_writes_the_trace_of_requests_to_models(
    expert: ExpertTool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    file = tmp_path / name
    ending(
        monkeypatch,
        state=RunState.DONE,
        exit=Exit.ANSWER,
        answer="x",
        traced=('{"status": 401}', '{"status": 200}'),
    )
    code, out, err = run("digest", "q=why", trace_llm=name if name == "-" else str(file))
    assert (code, out) == (0, "x\n")
    assert Run.objects.get().is_traced
    lines = err.splitlines() if name == "-" else file.read_text().splitlines()
    assert [json.loads(line)["status"] for line in lines if line.startswith("{")] == [401, 200]
    assert name == "-" or file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"trace_llm": "/nowhere/at/all"}, "cannot be written"),
        ({"model": "no/where"}, "No model named"),
        ({"temperature": 3.0}, "between 0 and 2"),
        ({"format": "json"}, "requires a schema"),
        ({"schema": Path("/nowhere.json")}, "cannot be read"),
    ],
)
def test_mcprun_refuses_options_that_mean_nothing(
    expert: ExpertTool, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(CommandError, match=text) as caught:
        call_command("mcprun", "digest", "q=why", **options)
    assert caught.value.returncode == 2
    assert not Run.objects.exists()


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize(
    ("exit", "code"),
    [(Exit.BUDGET, 3), (Exit.AUTH, 4), (Exit.TOOL, 1), (Exit.CANCELLED, 130), (Exit.TIME_LIMIT, 3)],
)
def test_mcprun_says_by_its_exit_code_why_there_is_no_answer(
    expert: ExpertTool, monkeypatch: pytest.MonkeyPatch, exit: Exit, code: int
) -> None:
    ending(monkeypatch, state=RunState.FAILED, exit=exit, error="That is why.")
    found, out, err = run("digest", "q=why")
    assert (found, out) == (code, "")
    assert "That is why." in err


def test_mcprun_asks_the_run_to_stop_when_interrupted(
    expert: ExpertTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = {
        "state": RunState.CANCELLED,
        "exit": Exit.CANCELLED,
        "error": "Cancelled.",
        "finished_at": timezone.now(),
    }

    usual = signal.getsignal(signal.SIGINT)

    def interrupt() -> None:
        eventually(lambda: signal.getsignal(signal.SIGINT) != usual)  # or it would be pytest's own
        signal.raise_signal(signal.SIGINT)

    def wake(run_id: str) -> None:  # first when the run begins, then when it is asked to stop
        if Run.objects.filter(pk=run_id, cancel_requested=True).update(**ends) == 0:
            threading.Thread(target=interrupt).start()

    monkeypatch.setattr("subagents.services.runs.wake", wake)
    assert run("digest", "q=why")[:2] == (130, "")
    assert "SIGINT" in AuditEntry.objects.get(kind="run.cancelled").body


def test_mcprun_as_json(expert: ExpertTool, monkeypatch: pytest.MonkeyPatch) -> None:
    ending(monkeypatch, state=RunState.DONE, exit=Exit.ANSWER, answer="{}", structured="{}")
    assert run("digest", "q=why")[2].endswith("out, cost unknown\n"), "its model has no prices"
    _, out, err = run("digest", "q=why", json=True, quiet=True)
    assert (json.loads(out)["structured"], json.loads(out)["exit"], err) == (
        {},
        "EXIT-FINAL-ANSWER",
        "",
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["nothing"], "Available expert tools: digest"),
        (["digest", "q"], "key=value"),
        (["digest", "q=1"], "not of type"),
    ],
)
def test_mcprun_refuses_before_anything_starts(
    expert: ExpertTool, words: list[str], text: str
) -> None:
    with pytest.raises(CommandError, match=text) as caught:
        call_command("mcprun", *words)
    assert caught.value.returncode == 2
    assert not Run.objects.exists()


@pytest.mark.exhaustive
def test_modelprices_fills_in_what_is_empty_and_dates_it(db: None) -> None:
    provider = Provider.objects.create(slug="o", kind="openai")
    mini = LanguageModel.objects.create(provider=provider, name="gpt-4o-mini", output_price="9")
    LanguageModel.objects.create(provider=provider, name="made-up")
    out = StringIO()
    before = timezone.localdate()
    call_command("modelprices", stdout=out)
    mini.refresh_from_db()
    assert (mini.input_price, mini.output_price) == (Decimal("0.15"), 9)
    assert mini.prices_from in {before, timezone.localdate()}, "today, on either side of midnight"
    assert mini.context_window == 128_000
    assert "made-up: not in the list" in out.getvalue()


@pytest.mark.exhaustive
def test_scriptedllm_serves_the_demo_and_a_file_of_ones_own(
    tmp_path: Path, site_env: dict[str, str]
) -> None:
    script = tmp_path / "mine.yaml"
    script.write_text("mine: {turns: [{text: 'hello {{ user.text }}'}]}")
    command = [sys.executable, MANAGE, "scriptedllm", "--port", "0", "--script", str(script)]
    with subprocess.Popen(
        command, env=site_env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            found = re.search(r"(http://\S+): mine, research_repository", line)
            assert found is not None, line
            body = json.dumps(
                {"model": "mine", "messages": [{"role": "user", "content": "you"}]}
            ).encode()
            asked = urllib.request.Request(f"{found[1]}/v1/chat/completions", body)
            with urllib.request.urlopen(asked, timeout=HANG_LIMIT) as answer:
                assert json.load(answer)["choices"][0]["message"]["content"] == "hello you"
        finally:
            server.terminate()
            server.wait(HANG_LIMIT)


def test_a_script_that_is_none_is_refused_with_its_name(tmp_path: Path) -> None:
    script = tmp_path / "bad.yaml"
    script.write_text("mine: {turns: []}")
    with pytest.raises(
        CommandError, match=r"bad\.yaml: The scenario 'mine' requires a list of turns"
    ):
        call_command("scriptedllm", "--script", str(script))
