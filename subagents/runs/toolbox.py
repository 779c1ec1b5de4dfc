"""The tools of one run, and the way to them: the same pipeline as every other call.

The catalogue of the expert tool's own agent is the whole world of the model: a name that is not in it
does not exist, however it is spelled.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcpregistry.calls.call import CallOutcome, CallRequest, Host, OnProgress
from mcpregistry.calls.catalog import Catalogue
from mcpregistry.calls.engine import Engine
from mcpregistry.domain.canonical import digest, stored
from mcpregistry.domain.lifecycle import TERMINAL, State
from mcpregistry.domain.risk import risk_of
from mcpregistry.domain.schema import problems
from mcpregistry.models import ApprovalRequest, Invocation, Task
from subagents.domain import outputs
from subagents.domain.lifecycle import CallState
from subagents.domain.transcript import TIMED_OUT, UNKNOWN_OUTCOME
from subagents.models import StoredOutput
from subagents.runs.records import Ended

HOST = Host(name="run", transport="run", tasks=True)  # a held call gives its handle back at once


@dataclass(frozen=True, slots=True)
class Toolbox:
    """``definitions`` in OpenAI's shape, sorted by name so that providers' caches see the same prefix.

    ``catalogue``: of this moment (``Engine.run_catalogue``), so that a grant withdrawn binds a running run as well.
    """

    engine: Engine
    catalogue: Catalogue
    run: str
    expert: str

    @property
    def read_only(self) -> frozenset[str]:
        """Tools that an operator has confirmed to change nothing; ours to read stored outputs is one."""
        names = (name for name, entry in self.catalogue.entries.items() if risk_of(entry.offer.tool).read_only)
        return frozenset((outputs.TOOL["function"]["name"], *names))

    @property
    def fingerprint(self) -> str:
        """Of what the model may use at this moment; grants end by the clock, too."""
        names = sorted((name, entry.offer.tool.definition_hash) for name, entry in self.catalogue.entries.items())
        return digest(stored(names))

    def repeatable(self, name: str) -> bool:
        entry = self.catalogue.find(name)
        return name in self.read_only or (entry is not None and entry.offer.tool.idempotent)

    def energy(self, name: str) -> float:
        entry = self.catalogue.find(name)
        return entry.offer.tool.energy if entry else 0.0

    def definitions(self) -> list[dict[str, Any]]:
        entries = sorted(self.catalogue.entries.items())
        tools = [_definition(name, entry.listing) for name, entry in entries if not entry.offer.aside]
        return [*tools, outputs.TOOL] if tools else []

    def instructions(self) -> dict[str, str]:
        """What each server says about its tools, as it was approved with them."""
        said = ((e.offer.server.slug, e.offer.tool.instructions) for e in self.catalogue.entries.values())
        return {server: text for server, text in said if text}

    def unknown(self, name: str) -> str:
        near = difflib.get_close_matches(name, self.catalogue.entries, n=3)
        known = near or sorted(self.catalogue.entries)[:10]
        return f"There is no tool {name!r}. " + (f"Did you mean {', '.join(known)}?" if known else "There are none.")

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, invocation: str, on_progress: OnProgress | None = None
    ) -> CallOutcome:
        """Through the pipeline. A state of PENDING or READY means: people decide, look again later."""
        request = CallRequest(
            self.catalogue, name, arguments, "run", host_name=self.expert, request_id=self.run, on_progress=on_progress,
            host=HOST, expert=self.expert, call_id=invocation,
        )  # fmt: skip
        return await self.engine.call(request)


def _definition(name: str, listing: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": str(listing.get("description") or listing.get("title") or name),
            "parameters": listing.get("inputSchema") or {"type": "object", "properties": {}},
        },
    }


def ended(outcome: CallOutcome) -> Ended:
    """What the model reads of a call that has ended."""
    if outcome.state == State.UNKNOWN:
        text = f"{TIMED_OUT}. {UNKNOWN_OUTCOME}" if outcome.error_code == "TIMEOUT" else UNKNOWN_OUTCOME
        return Ended(CallState.UNKNOWN, text, is_error=True, facts={"code": outcome.error_code})
    if outcome.result is not None:
        text = outputs.flattened(outcome.result)
        failed = outcome.state != State.SUCCEEDED
        return Ended(CallState.FAILED if failed else CallState.DONE, text, text, is_error=failed)
    words = f"(tool failed: {outcome.message} {outcome.remedy}".strip() + ")"
    state = CallState.FAILED if outcome.state in (State.TOOL_ERROR, State.NOT_SENT) else CallState.REFUSED
    return Ended(state, words, is_error=True, facts={"code": outcome.error_code})


def recorded(invocation: str) -> Ended | State | None:
    """What the records say of a call: its end, its state while it is open, None if it was never begun."""
    call = Invocation.objects.filter(pk=invocation).first()
    if call is None:
        return None
    state = State(call.state)
    return ended(_outcome_of(call, state)) if state in TERMINAL else state


def _outcome_of(call: Invocation, state: State) -> CallOutcome:
    held = ApprovalRequest.objects.filter(call=call).only("result").first()
    text = (held.result if held else "") or call.result
    task = Task.objects.filter(call=call).exclude(result="").only("result").first()
    try:
        result = json.loads(task.result).get("result") if task else json.loads(text) if text else None
    except ValueError:  # only its beginning was kept
        result = {"content": [{"type": "text", "text": f"{text}\n(the rest of this result was not kept)"}]}
    return CallOutcome(call.pk, state, result, call.error_code, call.reason)


def read_output(run: str, arguments: Mapping[str, Any]) -> Ended:
    """Our own tool for stored outputs: a page of lines, or the lines with a word."""
    wrong = problems("tool_output", outputs.TOOL["function"]["parameters"], arguments)
    if wrong:
        return Ended(CallState.REFUSED, f"(tool failed: {' '.join(wrong)})", is_error=True)
    kept = StoredOutput.objects.filter(pk=arguments["handle"], run_id=run).first()
    if kept is None:
        return Ended(CallState.REFUSED, "There is no stored output with this handle in this run.", is_error=True)
    if "find" in arguments:
        return _done(outputs.found(kept.text, arguments["find"]))
    page = outputs.page(kept.text, from_line=int(arguments.get("from_line", 1)), lines=int(arguments.get("lines", 200)))
    return _done(f"Lines {page.first} to {page.last} of {page.of}:\n{page.text}")


def _done(text: str) -> Ended:
    return Ended(CallState.DONE, text, text)
