"""What a program of one's own needs to reach an endpoint: the SDKs in Python and TypeScript, and
curl."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.hosts.connection import BEARER_VARIABLE, EndpointConnection


@dataclass(frozen=True, slots=True)
class Program:
    """A way to call from code. ``file`` is the name of a file that the text goes into; ``after``
    runs it."""

    slug: str
    title: str
    file: str
    after: str
    text: Callable[[EndpointConnection], str]


def _build_python_example(connection: EndpointConnection) -> str:
    if not connection.http:
        return _PYTHON_STDIO.format(
            command=_quote_text(connection.command[0]),
            args=json.dumps(connection.command[1:], ensure_ascii=False),
            env=json.dumps(dict(connection.env), ensure_ascii=False),
        )
    token = (
        _quote_text(connection.token) if connection.token else f'os.environ["{BEARER_VARIABLE}"]'
    )
    return _PYTHON_HTTP.format(
        url=_quote_text(connection.url), token=token, os="" if connection.token else "import os\n"
    )


def _build_typescript_example(connection: EndpointConnection) -> str:
    if not connection.http:
        return _TYPESCRIPT_STDIO.format(
            command=_quote_text(connection.command[0]),
            args=json.dumps(connection.command[1:], ensure_ascii=False),
            env=json.dumps(dict(connection.env), ensure_ascii=False),
        )
    token = connection.token or f"${{process.env.{BEARER_VARIABLE}}}"
    return _TYPESCRIPT_HTTP.format(url=_quote_text(connection.url), header=f"`Bearer {token}`")


def _build_curl_example(connection: EndpointConnection) -> str:
    if not connection.http:
        raise ConfigInvalid("curl supports only HTTP.", remedy="Choose HTTP.")
    return _CURL.format(url=connection.url, token=connection.token or f"${BEARER_VARIABLE}")


def _quote_text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


_PYTHON_STDIO = """\
import asyncio

from mcp import Client, StdioServerParameters

server = StdioServerParameters(
    command={command},
    args={args},
    env={env},
)


async def main() -> None:
    async with Client(server) as client:
        for tool in (await client.list_tools()).tools:
            print(tool.name)


asyncio.run(main())
"""
_PYTHON_HTTP = """\
import asyncio
{os}
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

headers = {{"Authorization": "Bearer " + {token}}}


async def main() -> None:
    async with httpx2.AsyncClient(headers=headers, timeout=300) as http:
        async with Client(streamable_http_client({url}, http_client=http)) as client:
            for tool in (await client.list_tools()).tools:
                print(tool.name)


asyncio.run(main())
"""
_TYPESCRIPT_STDIO = """\
import {{ Client }} from "@modelcontextprotocol/sdk/client/index.js";
import {{ StdioClientTransport }} from "@modelcontextprotocol/sdk/client/stdio.js";

const client = new Client({{ name: "my-program", version: "1.0.0" }});
await client.connect(new StdioClientTransport({{
  command: {command},
  args: {args},
  env: {env},
}}));
for (const tool of (await client.listTools()).tools) console.log(tool.name);
await client.close();
"""
_TYPESCRIPT_HTTP = """\
import {{ Client }} from "@modelcontextprotocol/sdk/client/index.js";
import {{ StreamableHTTPClientTransport }} from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const client = new Client({{ name: "my-program", version: "1.0.0" }});
await client.connect(new StreamableHTTPClientTransport(new URL({url}), {{
  requestInit: {{ headers: {{ Authorization: {header} }} }},
}}));
for (const tool of (await client.listTools()).tools) console.log(tool.name);
await client.close();
"""
_CURL = """\
curl -sS '{url}' \\
  -H "Authorization: Bearer {token}" \\
  -H 'Content-Type: application/json' \\
  -H 'Accept: application/json, text/event-stream' \\
  -H 'MCP-Protocol-Version: 2026-07-28' \\
  -H 'Mcp-Method: tools/list' \\
  -d '{{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{{"_meta":{{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{{"name":"curl","version":"1"}},"io.modelcontextprotocol/clientCapabilities":{{}}}}}}}}'
"""

PROGRAMS = {
    program.slug: program
    for program in (
        Program(
            "python",
            "Python (MCP SDK)",
            "example.py",
            "pip install mcp, then: python example.py",
            _build_python_example,
        ),
        Program(
            "typescript",
            "TypeScript (MCP SDK)",
            "example.mjs",
            "npm install @modelcontextprotocol/sdk, then: node example.mjs",
            _build_typescript_example,
        ),
        Program("curl", "curl", "a terminal", "The answer lists the tools.", _build_curl_example),
    )
}
