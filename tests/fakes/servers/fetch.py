"""A server shaped like mcp-server-fetch of PyPI (its tool, arguments and answers), without what
that brings to read pages."""

import urllib.request

from rpc import Server, text, tool

SCHEMA = {
    "type": "object",
    "title": "fetchArguments",
    "properties": {
        "url": {
            "type": "string",
            "format": "uri",
            "minLength": 1,
            "title": "Url",
            "description": "URL to fetch",
        },
        "max_length": {
            "type": "integer",
            "default": 5000,
            "minimum": 1,
            "maximum": 999999,
            "title": "Max Length",
        },
        "start_index": {"type": "integer", "default": 0, "minimum": 0, "title": "Start Index"},
        "raw": {"type": "boolean", "default": False, "title": "Raw"},
    },
    "required": ["url"],
}
READS = {
    "readOnlyHint": True,
    "destructiveHint": False,
    "idempotentHint": True,
    "openWorldHint": True,
}


def call(context):
    asked = context.arguments
    try:
        with urllib.request.urlopen(asked["url"]) as answer:
            page = answer.read().decode()
    except OSError as error:
        return text(f"Failed to fetch {asked['url']}: {error}") | {"isError": True}
    begin = asked.get("start_index", 0)
    return text(
        f"Contents of {asked['url']}:\n{page[begin : begin + asked.get('max_length', 5000)]}"
    )


Server(
    [tool("fetch", "Fetches a URL from the internet.", SCHEMA, annotations=READS)],
    call,
    name="mcp-fetch",
).run()
