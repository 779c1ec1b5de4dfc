"""Opens oddly. FAKE_OPENING is how:

"strict" ends at anything before ``initialize``, "deaf" ignores all until a first line is ``initialize``, "silent" answers nothing
that it does not know, "refuses" answers ``initialize`` with an error after anything else came first, "never" always does. "draft", "number",
"no version", "no info", "info", "capabilities" and "oldest" answer ``initialize`` with what no client expects.
"""

import os

from rpc import Refused, Server, text, tool

MODE = os.environ.get("FAKE_OPENING", "")
VERSIONS = {"draft": "DRAFT-2025-v2", "number": 1.0, "oldest": "2024-10-07"}


class Opening(Server):
    def __init__(self):
        super().__init__([tool("pid")], lambda context: text(str(os.getpid())), name="opening")
        self.first = ""

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
