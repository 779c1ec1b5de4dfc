"""FAKE_TOOLS tools, in pages of FAKE_PAGE (0: one page). FAKE_BAD adds definitions that cannot be
used.

FAKE_BACKWARDS lists the last one first. FAKE_LIST=hang never answers a list.
"""

import os
import time

from rpc import Server, text, tool

count = int(os.environ.get("FAKE_TOOLS", "10"))
page = int(os.environ.get("FAKE_PAGE", "0"))
mode = os.environ.get("FAKE_LIST", "")
tools = [tool(f"tool_{number}", f"number {number}") for number in range(count)]
if os.environ.get("FAKE_BACKWARDS"):
    tools.reverse()
if os.environ.get("FAKE_BAD"):
    deep = {"type": "object"}
    for _ in range(200):
        deep = {"type": "object", "properties": {"p": deep}}
    tools += [
        {"name": 7},
        {"description": "nameless"},
        tool("long", "d" * 100_000),
        tool("deep", "", deep),
    ]


class Paged(Server):
    def list_tools(self, params):
        if mode == "hang":
            time.sleep(3600)
        start = int(params.get("cursor") or 0)
        end = start + page if page else len(tools)
        return {"tools": tools[start:end]} | ({"nextCursor": str(end)} if end < len(tools) else {})


Paged(tools, lambda context: text(context.name), name="many").run()
