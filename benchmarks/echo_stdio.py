"""A raw stdio MCP server (2026-07-28) with one echo tool, one prompt and one resource, as cheap as
Python can be.

Takes a number of extra tools to list as its argument.
"""

from __future__ import annotations

import json
import sys

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}
EXTRA = [
    {
        "name": f"tool_{n}",
        "description": f"Does thing number {n}, at some length. " * 2,
        "inputSchema": SCHEMA,
    }
    for n in range(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
]
TOOLS = [{"name": "echo", "description": "Echo", "inputSchema": SCHEMA}, *EXTRA]
LISTS = {
    "prompts/list": {"prompts": [{"name": "hello"}]},
    "resources/list": {"resources": [{"uri": "bench://note", "name": "note"}]},
    "resources/templates/list": {"resourceTemplates": []},
}
COMPLETE = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


def answer(method: str, params: dict) -> dict:
    if method == "server/discover":
        info = {"name": "echo", "version": "1"}
        return COMPLETE | {
            "supportedVersions": ["2026-07-28"],
            "capabilities": {"tools": {}, "prompts": {}, "resources": {}},
            "serverInfo": info,
        }
    if method == "tools/list":
        start = int(params.get("cursor") or 0)
        more = {"nextCursor": str(start + 200)} if start + 200 < len(TOOLS) else {}
        return COMPLETE | {"tools": TOOLS[start : start + 200]} | more
    if method == "prompts/get":
        return COMPLETE | {
            "messages": [{"role": "user", "content": {"type": "text", "text": "x" * 100}}]
        }
    if method == "resources/read":
        return COMPLETE | {"contents": [{"uri": params["uri"], "text": "x" * 100}]}
    if method in LISTS:
        return COMPLETE | LISTS[method]
    text = params["arguments"].get("text", "")
    return {"resultType": "complete", "content": [{"type": "text", "text": text}]}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        reply = {
            "jsonrpc": "2.0",
            "id": message["id"],
            "result": answer(message["method"], message.get("params") or {}),
        }
        sys.stdout.write(json.dumps(reply, separators=(",", ":")) + "\n")
        sys.stdout.flush()
