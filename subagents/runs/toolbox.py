"""The tools of one run, and the way to them: the same pipeline as every other call.

The catalogue of the expert tool's own agent is the whole world of the model: a name that is not in
it does not exist, however it is spelled.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcpregistry.calls.call import CallHost, CallOutcome, CallRequest, OnProgress
from mcpregistry.calls.catalog import Catalogue
from mcpregistry.calls.engine import Engine
from mcpregistry.calls.recorded_outcomes import build_recorded_outcome
from mcpregistry.domain.calls.requester import NOBODY, Requester
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.lifecycle import TERMINAL, InvocationState
from mcpregistry.domain.policy.decision import RuleOutcome
from mcpregistry.domain.policy.risk import assess_risk
from mcpregistry.domain.schema.validation import list_problems
from mcpregistry.domain.servers.sessions import name_run_session
from mcpregistry.domain.text.canonical import encode_lossy_json, hash_parts
from mcpregistry.models import Invocation
from subagents.domain import outputs
from subagents.domain.coercion import coerce_arguments
from subagents.domain.lifecycle import CallState
from subagents.domain.transcript import TIMED_OUT, UNKNOWN_OUTCOME, CallView, failure
from subagents.models import StoredOutput
from subagents.runs.records import ToolCallEnd

_OUTPUT = outputs.TOOL["function"]
HOST = CallHost(
    name="run", transport="run", tasks=True
)  # a held call gives its handle back at once


@dataclass(frozen=True, slots=True)
class Toolbox:
    """``definitions`` in OpenAI's shape, sorted by name so that providers' caches see the same
    prefix.

    ``catalogue``: of this moment (``Engine.get_run_catalogue``), so that a grant withdrawn binds a
    running run as well.
    """

    engine: Engine
    catalogue: Catalogue
    run: str
    expert: str
    requester: Requester = NOBODY  # the person who started the run: its calls are theirs
    # the agents whose calls have led to the run, and the endpoint by which they came
    payers: tuple[str, ...] = ()
    conversation: str = ""  # the id of that which the run, and so its calls, belong to

    @property
    def read_only(self) -> frozenset[str]:
        """Tools that an approver has confirmed to change nothing; ours to read stored outputs is
        one."""
        names = (
            name
            for name, entry in self.catalogue.entries.items()
            if assess_risk(entry.offer.tool).read_only
        )
        return frozenset((outputs.TOOL["function"]["name"], *names))

    @property
    def fingerprint(self) -> str:
        """Of what the model may use at this moment; grants end by the clock, too."""
        names = sorted(
            (name, entry.offer.tool.definition_hash)
            for name, entry in self.catalogue.entries.items()
        )
        return hash_parts(encode_lossy_json(names))

    def repeatable(self, name: str) -> bool:
        """Whether an operator marked the tool read-only or idempotent, so that repeating it cannot
        harm."""
        entry = self.catalogue.find(name)
        return name in self.read_only or (entry is not None and entry.offer.tool.idempotent)

    def energy(self, name: str) -> float:
        """The operator's estimate of what one call draws; 0 for an unknown tool."""
        entry = self.catalogue.find(name)
        return entry.offer.tool.energy if entry else 0.0

    def definitions(self) -> list[dict[str, Any]]:
        """The tools in OpenAI's shape, sorted by name."""
        entries = sorted(self.catalogue.entries.items())
        tools = [_definition(name, entry.listing) for name, entry in entries]
        return [*tools, outputs.TOOL] if tools else []

    def instructions(self) -> dict[str, str]:
        """What each server says about its tools, as it was approved with them."""
        said = (
            (e.offer.server.slug, e.offer.tool.instructions)
            for e in self.catalogue.entries.values()
        )
        return {server: text for server, text in said if text}

    def read_arguments(
        self, name: str, arguments: Mapping[str, Any]
    ) -> tuple[dict[str, Any], list[str]]:
        """The arguments as the tool's schema reads them, before anything is decided on them; see
        ``coercion``."""
        entry = self.catalogue.find(name)
        schema = entry.listing.get("inputSchema") if entry else None
        return coerce_arguments(
            _OUTPUT["parameters"] if name == _OUTPUT["name"] else schema, arguments
        )

    def unknown(self, name: str) -> str:
        """What the model is told that asks for a tool which is not there."""
        near = difflib.get_close_matches(name, self.catalogue.entries, n=3)
        known = near or sorted(self.catalogue.entries)[:10]
        return f"No tool named {name!r}. " + (
            f"Did you mean {', '.join(known)}?" if known else "No tools are available."
        )

    def joins(self, call: CallView) -> bool:
        """Whether a call may be made at the same time as others: its tool only reads, or no person
        is asked about it."""
        if call.read_only:
            return True
        try:
            arguments, _ = self.read_arguments(call.name, json.loads(call.arguments))
            judged = self.engine.judge(self._request(call.name, arguments))
        except (SlipsnisseError, ValueError, TypeError):  # the call itself says what is wrong
            return False
        return judged.call.decision.outcome is RuleOutcome.ALLOW

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        invocation: str,
        on_progress: OnProgress | None = None,
    ) -> CallOutcome:
        """Make the call through the pipeline. PENDING or READY means: people decide, look again
        later.

        In the caller's own task: who cancels it waits until what it has started is gone.
        """
        request = self._request(name, arguments, on_progress=on_progress, call_id=invocation)
        return await self.engine.proceed(self.engine.judge(request))

    def _request(self, name: str, arguments: Mapping[str, Any], **more: Any) -> CallRequest:
        return CallRequest(
            self.catalogue,
            name,
            arguments,
            "run",
            host_name=self.expert,
            request_id=self.run,
            host=HOST,
            expert=self.expert,
            requester=self.requester,
            conversation=self.conversation,
            session=name_run_session(self.run),
            behind=self.engine.live.current.list_payers(self.payers),
            **more,
        )

    def leave(self) -> None:
        """The run has ended: its own connections to servers close, in the background."""
        self.engine.placement.end_session(name_run_session(self.run))


def _definition(name: str, listing: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": str(listing.get("description") or listing.get("title") or name),
            "parameters": listing.get("inputSchema") or {"type": "object", "properties": {}},
        },
    }


def describe_end(outcome: CallOutcome) -> ToolCallEnd:
    """What the model reads of a call that has ended."""
    if outcome.state == InvocationState.UNKNOWN:
        text = (
            f"{TIMED_OUT}. {UNKNOWN_OUTCOME}"
            if outcome.error_code == "TIMEOUT"
            else UNKNOWN_OUTCOME
        )
        return ToolCallEnd(
            CallState.UNKNOWN, text, is_error=True, facts={"code": outcome.error_code}
        )
    if outcome.result is not None:
        text = outputs.flatten_result(outcome.result)
        links = outputs.find_links(outcome.result)
        facts = {"links": links} if links else {}
        if outcome.state == InvocationState.SUCCEEDED:
            return ToolCallEnd(CallState.DONE, text, text, facts=facts)
        return ToolCallEnd(CallState.FAILED, failure(text), text, is_error=True, facts=facts)
    words = failure(f"{outcome.message} {outcome.remedy}".strip())
    state = (
        CallState.FAILED
        if outcome.state in (InvocationState.TOOL_ERROR, InvocationState.NOT_SENT)
        else CallState.REFUSED
    )
    return ToolCallEnd(state, words, is_error=True, facts={"code": outcome.error_code})


def find_recorded_end(invocation: str) -> ToolCallEnd | InvocationState | None:
    """What the records say of a call: its end, its state while it is open, None if it was never
    begun."""
    call = Invocation.objects.filter(pk=invocation).first()
    if call is None:
        return None
    state = InvocationState(call.state)
    return describe_end(build_recorded_outcome(call)) if state in TERMINAL else state


def read_output(run: str, arguments: Mapping[str, Any]) -> ToolCallEnd:
    """Our own tool for stored outputs: a page of lines, or the lines with a word."""
    wrong = list_problems(outputs.TOOL["function"]["parameters"], arguments)
    if wrong:
        return ToolCallEnd(CallState.REFUSED, failure(" ".join(wrong)), is_error=True)
    kept = StoredOutput.objects.filter(pk=arguments["handle"], run_id=run).first()
    if kept is None:
        return ToolCallEnd(
            CallState.REFUSED, failure("No stored output with this handle."), is_error=True
        )
    if "find" in arguments:
        return _make_done(outputs.find_lines(kept.text, arguments["find"]))
    page = outputs.page(
        kept.text,
        from_line=int(arguments.get("from_line", 1)),
        lines=int(arguments.get("lines", 200)),
    )
    return _make_done(f"Lines {page.first} to {page.last} of {page.of}:\n{page.text}")


def _make_done(text: str) -> ToolCallEnd:
    return ToolCallEnd(CallState.DONE, text, text)
