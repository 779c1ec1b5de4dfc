"""Our side towards servers, as the suite's client: it connects, reads what there is, and uses all
of it once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import traceback
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from mcpregistry.domain.calls.forwarding import Forwarding
from mcpregistry.domain.errors import DownstreamError
from mcpregistry.domain.offer_kinds import KINDS, PROMPT, RESOURCE, TOOL
from mcpregistry.downstream.pool.pool import Pool
from mcpregistry.downstream.server_call import ServerCall
from tests.fakes.targets import http_target
from tests.waiting import HANG_LIMIT

# What a host would declare that can answer a question; the pool passes it on with each call.
ABILITIES = {"elicitation": {"form": {}}, "sampling": {}, "roots": {}}
ARGUMENTS: Mapping[str, Mapping[str, Any]] = {"add_numbers": {"a": 5, "b": 3}}
_SAMPLES = {"string": "x", "integer": 1, "number": 1.5, "boolean": True, "object": {}, "array": []}


async def drive(url: str, context: Mapping[str, Any]) -> None:
    """Play one scenario. Raises when the server cannot be used at all."""
    target = http_target(url, questions=frozenset(ABILITIES))
    pool = Pool(lambda _: _given(target), lambda _: None)
    try:
        found = await pool.discover(target.server_id)
        for tool, arguments in _calls(found.tools, context):
            await _call(pool, TOOL, tool, arguments)
        for kind in (PROMPT, RESOURCE):
            for item in found.get_kind(kind):
                name = item[KINDS[kind].identity]
                await _call(pool, kind, name, {"uri": name} if kind == RESOURCE else {})
    finally:
        await pool.close()


async def _given(target: Any) -> Any:
    return target


def _calls(
    tools: tuple[Any, ...], context: Mapping[str, Any]
) -> list[tuple[str, Mapping[str, Any]]]:
    if "toolCalls" in context:
        return [(call["name"], call["arguments"]) for call in context["toolCalls"]]
    schemas = {tool["name"]: tool["inputSchema"] for tool in tools}
    return [
        (name, ARGUMENTS.get(name) or _sample(schema, schemas)) for name, schema in schemas.items()
    ]


def _sample(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    """Something for every required argument; one that is called ``schema`` gets a schema back as it
    came."""
    given = schemas.get("json_schema_2020_12_tool", {})
    wanted = {name: schema["properties"][name].get("type") for name in schema.get("required", [])}
    return {
        name: given if name == "schema" else _SAMPLES.get(kind, "x")
        for name, kind in wanted.items()
    }


async def _call(pool: Pool, kind: str, name: str, arguments: Mapping[str, Any]) -> None:
    """One call, in as many rounds as the server asks for; what it refuses is its business."""
    host = Forwarding(ABILITIES, ask=_person, rounds=True)
    with contextlib.suppress(DownstreamError):
        while True:
            result = await pool.call(
                ServerCall(
                    1,
                    name,
                    json.dumps(arguments).encode(),
                    kind=kind,
                    host=host,
                    timeout=HANG_LIMIT,
                )
            )
            if result.get("resultType") != "input_required":
                return
            host = Forwarding(ABILITIES, _answered(result), rounds=True)


async def _person(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Who is asked while a call waits, and leaves the form as it is: what it has as defaults is
    sent."""
    properties = (params.get("requestedSchema") or {}).get("properties") or {}
    content = {
        name: schema["default"] for name, schema in properties.items() if "default" in schema
    }
    return {"action": "accept", "content": content}


def _answered(result: Mapping[str, Any]) -> dict[str, Any]:
    said = {
        key: {"action": "accept", "content": {"confirmed": True}}
        for key in result.get("inputRequests", {})
    }
    state = {"requestState": result["requestState"]} if "requestState" in result else {}
    return {"inputResponses": said} | state


@contextlib.asynccontextmanager
async def answering(path: Path) -> AsyncIterator[None]:
    """Play every scenario that a relay hands over at this socket."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = json.loads(await reader.readline())
        try:
            await drive(said["URL"], json.loads(said["CONTEXT"] or "{}"))
        except Exception:
            writer.write(traceback.format_exc().encode())
        writer.close()

    async with await asyncio.start_unix_server(answer, path):
        yield
