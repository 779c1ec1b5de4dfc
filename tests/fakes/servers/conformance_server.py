"""The tools, and the prompts beside this file, that the official conformance suite calls, as far as
tools of the modern era and plain ones go.

Texts and shapes are those that ``@modelcontextprotocol/conformance`` 0.2.0-alpha.12 describes in
its scenarios.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from typing import Any

from mcp import MCPError
from mcp import types as t
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler

from tests.fakes.servers.conformance_prompts import get_prompt, list_prompts
from tests.fakes.servers.conformance_questions import ASKED, ask, ask_by_request
from tests.fakes.servers.conformance_resources import list_resources, list_templates, read_resource

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
SILENCE = "UklGRiQAAABXQVZFZm10IBAAAAABAAEARKwAAIhYAQACABAAZGF0YQAAAAA="
ANY = {"type": "object"}
STRING = {"type": "string"}
BOOLEAN = {"type": "boolean"}

# As the scenario json-schema-2020-12 wants it to come through.
SCHEMA_2020 = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": STRING, "city": STRING},
        }
    },
    "properties": {
        "name": STRING,
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": STRING,
        "email": STRING,
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
WITH_HEADER = {
    "type": "object",
    "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
    "required": ["region"],
}


def said(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"resultType": "complete", "content": list(parts), **more}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


IMAGE = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
AUDIO = {"type": "audio", "data": SILENCE, "mimeType": "audio/wav"}
RESOURCE = {
    "uri": "test://embedded-resource",
    "mimeType": "text/plain",
    "text": "This is an embedded resource content.",
}
JSON_RESOURCE = {
    "uri": "test://mixed-content-resource",
    "mimeType": "application/json",
    "text": '{"test":"data","value":123}',
}

PLAIN: dict[str, dict[str, Any]] = {
    "test_simple_text": said(text("This is a simple text response for testing.")),
    "test_image_content": said(IMAGE),
    "test_audio_content": said(AUDIO),
    "test_embedded_resource": said({"type": "resource", "resource": RESOURCE}),
    "test_multiple_content_types": said(
        text("Multiple content types test:"), IMAGE, {"type": "resource", "resource": JSON_RESOURCE}
    ),
    "test_error_handling": said(
        text("This tool intentionally returns an error for testing"), isError=True
    ),
    "test_logging_tool": said(text("nothing is logged here")),
    "test_streaming_elicitation": said(text("no question is asked here")),
    "test_trigger_tool_change": said(text("the gateway's list is the operator's; nothing changes")),
    "test_trigger_prompt_change": said(text("there are no prompts")),
    "json_schema_2020_12_tool": said(text("fits")),
    "test_with_header": said(text("seen")),
}


def elicit(message: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {
        "method": "elicitation/create",
        "params": {"message": message, "requestedSchema": schema},
    }


def sample(prompt: str, tokens: int) -> dict[str, Any]:
    message = {"role": "user", "content": {"type": "text", "text": prompt}}
    return {
        "method": "sampling/createMessage",
        "params": {"messages": [message], "maxTokens": tokens},
    }


ROOTS: dict[str, Any] = {"method": "roots/list", "params": {}}
NAME = elicit("What is your name?", name=STRING)


def asks(state: str = "", **requests: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {"resultType": "input_required", "inputRequests": requests}
    return asked | ({"requestState": state} if state else {})


Asking = Callable[[dict[str, Any], str, Any], dict[str, Any]]


def _elicitation(answers: dict[str, Any], state: str, can: Any) -> dict[str, Any]:
    given = answers.get("user_name")
    if not isinstance(given, dict) or "content" not in given:
        return asks(user_name=NAME)
    return said(text(f"Hello, {given['content'].get('name')}!"))


def _sampling(answers: dict[str, Any], state: str, can: Any) -> dict[str, Any]:
    if "capital_question" not in answers:
        return asks(capital_question=sample("What is the capital of France?", 100))
    return said(text(str(answers["capital_question"])))


def _roots(answers: dict[str, Any], state: str, can: Any) -> dict[str, Any]:
    return (
        said(text(str(answers["client_roots"])))
        if "client_roots" in answers
        else asks(client_roots=ROOTS)
    )


def _state(answers: dict[str, Any], state: str, can: Any) -> dict[str, Any]:
    if state == "state-1" and "confirm" in answers:
        return said(text("state-ok"))
    return asks("state-1", confirm=elicit("Please confirm", ok=BOOLEAN))


def _several(answers: dict[str, Any], state: str, can: Any) -> dict[str, Any]:
    if state == "several" and len(answers) >= 3:
        return said(text("all there"))
    return asks(
        "several", user_name=NAME, greeting=sample("Generate a greeting", 50), client_roots=ROOTS
    )


def _rounds(answers: dict[str, Any], state: str, can: Any) -> dict[str, Any]:
    if state == "round-2" and "step2" in answers:
        return said(text("done"))
    if state == "round-1" and "step1" in answers:
        return asks("round-2", step2=elicit("Step 2: What is your favorite color?", color=STRING))
    return asks("round-1", step1=elicit("Step 1: What is your name?", name=STRING))


def _sealed(answers: dict[str, Any], state: str, can: Any) -> dict[str, Any]:
    good = "v." + hmac.new(b"conformance", b"v", "sha256").hexdigest()
    if state and not hmac.compare_digest(state, good):
        raise MCPError(t.INVALID_PARAMS, "requestState was tampered with")
    return (
        said(text("untouched"))
        if state
        else asks(good, confirm=elicit("Please confirm", ok=BOOLEAN))
    )


def _capable(answers: dict[str, Any], state: str, can: Any) -> dict[str, Any]:
    kinds = {
        "name": ("elicitation", NAME),
        "capital": ("sampling", sample("Capital of France?", 50)),
    }
    asked = {
        key: request
        for key, (kind, request) in kinds.items()
        if getattr(can, kind, None) is not None
    }
    return said(text("answered")) if answers else asks(**asked)


ASKING: dict[str, Asking] = {
    "test_input_required_result_elicitation": _elicitation,
    "test_input_required_result_sampling": _sampling,
    "test_input_required_result_list_roots": _roots,
    "test_input_required_result_request_state": _state,
    "test_input_required_result_multiple_inputs": _several,
    "test_input_required_result_multi_round": _rounds,
    "test_input_required_result_tampered_state": _sealed,
    "test_input_required_result_capabilities": _capable,
}

_SCHEMAS = {"json_schema_2020_12_tool": SCHEMA_2020, "test_with_header": WITH_HEADER}
TOOLS = [
    {"name": name, "description": f"Test tool {name}.", "inputSchema": _SCHEMAS.get(name, ANY)}
    for name in [
        *PLAIN,
        *ASKING,
        "test_tool_with_progress",
        "test_tool_with_logging",
        "test_missing_capability",
        *ASKED,
    ]
]


async def _list(ctx: Any, params: Any) -> Any:
    return {"tools": TOOLS, "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


async def _call(ctx: Any, params: t.CallToolRequestParams) -> Any:
    if params.name == "test_tool_with_progress":
        return await _progress(ctx)
    if params.name == "test_tool_with_logging":
        return await _logging(ctx)
    if params.name == "test_missing_capability":
        return _needs_sampling(ctx)
    if params.name in ASKED:
        return await ask(ctx, params)
    if params.name in ASKING:
        answers = {key: _plain(value) for key, value in (params.input_responses or {}).items()}
        return ASKING[params.name](
            answers, params.request_state or "", ctx.session.client_capabilities
        )
    if params.name not in PLAIN:
        raise MCPError(t.INVALID_PARAMS, f"Unknown tool: {params.name}")
    return PLAIN[params.name]


async def _call_by_request(ctx: Any, params: t.CallToolRequestParams) -> Any:
    return await ask_by_request(ctx, params) if params.name in ASKED else await _call(ctx, params)


def _plain(value: Any) -> Any:
    return (
        value.model_dump(by_alias=True, exclude_none=True)
        if hasattr(value, "model_dump")
        else value
    )


async def _progress(ctx: Any) -> dict[str, Any]:
    for step in (0, 50, 100):
        await ctx.session.report_progress(step, 100)
        await asyncio.sleep(0.05)
    return said(text("progressed"))


async def _logging(ctx: Any) -> dict[str, Any]:
    for words in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        note = t.LoggingMessageNotification(
            params=t.LoggingMessageNotificationParams(level="info", data=words)
        )
        await ctx.session.send_notification(note, related_request_id=ctx.request_id)
        await asyncio.sleep(0.05)
    return said(text("logged"))


def _needs_sampling(ctx: Any) -> dict[str, Any]:
    if getattr(ctx.session.client_capabilities, "sampling", None) is None:
        raise MCPError(
            -32021, "This tool needs sampling", {"requiredCapabilities": {"sampling": {}}}
        )
    return said(text("sampling could be used"))


async def _complete(ctx: Any, params: t.CompleteRequestParams) -> t.CompleteResult:
    return t.CompleteResult(
        completion=t.Completion(values=[f"{params.argument.value}-one", "two"], has_more=False)
    )


async def _taken(ctx: Any, params: Any) -> t.EmptyResult:
    return t.EmptyResult()


def make_server(*, by_request: bool = False) -> Server[Any]:
    """``by_request``: the tools of the set of 2025-11-25 ask by a request, also on a connection of
    2026-07-28."""
    server = _lists(_call_by_request if by_request else _call)
    server.add_request_handler("logging/setLevel", t.SetLevelRequestParams, _taken)
    return server


def _lists(call: Any) -> Server[Any]:
    return Server(
        "conformance",
        version="1",
        on_list_tools=_list,
        on_call_tool=call,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_completion=_complete,
        on_subscribe_resource=_taken,
        on_unsubscribe_resource=_taken,
        on_subscriptions_listen=ListenHandler(InMemorySubscriptionBus()),
    )
