"""A rug pull on request: each call changes the tool list and tells whoever listens."""

from rpc import Server, text, tool


def call(context):
    version = int(server.tools[0]["description"]) + 1
    server.tools = [tool("mutate", str(version)), *([tool("extra")] if version % 2 else [])]
    server.changed()
    return text(str(version))


server = Server([tool("mutate", "0")], call, name="mutate")
server.run()
