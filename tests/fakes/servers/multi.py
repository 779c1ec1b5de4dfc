"""Every kind of content at once."""

RESULT = {
    "content": [
        {"type": "text", "text": "grüß", "annotations": {"audience": ["user"]}},
        {"type": "image", "data": "aGk=", "mimeType": "image/png"},
        {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"},
        {
            "type": "resource",
            "resource": {"uri": "file:///a", "mimeType": "text/plain", "text": "inside"},
        },
        {"type": "resource_link", "uri": "file:///b", "name": "b"},
        {"type": "future", "x": {"y": [None, True, 1.5]}},
    ],
    "structuredContent": {"n": 12345678901234567890123, "nested": {"a": [1, 2]}},
    "isError": False,
    "_meta": {"vendor/key": {"z": 1}},
    "vendorKey": "kept",
}

if __name__ == "__main__":
    from rpc import Server, tool

    Server([tool("all")], lambda context: RESULT, name="multi").run()
