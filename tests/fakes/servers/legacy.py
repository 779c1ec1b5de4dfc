"""An early server: ``parameters`` for ``inputSchema``, no schema at all, results without
``content``."""

from rpc import Server

SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}}
RESULTS = {
    "old": {"toolResult": {"x": 1}},
    "bare": {"answer": 42},
    "structured": {"structuredContent": {"y": 2}},
}
server = Server(
    [
        {"name": "old", "description": "d", "parameters": SCHEMA},
        {"name": "bare"},
        {"name": "structured", "inputSchema": SCHEMA},
    ],
    lambda context: RESULTS[context.name],
    name="legacy",
    list_changed=False,
)
server.era = "legacy"
server.run()
