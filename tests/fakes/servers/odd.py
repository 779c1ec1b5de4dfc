"""What people have reported of servers in use that say more, or other things, than a host expects:
one tool for each.

FAKE_ODD is "null_lists" (lists of resources that are null) or "answers_notes" (an error for each
notification).
"""

import json
import os
import queue

from rpc import Server, send, text, tool

MODE = os.environ.get("FAKE_ODD", "")
NO_METHOD = {"code": -32601, "message": "Method not found"}


def notify(method, params=None):
    send({"jsonrpc": "2.0", "method": f"notifications/{method}", "params": params})


class Odd(Server):
    def __init__(self):
        names = ("cancels", "notes", "errors", "pings", "twice", "progress", "logs")
        names += ("only_nameless", "updates")
        super().__init__([tool(name) for name in names], self.called, name="odd")
        self.capabilities |= {"prompts": {}, "resources": {"subscribe": True}, "logging": {}}
        self.pongs = queue.SimpleQueue()

    def called(self, context):
        request_id = next(known for known, running in self.running.items() if running is context)
        return getattr(self, context.name)(request_id, context)

    def cancels(self, request_id, context):
        notify("cancelled", {"requestId": 5})
        notify("cancelled", {"requestId": request_id, "reason": "shutting down"})

    def notes(self, request_id, context):
        notify("initialized")
        notify("vendor/thing", [1])
        notify("message")
        notify("cancelled", {"requestId": None})
        notify("cancelled")
        return text("noted")

    def errors(self, request_id, context):
        send({"jsonrpc": "2.0", "error": NO_METHOD})
        send({"jsonrpc": "2.0", "id": None, "error": NO_METHOD})
        return text("ran")

    def only_nameless(self, request_id, context):
        send({"jsonrpc": "2.0", "id": None, "error": NO_METHOD})

    def updates(self, request_id, context):
        for number in range(10_000):
            notify("resources/updated", {"uri": f"docs://{number}"})
        return text("ran")

    def pings(self, request_id, context):
        send({"jsonrpc": "2.0", "id": "ping", "method": "ping"})
        return text(json.dumps(self.pongs.get()))

    def twice(self, request_id, context):
        send({"jsonrpc": "2.0", "id": request_id, "result": text("first")})
        return text("second")

    def progress(self, request_id, context):
        token = context.meta.get("progressToken")
        for numbers in (
            {"progress": 2},
            {"progress": "3"},
            {"progress": None},
            {"progress": 4, "total": "x"},
            {},
        ):
            notify("progress", {"progressToken": token} | numbers)
        return text("ran")

    def logs(self, request_id, context):
        for line in (
            {"data": "no level"},
            {"level": "warn", "data": 1},
            {"level": "INFO", "data": None},
            {},
        ):
            notify("message", line)
        return text("ran")

    def answer(self, request):
        empty = None if MODE == "null_lists" else []
        if request["method"] in ("resources/list", "resources/templates/list", "prompts/list"):
            return {"resources": empty, "resourceTemplates": empty, "prompts": empty}
        return super().answer(request)

    def receive(self, message):
        if message.get("id") == "ping" and "method" not in message:
            self.pongs.put(message.get("result"))
            return
        if "id" not in message and MODE == "answers_notes":
            send({"jsonrpc": "2.0", "id": None, "error": NO_METHOD})
        super().receive(message)


Odd().run()
