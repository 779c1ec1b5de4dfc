"""Results and errors as hosts see them.

Some hosts show the model only the text, others only the structured content, so whatever we say
ourselves stands completely in both. What a server said passes through as it came.
"""

from __future__ import annotations

from typing import Any

from mcp import types as t
from mcp.shared.exceptions import MCPError

from mcpregistry.calls.call import CallOutcome

_SERVER_INFO = "io.modelcontextprotocol/serverInfo"


def tool_result(outcome: CallOutcome, *, legacy: bool) -> dict[str, Any]:
    """The result object for ``tools/call``. Raises MCPError -32602 for an unknown tool."""
    if outcome.result is not None:
        return _passed_through(outcome.result, legacy=legacy)
    if outcome.error_code == "NOT_FOUND":
        raise MCPError(t.INVALID_PARAMS, outcome.message)
    return _own_words(outcome)


def _own_words(outcome: CallOutcome) -> dict[str, Any]:
    text = f"{outcome.error_code}: {outcome.message} {outcome.remedy}".strip()
    said = {
        "error": outcome.error_code,
        "message": outcome.message,
        "remedy": outcome.remedy,
        "state": outcome.state.value,
        "call": outcome.invocation_id,
    }
    return {
        "resultType": "complete",
        "isError": True,
        "content": [{"type": "text", "text": f"{text} (call {outcome.invocation_id})"}],
        "structuredContent": said,
    }


def _passed_through(result: dict[str, Any], *, legacy: bool) -> dict[str, Any]:
    """The server's own result; only its name tag is replaced by ours, which the SDK adds."""
    answer = {"resultType": "complete", "content": []} | result
    meta = answer.get("_meta")
    if isinstance(meta, dict) and _SERVER_INFO in meta:
        answer["_meta"] = {key: value for key, value in meta.items() if key != _SERVER_INFO}
    if legacy and "structuredContent" in answer and not isinstance(answer["structuredContent"], dict):
        # Before 2026-07-28 structured content had to be an object; anything else fails the whole call.
        answer["structuredContent"] = {"result": answer["structuredContent"]}
    return answer
