"""Results and errors as hosts see them.

Some hosts show the model only the text, others only the structured content, so whatever we say
ourselves stands completely in both. What a server said passes through as it came.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mcp import types as t
from mcp.shared.exceptions import MCPError

from mcpregistry.calls.approvals.held_call_status import describe_held_call
from mcpregistry.calls.call import CallOutcome
from mcpregistry.domain.calls.argument_edits import META_KEY
from mcpregistry.domain.calls.outcome_texts import RECORD_LATE, compose_headline
from mcpregistry.domain.calls.pages import URL_ELICITATION_REQUIRED
from mcpregistry.domain.definitions.naming import split_exposed_uri
from mcpregistry.domain.lifecycle import TERMINAL
from mcpregistry.domain.offer_kinds import PROMPT, RESOURCE, TOOL
from mcpregistry.services.energy.reservations import Charged

RECORD_KEY = "slipsnisse/record"  # in the _meta of a result
ENERGY_KEY = "slipsnisse/energy"  # there too, on endpoints that tell it
_NO_RESOURCE = -32002  # MCP 2025-11-25
CAPABILITY_MISSING = -32021  # MCP 2026-07-28


def build_tool_result(outcome: CallOutcome, *, legacy: bool, typed: bool = False) -> dict[str, Any]:
    """The result object for ``tools/call``. Raises MCPError -32602 for an unknown tool.

    ``typed``: the tool was listed with an output schema. Hosts hold a result's structured content
    against it, the TypeScript SDK's that of an error as well, and lose what does not fit. So our
    own words for such a tool are an error in text alone, which every host shows.
    """
    if outcome.error_code == "NOT_FOUND" and outcome.result is None:
        raise MCPError(t.INVALID_PARAMS, outcome.message)
    for_programs = (
        {URL_ELICITATION_REQUIRED} if legacy else {URL_ELICITATION_REQUIRED, CAPABILITY_MISSING}
    )
    if outcome.rpc_code in for_programs and isinstance(
        outcome.rpc_data, dict
    ):  # a program can act on it, a model cannot
        raise MCPError(outcome.rpc_code, outcome.message, outcome.rpc_data)
    if outcome.result is not None:
        result = outcome.result if typed else _copy_edit_note(outcome.result)
        return _pass_through(
            add_record_notes(result, late=outcome.late, energy=outcome.energy), legacy=legacy
        )
    own = (
        _build_own_answer(outcome)
        if outcome.ticket is None or outcome.state in TERMINAL
        else _build_pending_answer(outcome)
    )
    if typed:
        del own["structuredContent"]
        own["isError"] = True
    return _pass_through(
        add_record_notes(own, late=outcome.late, energy=outcome.energy), legacy=legacy
    )


def build_prompt_result(outcome: CallOutcome, *, legacy: bool) -> dict[str, Any]:
    """The result object for ``prompts/get``. It has no room for words of ours, so a refusal, or
    that people are still asked, is raised as an MCPError: hosts show its message to the person who
    chose the prompt.
    """
    if outcome.result is not None:
        result = add_record_notes(outcome.result, late=outcome.late, energy=outcome.energy)
        return _check_answer(result, "messages", _is_message, legacy=legacy)
    raise _make_error(outcome, PROMPT)


def build_resource_result(outcome: CallOutcome, uri: str, *, legacy: bool) -> dict[str, Any]:
    """The same for ``resources/read``; ``uri`` is what the host asked for, and what it finds in the
    answer."""
    if outcome.error_code == "NOT_FOUND" and outcome.result is None:
        raise MCPError(
            _NO_RESOURCE if legacy else t.INVALID_PARAMS, "Resource not found", {"uri": uri}
        )
    if outcome.result is None:
        raise _make_error(outcome, RESOURCE)
    result = add_record_notes(outcome.result, late=outcome.late, energy=outcome.energy)
    answer = _check_answer(result, "contents", _is_content, legacy=legacy)
    _, own = split_exposed_uri(uri)
    answer["contents"] = [
        part | {"uri": uri} if part["uri"] == own else part for part in answer["contents"]
    ]
    return answer


def _make_error(outcome: CallOutcome, kind: str) -> MCPError:
    if outcome.error_code in {"NOT_FOUND", "ARGUMENTS_INVALID"}:
        return MCPError(t.INVALID_PARAMS, f"{outcome.message} {outcome.remedy}".strip())
    if outcome.rpc_code:
        # the server's own words
        return MCPError(outcome.rpc_code, outcome.message, outcome.rpc_data)
    pending = outcome.ticket is not None and outcome.state not in TERMINAL
    said = _build_pending_answer(outcome, kind) if pending else _build_own_answer(outcome)
    return MCPError(t.INTERNAL_ERROR, said["content"][0]["text"], said["structuredContent"])


def add_record_notes(
    result: dict[str, Any], *, energy: Charged | None, late: bool = False
) -> dict[str, Any]:
    """For programs: what the record says of this call is not what is answered here, for the moment;
    what it has cost.

    Only we say that, so what a server claims under our keys is taken away.
    """
    ours: dict[str, Any] = {RECORD_KEY: RECORD_LATE} if late else {}
    ours |= {ENERGY_KEY: describe_energy(energy)} if energy else {}
    meta = result.get("_meta")
    theirs = meta if isinstance(meta, dict) else {}
    if not ours and ENERGY_KEY not in theirs:
        return result
    return result | {
        "_meta": {key: value for key, value in theirs.items() if key != ENERGY_KEY} | ours
    }


def describe_energy(charged: Charged) -> dict[str, float]:
    """What a call has cost, as the books have it, and what was left then."""
    return {"charged": charged.amount, "level": charged.level}


def _copy_edit_note(result: dict[str, Any]) -> dict[str, Any]:
    """What an approver changed stands in the text; a model that is shown the structure alone must
    read it too.

    Only where the tool promises no form of it: there a stranger's key would cost the whole result.
    """
    meta = result.get("_meta")
    said = result.get("structuredContent")
    if not isinstance(meta, dict) or META_KEY not in meta or not isinstance(said, dict):
        return result
    return {**result, "structuredContent": {META_KEY: result["content"][0]["text"], **said}}


def _build_pending_answer(outcome: CallOutcome, kind: str = TOOL) -> dict[str, Any]:
    """ "Pending". No error: models take an error for a reason to try another way, which is what
    must not happen."""
    ticket = outcome.ticket
    assert ticket is not None
    said = describe_held_call(ticket, ticket.state, kind)
    return {"content": [{"type": "text", "text": said["message"]}], "structuredContent": said}


def _build_own_answer(outcome: CallOutcome) -> dict[str, Any]:
    text = f"{compose_headline(outcome.state, outcome.error_code)}: {outcome.message} {outcome.remedy}".strip()
    said = {
        "error": outcome.error_code,
        "message": outcome.message,
        "remedy": outcome.remedy,
        "state": outcome.state.value,
        "call": outcome.invocation_id,
    }
    return {
        "isError": True,
        "content": [{"type": "text", "text": f"{text} (call {outcome.invocation_id})"}],
        "structuredContent": said,
    }


def _pass_through(result: dict[str, Any], *, legacy: bool) -> dict[str, Any]:
    """The server's own result; only its name tag is replaced by ours, which the SDK adds."""
    return _check_answer(result, "content", _is_part, legacy=legacy)


def _check_answer(
    result: dict[str, Any], key: str, fits: Callable[[Any], bool], *, legacy: bool
) -> dict[str, Any]:
    answer = {"resultType": "complete", key: []} | result
    if not isinstance(answer[key], list) or not all(map(fits, answer[key])):
        raise MCPError(
            t.INTERNAL_ERROR,
            f"The call ran, but its answer is not valid: {key} is not a list of content parts. "
            "Do not repeat the call before checking.",
        )
    meta = answer.get("_meta")
    if isinstance(meta, dict):
        answer["_meta"] = {
            key: value for key, value in meta.items() if key != t.SERVER_INFO_META_KEY
        }
    else:
        answer.pop("_meta", None)
    return _adapt_for_legacy(answer) if legacy else answer


def _is_part(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("type"), str)


def _is_content(part: Any) -> bool:
    held = (part.get("text"), part.get("blob")) if isinstance(part, dict) else ()
    return (
        isinstance(part, dict)
        and isinstance(part.get("uri"), str)
        and any(isinstance(each, str) for each in held)
    )


def _is_message(message: Any) -> bool:
    return (
        isinstance(message, dict)
        and message.get("role") in ("user", "assistant")
        and _is_part(message.get("content"))
    )


def _adapt_for_legacy(answer: dict[str, Any]) -> dict[str, Any]:
    """Before 2026-07-28 structured content had to be an object; anything else fails the whole
    call."""
    del answer["resultType"]
    if "structuredContent" in answer and not isinstance(answer["structuredContent"], dict):
        answer["structuredContent"] = {"result": answer["structuredContent"]}
    return answer
