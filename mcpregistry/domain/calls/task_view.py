"""A task as hosts see it (``io.modelcontextprotocol/tasks``, 2026-07-28), derived from the call
behind it.

``completed`` is everything with a result, refusals included: their reason belongs into the result's
text, which is all that a model is shown. ``failed`` is a JSON-RPC error alone, ``cancelled`` only
what the client itself withdrew; hosts throw both at their users.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcpregistry.domain.calls.outcome_texts import CORRECTED, compose_headline
from mcpregistry.domain.lifecycle import TERMINAL, InvocationState

DONE = frozenset({"completed", "failed", "cancelled"})
CORRECTED_KEY = "slipsnisse/corrected"  # in the _meta of a result
_RELATED = "io.modelcontextprotocol/related-task"  # of the draft of 2025; gone
_SERVER_INFO = "io.modelcontextprotocol/serverInfo"  # the server's name tag; hosts get ours


def map_task_status(state: InvocationState, *, withdrawn: bool, error: bool, asking: bool) -> str:
    """The status of a host's task (``working``, ``input_required``, ``completed``, ``failed``,
    ``cancelled``).

    ``withdrawn``: the client has cancelled it and nothing was made of it. ``error``: it ended in a
    JSON-RPC error. ``asking``: the server waits for the host's input.
    """
    if state not in TERMINAL:
        return "input_required" if asking and state is InvocationState.DISPATCHED else "working"
    if withdrawn:
        return "cancelled"
    return "failed" if error else "completed"


def embed_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result as it stands inside ``tasks/get``: without the fields of the answer around it."""
    own = {key: value for key, value in result.items() if key not in ("resultType", "_meta")}
    meta = result.get("_meta")
    kept = (
        {k: v for k, v in meta.items() if k not in (_RELATED, _SERVER_INFO)}
        if isinstance(meta, dict)
        else {}
    )
    return own | ({"_meta": kept} if kept else {})


def mark_corrected_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result that takes the place of the unknown that the host may have been shown: it says so,
    ahead of all else."""
    note = {"type": "text", "text": CORRECTED}
    meta = result.get("_meta") or {}
    named = {CORRECTED_KEY: {"was": InvocationState.UNKNOWN.value}}
    return {**result, "content": [note, *result.get("content", [])], "_meta": {**meta, **named}}


def compose_tool_error(
    *, code: str, text: str, state: InvocationState, **facts: str
) -> dict[str, Any]:
    """A tool error in our own words, said in the text and in the structured content: hosts show
    only one of them.

    ``facts`` go into the structured content; ``call`` (the call's id) must be among them.
    """
    begin = compose_headline(state, code)
    said = f"{begin}: {text}" if begin else text
    return {
        "isError": True,
        "content": [{"type": "text", "text": f"{said} (call {facts['call']})"}],
        "structuredContent": {"error": code, "message": text, "state": state.value} | facts,
    }
