"""``manage.py mcprun``: run an expert tool from the command line; the answer alone goes to standard
output."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import NotFound, SlipsnisseError
from subagents.domain.formats import FORMAT, FORMATS, JSON, SCHEMA, AnswerFormat, split_format
from subagents.domain.lifecycle import Exit, RunState
from subagents.models import LanguageModel, Run
from subagents.runs.run_answers import describe_activity
from subagents.services import accounting, runs

_LOOK_EVERY = 0.2
_NOBODY = 10.0  # seconds after which a run that no worker takes is worth a word
# For scripts: 0 an answer, 1 no answer, 2 refused before it began, 3 a limit, 4 the provider, 130
# interrupted.
_CODES = {
    Exit.TOKEN_LIMIT: 3,
    Exit.TIME_LIMIT: 3,
    Exit.BUDGET: 3,
    Exit.ENERGY: 3,
    Exit.AUTH: 4,
    Exit.QUOTA: 4,
    Exit.MODEL: 4,
    Exit.NO_RESPONSE: 4,
    Exit.CANCELLED: 130,
}


class Command(BaseCommand):
    """Starts a run, works on it here or waits for a worker, and prints its answer."""

    help = (
        "Runs an expert tool and prints its answer, for example: mcprun research_repository question='What changed?'. "
        "Requires a running worker (`make run`)."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="Name of the expert tool.")
        parser.add_argument(
            "arguments",
            nargs="*",
            metavar="key=value",
            help="Arguments. Values can be JSON: limit=5, deep=true.",
        )
        parser.add_argument(
            "--model",
            metavar="PROVIDER/MODEL",
            help="Use this model instead of the models of the expert tool.",
        )
        parser.add_argument(
            "--temperature",
            type=float,
            metavar="0..2",
            help="Use this temperature instead of the temperature of the expert tool or the model.",
        )
        parser.add_argument(
            "--top-p",
            type=float,
            metavar="0..1",
            help="Use this top_p instead of the top_p of the model.",
        )
        parser.add_argument(
            "--no-parallel",
            action="store_true",
            help="Let the model request only one tool call at a time (OpenAI and OpenRouter).",
        )
        parser.add_argument(
            "--format", choices=FORMATS, help="Format of the answer. json requires --schema."
        )
        parser.add_argument(
            "--schema", type=Path, metavar="FILE", help="File with the JSON Schema of the answer."
        )
        parser.add_argument(
            "--json",
            action="store_true",
            help="Print one JSON object with the answer, the tokens, the cost and the code of the end of the run.",
        )
        parser.add_argument(
            "--accounting",
            type=Path,
            help="Append one JSON line for each answer and tool call to this file.",
        )
        parser.add_argument(
            "--trace-llm",
            metavar="FILE",
            help="Append each request to a provider and its answer to this file, as one JSON line without secrets. To write to "
            "standard error, enter - as the file.",
        )
        parser.add_argument(
            "--quiet", action="store_true", help="Do not print progress to standard error."
        )

    def handle(self, *args: Any, **options: Any) -> None:
        self._quiet = options["quiet"]
        with ExitStack() as stack:
            trace = self._open_trace(options["trace_llm"], stack)
            try:
                run = runs.start(
                    expert=options["name"],
                    arguments=_parse_arguments(options["arguments"]),
                    origin="command",
                    traced=trace is not None,
                    asks=_find_model(options["model"]),
                    options=_of_models(options),
                    answer_format=_answer_format(options),
                )
            except SlipsnisseError as error:
                raise CommandError(str(error), returncode=2) from error
            with _catch_signals() as arrived:
                run = self._watch(run, arrived, trace)
        if options["accounting"]:
            with options["accounting"].open("a") as file:
                file.writelines(json.dumps(entry) + "\n" for entry in accounting.list_entries(run))
        self._tell(run, as_json=options["json"])

    def _open_trace(self, name: str | None, stack: ExitStack) -> Callable[[str], object] | None:
        """Return what takes the lines of the trace, or None. Only its owner can read a new file."""
        if name is None:
            return None
        if name == "-":
            return self.stderr.write
        try:
            handle = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise CommandError(
                f"{name} cannot be written: {error.strerror}. Choose another path.", returncode=2
            ) from error
        file = stack.enter_context(os.fdopen(handle, "a", buffering=1))
        return lambda line: file.write(f"{line}\n")

    def _watch(
        self, run: Run, interruptions: list[str], trace: Callable[[str], object] | None
    ) -> Run:
        began = time.monotonic()
        told = ""
        traced = 0
        while run.finished_at is None:
            if interruptions:
                runs.cancel(run_id=run.pk, actor="command", reason=interruptions.pop())
            words = describe_activity(run)
            if run.state == RunState.QUEUED and time.monotonic() - began > _NOBODY:
                words = "no worker has started the run; if the site is not running, start it with `make run`"
            if words != told:
                told = words
                self._say(f"{run.pk[:8]}: {words}")
            time.sleep(_LOOK_EVERY)
            run.refresh_from_db()
            traced = _write_trace(run, traced, trace) if trace is not None else 0
        return run

    def _say(self, words: str) -> None:
        if not self._quiet:
            self.stderr.write(words)

    def _tell(self, run: Run, *, as_json: bool) -> None:
        if as_json:
            self.stdout.write(json.dumps(_facts(run)))
        elif run.state == RunState.DONE:
            self.stdout.write(run.answer)
        cost = "cost unknown" if run.cost is None else f"${run.cost:.6f}"
        self._say(f"{run.exit}: {run.input_tokens} tokens in, {run.output_tokens} out, {cost}")
        if run.state != RunState.DONE:
            self._say(run.error)
            sys.exit(_CODES.get(Exit(run.exit), 1))


def _write_trace(run: Run, after: int, write: Callable[[str], object]) -> int:
    """Write the traced requests with a larger key than ``after``, and return the largest key."""
    for row in run.traced_requests.filter(pk__gt=after):
        write(row.text)
        after = row.pk
    return after


def _parse_arguments(pairs: list[str]) -> dict[str, Any]:
    parsed: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise CommandError(
                f'"{pair}" is not a valid argument. Use key=value, for example question="What changed?".',
                returncode=2,
            )
        try:
            parsed[key] = json.loads(value)
        except ValueError:
            parsed[key] = value
    return parsed


def _find_model(name: str | None) -> LanguageModel | None:
    """The model that is named ``provider/model``. Raises NotFound."""
    if name is None:
        return None
    provider, _, model = name.partition("/")
    found = LanguageModel.objects.filter(provider__slug=provider, name=model, enabled=True).first()
    if found is None:
        known = (
            ", ".join(str(each) for each in LanguageModel.objects.filter(enabled=True)[:20])
            or "none"
        )
        raise NotFound(
            error_texts.say_not_found("model", name), remedy=f"Available models: {known}."
        )
    return found


def _of_models(options: dict[str, Any]) -> dict[str, Any]:
    """What goes to the models with each request."""
    found = {"temperature": options["temperature"], "top_p": options["top_p"]}
    for name, most in (("temperature", 2.0), ("top_p", 1.0)):
        if found[name] is not None and not 0 <= found[name] <= most:
            option = f"--{name.replace('_', '-')}"
            raise CommandError(
                error_texts.say_out_of_range(option, 0, f"{most:g}", found[name]), returncode=2
            )
    given = {name: value for name, value in found.items() if value is not None}
    return given | ({"parallel_tool_calls": False} if options["no_parallel"] else {})


def _answer_format(options: dict[str, Any]) -> AnswerFormat:
    """The form of the answer. Raises ArgumentsInvalid as for callers over MCP."""
    given: dict[str, Any] = {FORMAT: options["format"]} if options["format"] else {}
    if options["schema"]:
        try:
            given |= {FORMAT: JSON, SCHEMA: json.loads(options["schema"].read_text())}
        except (OSError, ValueError) as error:
            raise CommandError(
                f"{options['schema']} cannot be read as JSON: {error}. Name a file with a JSON Schema.",
                returncode=2,
            ) from error
    return split_format(given)[1]


@contextmanager
def _catch_signals() -> Iterator[list[str]]:
    """The names of the signals that arrived. Acted on between two looks: the database may be in use
    when one comes."""
    arrived: list[str] = []

    def note(number: int, frame: FrameType | None) -> None:
        arrived.append(signal.Signals(number).name)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield arrived
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _facts(run: Run) -> dict[str, Any]:
    return {
        "run": run.pk,
        "state": run.state,
        "exit": run.exit,
        "answer": run.answer,
        "structured": json.loads(run.structured) if run.structured else None,
        "error": run.error,
        "inputTokens": run.input_tokens,
        "outputTokens": run.output_tokens,
        "cachedTokens": run.cached_tokens,
        "reasoningTokens": run.reasoning_tokens,
        "cacheSavedUsd": None if run.cache_saved is None else float(run.cache_saved),
        "costUsd": None if run.cost is None else float(run.cost),
        "savings": run.savings,
    }
