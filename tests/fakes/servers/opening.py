"""Opens oddly. FAKE_OPENING is how:

"strict" ends at anything before ``initialize``, "deaf" ignores all until a first line is
``initialize``, "silent" answers nothing that it does not know, "refuses" answers ``initialize``
with an error after anything else came first, "never" always does. "draft", "number", "no version",
"no info", "info", "capabilities" and "oldest" answer ``initialize`` with what no client expects.
"halves in …" and "other bytes" say what is not Unicode.
"""

import os

from rpc import Refused, Server, text, tool, write

MODE = os.environ.get("FAKE_OPENING", "")
HALF = "cut \ud83d"
VERSIONS = {"draft": "DRAFT-2025-v2", "number": 1.0, "oldest": "2024-10-07"}


class Opening(Server):
    def __init__(self):
        tools = [tool("pid", HALF if MODE == "halves in a list" else "")]
        super().__init__(tools, self.called, name="opening")
        if MODE == "halves in instructions":
            self._instructions = {"instructions": HALF}
        self.first = ""

    def called(self, context):
        if MODE == "halves in an error":
            raise Refused(-32000, HALF)
        if MODE == "other bytes":
            request_id = next(
                known for known, running in self.running.items() if running is context
            )
            write(
                b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"\xb0\xa1"}]}}\n'
                % request_id
            )
            return None
        return text(HALF if MODE == "halves in a result" else str(os.getpid()))

    def answer(self, request):
        if request["method"] != "initialize":
            return super().answer(request)
        if MODE == "never" or (MODE == "refuses" and self.first != "initialize"):
            raise Refused(-32600, "The first message was not initialize. Key: hush-hush")
        found = super().answer(request)
        found["protocolVersion"] = VERSIONS.get(MODE, found["protocolVersion"])
        if MODE == "no version":
            del found["protocolVersion"]
        if MODE == "no info":
            del found["serverInfo"]
        if MODE == "info":
            found["serverInfo"] = {"name": "odd"}
        if MODE == "capabilities":
            found["capabilities"] = {"tools": True}
        return found

    def receive(self, message):
        method = message.get("method", "")
        self.first = self.first or method
        if MODE == "strict" and self.first != "initialize":
            os._exit(1)
        if MODE == "deaf" and self.first != "initialize":
            return
        if MODE == "silent" and method == "server/discover":
            return
        super().receive(message)


Opening().run()
