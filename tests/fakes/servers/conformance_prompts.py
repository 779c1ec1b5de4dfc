"""The prompts that the official conformance suite gets, as it describes them in its scenarios."""

from __future__ import annotations

from typing import Any

from mcp import MCPError
from mcp import types as t


def argument(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "description": description, "required": True}


PROMPTS: list[dict[str, Any]] = [
    {"name": "test_simple_prompt", "description": "A simple prompt."},
    {
        "name": "test_prompt_with_arguments",
        "description": "A prompt with arguments.",
        "arguments": [
            argument("arg1", "First test argument"),
            argument("arg2", "Second test argument"),
        ],
    },
    {
        "name": "test_prompt_with_embedded_resource",
        "description": "A prompt with a resource.",
        "arguments": [argument("resourceUri", "URI of the resource to embed")],
    },
    {"name": "test_prompt_with_image", "description": "A prompt with an image."},
    {"name": "test_input_required_result_prompt", "description": "A prompt that asks."},
]
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
CONTEXT = {
    "method": "elicitation/create",
    "params": {
        "message": "What context should the prompt use?",
        "requestedSchema": {
            "type": "object",
            "properties": {"context": {"type": "string"}},
            "required": ["context"],
        },
    },
}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def content(name: str, given: dict[str, str]) -> list[dict[str, Any]]:
    """What the messages of the prompt hold."""
    if name == "test_simple_prompt":
        return [text("This is a simple prompt for testing.")]
    if name == "test_prompt_with_arguments":
        return [text(f"Prompt with arguments: arg1='{given['arg1']}', arg2='{given['arg2']}'")]
    if name == "test_prompt_with_image":
        return [
            {"type": "image", "data": PIXEL, "mimeType": "image/png"},
            text("Please analyze the image above."),
        ]
    if name == "test_prompt_with_embedded_resource":
        said = "Embedded resource content for testing."
        resource = {"uri": given["resourceUri"], "mimeType": "text/plain", "text": said}
        return [
            {"type": "resource", "resource": resource},
            text("Please process the embedded resource above."),
        ]
    return [text("The prompt, with the context that was given.")]


async def list_prompts(ctx: Any, params: Any) -> Any:
    return {"prompts": PROMPTS, "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


async def get_prompt(ctx: Any, params: t.GetPromptRequestParams) -> Any:
    if params.name not in {prompt["name"] for prompt in PROMPTS}:
        raise MCPError(t.INVALID_PARAMS, f"Unknown prompt: {params.name}")
    if params.name == "test_input_required_result_prompt" and not params.input_responses:
        return {"resultType": "input_required", "inputRequests": {"user_context": CONTEXT}}
    messages = [
        {"role": "user", "content": part} for part in content(params.name, params.arguments or {})
    ]
    return {"resultType": "complete", "messages": messages}
