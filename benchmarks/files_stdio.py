"""A raw stdio MCP server (2026-07-28) that lists and reads the Markdown files of a folder, as cheap
as Python can be."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(sys.argv[1])
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}
TOOLS = [
    {"name": "list", "description": "Lists the files.", "inputSchema": {"type": "object"}},
    {
        "name": "read",
        "description": "Reads one file.",
        "inputSchema": SCHEMA | {"required": ["name"]},
    },
]
COMPLETE = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


def answer(method: str, params: dict) -> dict:
    if method == "server/discover":
        info = {"name": "files", "version": "1"}
        return COMPLETE | {
            "supportedVersions": ["2026-07-28"],
            "capabilities": {"tools": {}},
            "serverInfo": info,
        }
    if method == "tools/list":
        return COMPLETE | {"tools": TOOLS}
    names = sorted(path.name for path in ROOT.glob("*.md"))
    wanted = params["arguments"].get("name", "")
    if params["name"] == "list":
        text = "\n".join(names)
    elif wanted in names:
        text = (ROOT / wanted).read_text()
    else:
        text = ""
    return {"resultType": "complete", "content": [{"type": "text", "text": text}]}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = answer(message["method"], message.get("params") or {})
        sys.stdout.write(
            json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}) + "\n"
        )
        sys.stdout.flush()
