"""Tools of the conformance suite's set of 2025-11-25 that ask the host: in the era in which they
are called, or always in the way of the older one."""

from __future__ import annotations

import json
import warnings
from typing import Any

from mcp import types as t
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

_STRING = {"type": "string"}
_DEFAULTS: dict[str, Any] = {
    "name": {"type": "string", "default": "John Doe"},
    "age": {"type": "integer", "default": 30},
    "score": {"type": "number", "default": 95.5},
    "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
    "verified": {"type": "boolean", "default": True},
}
_OPTIONS = ["option1", "option2", "option3"]
_TITLED = [{"const": f"value{n}", "title": f"Option {n}"} for n in (1, 2, 3)]
_ENUMS: dict[str, Any] = {
    "untitledSingle": {"type": "string", "enum": _OPTIONS},
    "titledSingle": {"type": "string", "oneOf": _TITLED},
    "legacyEnum": {
        "type": "string",
        "enum": ["opt1", "opt2", "opt3"],
        "enumNames": ["Option One", "Option Two", "Option Three"],
    },
    "untitledMulti": {"type": "array", "items": {"type": "string", "enum": _OPTIONS}},
    "titledMulti": {"type": "array", "items": {"anyOf": _TITLED}},
}


def _elicitation(message: str, properties: dict[str, Any], *required: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": [*required]}
    return {
        "method": "elicitation/create",
        "params": {"message": message, "requestedSchema": schema},
    }


def _question(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    if name == "test_sampling":
        message = {
            "role": "user",
            "content": {"type": "text", "text": arguments.get("prompt", "?")},
        }
        return {
            "method": "sampling/createMessage",
            "params": {"messages": [message], "maxTokens": 100},
        }
    if name == "test_url":
        params = {
            "mode": "url",
            "message": "Please sign in",
            "url": "https://example.com/in",
            "elicitationId": "e1",
        }
        return {"method": "elicitation/create", "params": params}
    if name == "test_roots":
        return {"method": "roots/list"}
    if name == "test_elicitation":
        properties = {"username": _STRING, "email": _STRING}
        return _elicitation(
            arguments.get("message", "Who are you?"), properties, "username", "email"
        )
    return _elicitation("Please fill this in", _DEFAULTS if "1034" in name else _ENUMS)


ASKED = (
    "test_sampling",
    "test_elicitation",
    "test_elicitation_sep1034_defaults",
    "test_elicitation_sep1330_enums",
    "test_url",
    "test_roots",
)


async def ask(ctx: Any, params: t.CallToolRequestParams) -> dict[str, Any]:
    """The host's answer as text; in the modern era the question comes first, as a round."""
    question = _question(params.name, params.arguments or {})
    if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        answer = await ctx.session._request_outbound.send_raw_request(
            question["method"], question.get("params")
        )
    elif not params.input_responses:
        question.get("params", {}).pop("elicitationId", None)  # only the older era has it
        return {
            "resultType": "input_required",
            "inputRequests": {"question": question},
            "requestState": "asked",
        }
    else:
        given = params.input_responses["question"]
        answer = (
            given.model_dump(by_alias=True, exclude_none=True)
            if hasattr(given, "model_dump")
            else given
        )
    return _text(f"answered: {json.dumps(answer, sort_keys=True)}")


async def ask_by_request(ctx: Any, params: t.CallToolRequestParams) -> dict[str, Any]:
    """The same by a request of its own in either era, as ``ctx.elicit`` and ``create_message`` of
    the SDK send it. In the newer era this fails. The result then says so, as in the example of the
    SDK.
    """
    question = _question(params.name, params.arguments or {})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MCPDeprecationWarning)
            asking = _request(ctx, question["method"], question.get("params", {}))
        answer = await asking
    except MCPError as error:
        return _text(f"This host cannot be asked: {error}")
    return _text(f"answered: {answer.model_dump_json(by_alias=True, exclude_none=True)}")


def _request(ctx: Any, method: str, params: dict[str, Any]) -> Any:
    if method == "roots/list":
        return ctx.session.list_roots()
    if method == "sampling/createMessage":
        messages = [t.SamplingMessage.model_validate(each) for each in params["messages"]]
        return ctx.session.create_message(
            messages, max_tokens=100, related_request_id=ctx.request_id
        )
    if params.get("mode") == "url":
        return ctx.session.elicit_url(
            params["message"], params["url"], "e1", related_request_id=ctx.request_id
        )
    return ctx.session.elicit_form(
        params["message"], params["requestedSchema"], related_request_id=ctx.request_id
    )


def _text(value: str) -> dict[str, Any]:
    return {"resultType": "complete", "content": [{"type": "text", "text": value}]}
