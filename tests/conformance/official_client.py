"""Whether the official Python client, 1.x or 2.x, accepts lists of definitions. It runs in an
environment of its own.

Standard input: ``{"name of a case": {"method": "tools/list", "results": {"2025-11-25": {…}}}}``.
Standard output: ``{"name of a case": what the client says; "" if it lists all of them}``.
"""

import asyncio
import json
import sys

import anyio
from mcp import ClientSession
from mcp.shared.message import SessionMessage

try:
    from mcp_types import jsonrpc_message_adapter

    read_message = jsonrpc_message_adapter.validate_python
except ImportError:  # 1.x
    from mcp.types import JSONRPCMessage

    read_message = JSONRPCMessage.model_validate

LISTS = {
    "tools/list": ("list_tools", "tools"),
    "prompts/list": ("list_prompts", "prompts"),
    "resources/list": ("list_resources", "resources"),
    "resources/templates/list": ("list_resource_templates", "resourceTemplates"),
}
OLDER = "2025-11-25"
INFO = {"name": "lists", "version": "1"}


def answer(method, result):
    if method == "initialize":
        capabilities = {"tools": {}, "prompts": {}, "resources": {}}
        return {"protocolVersion": OLDER, "capabilities": capabilities, "serverInfo": INFO}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": ""}], "isError": True}
    return result


async def serve(requests, answers, result):
    async for sent in requests:
        request = json.loads(sent.message.model_dump_json(by_alias=True, exclude_none=True))
        if "id" in request:
            reply = {
                "jsonrpc": "2.0",
                "id": request["id"],
                "result": answer(request["method"], result),
            }
            await answers.send(SessionMessage(read_message(reply)))


async def try_case(method, result):
    to_client, from_server = anyio.create_memory_object_stream(10)
    to_server, from_client = anyio.create_memory_object_stream(10)
    name, key = LISTS[method]
    async with to_client, from_server, to_server, from_client, anyio.create_task_group() as tasks:
        tasks.start_soon(serve, from_client, to_client, result)
        try:
            async with ClientSession(from_server, to_server) as client:
                await client.initialize()
                found = await getattr(client, name)()
                listed = json.loads(found.model_dump_json(by_alias=True))[key]
                complaints = (
                    ""
                    if len(listed) == len(result[key])
                    else f"{len(listed)} of {len(result[key])} are listed"
                )
                for tool in result[key] if method == "tools/list" else ():
                    await client.call_tool(tool["name"], {})
        except Exception as error:  # it is what the test asks for
            complaints = f"{type(error).__name__}: {error}"[:300]
        tasks.cancel_scope.cancel()
    return complaints


async def main():
    cases = json.load(sys.stdin)
    print(
        json.dumps(
            {
                title: await try_case(each["method"], each["results"][OLDER])
                for title, each in cases.items()
            }
        )
    )


asyncio.run(main())
