"""``manage.py mcprun``: run an expert tool from the command line; the answer alone goes to standard output."""

from __future__ import annotations

import json
import signal
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from mcpregistry.domain.errors import SlipsnisseError
from subagents.domain.lifecycle import Exit, RunState
from subagents.models import Run
from subagents.runs.answers import doing
from subagents.services import accounting, runs

_LOOK_EVERY = 0.2
_NOBODY = 10.0  # seconds after which a run that no worker takes is worth a word
# For scripts: 0 an answer, 1 no answer, 2 refused before it began, 3 a limit, 4 the provider, 130 interrupted.
_CODES = {
    Exit.TOKEN_LIMIT: 3, Exit.TIME_LIMIT: 3, Exit.BUDGET: 3, Exit.ENERGY: 3, Exit.AUTH: 4, Exit.QUOTA: 4, Exit.MODEL: 4,
    Exit.NO_RESPONSE: 4, Exit.CANCELLED: 130,
}  # fmt: skip


class Command(BaseCommand):
    """Starts a run, works on it here or waits for a worker, and prints its answer."""

    help = "Run an expert tool: mcprun research_repository question='What changed?'. Needs a running worker (make run)."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="the expert tool")
        parser.add_argument("arguments", nargs="*", metavar="key=value", help="a value may be JSON: limit=5, deep=true")
        parser.add_argument("--json", action="store_true", help="print answer, figures and exit as one JSON object")
        parser.add_argument("--accounting", type=Path, help="append one JSON line for each answer and tool call")
        parser.add_argument("--quiet", action="store_true", help="no progress on standard error")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            run = runs.start(expert=options["name"], arguments=_parsed(options["arguments"]), origin="command")
        except SlipsnisseError as error:
            raise CommandError(str(error), returncode=2) from error
        self._quiet = options["quiet"]
        with _interruptions() as arrived:
            run = self._watch(run, arrived)
        if options["accounting"]:
            with options["accounting"].open("a") as file:
                file.writelines(json.dumps(entry) + "\n" for entry in accounting.entries(run))
        self._tell(run, as_json=options["json"])

    def _watch(self, run: Run, interruptions: list[str]) -> Run:
        began, told = time.monotonic(), ""
        while run.finished_at is None:
            if interruptions:
                runs.cancel(run_id=run.pk, actor="command", reason=interruptions.pop())
            words = doing(run)
            if run.state == RunState.QUEUED and time.monotonic() - began > _NOBODY:
                words = "no worker takes it: is the site running (make run)?"
            if words != told:
                told = words
                self._say(f"{run.pk[:8]}: {words}")
            time.sleep(_LOOK_EVERY)
            run.refresh_from_db()
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


def _parsed(pairs: list[str]) -> dict[str, Any]:
    parsed: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise CommandError(f"{pair!r} is no key=value.", returncode=2)
        try:
            parsed[key] = json.loads(value)
        except ValueError:
            parsed[key] = value
    return parsed


@contextmanager
def _interruptions() -> Iterator[list[str]]:
    """The names of the signals that arrived. Acted on between two looks: the database may be in use when one comes."""
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
