"""Answers with its arguments, name and meta. The fast, honest server."""

import json
import os

from rpc import Refused, Server, text, tool


def call(context):
    if context.name == "refuse":
        raise Refused(-32602, "no such thing", {"hint": "try echo"})
    if context.name == "pid":
        return text(str(os.getpid()))
    body = {"name": context.name, "arguments": context.arguments, "meta": context.meta}
    return {
        **text(json.dumps(body)),
        "structuredContent": body,
        "_meta": {"kept": True},
        "unknownKey": [1],
    }


TOOLS = [
    tool("echo", "Say it again."),
    tool("refuse"),
    tool("pid", annotations={"readOnlyHint": True}),
]

if __name__ == "__main__":
    Server(TOOLS, call, name="echo", threaded=False).run()
