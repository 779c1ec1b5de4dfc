"""Keeps a count for whoever shares it, of the older era. ``add`` counts, waits for ``pause``
seconds, says its process and the count, and reports that the resource ``counter://N`` has changed
for ``number`` N. ``ask`` puts a question to the host and answers with what came back.
"""

import json
import os
import queue
import time

from rpc import Server, send, text, tool

COUNT = {"uriTemplate": "counter://{number}", "name": "count", "description": "A count."}


class Counter(Server):
    def __init__(self):
        super().__init__([tool("add"), tool("ask")], self.called, name="counter")
        self.capabilities["resources"] = {"subscribe": True}
        self.era = "legacy"
        self.count = 0
        self.subscribed = set()
        self.answers = {}

    def called(self, context):
        if context.name == "ask":
            return self.ask()
        self.count += 1
        count = self.count
        time.sleep(context.arguments.get("pause", 0))
        uri = f"counter://{context.arguments.get('number')}"
        if uri in self.subscribed:
            send(
                {
                    "jsonrpc": "2.0",
                    "method": "notifications/resources/updated",
                    "params": {"uri": uri},
                }
            )
        return text(f"{os.getpid()} {count}")

    def ask(self):
        name = f"q{len(self.answers)}"
        answer = queue.Queue()
        self.answers[name] = answer
        schema = {
            "type": "object",
            "properties": {"name": {"type": "string"}},
            "required": ["name"],
        }
        params = {"message": "Who are you?", "requestedSchema": schema}
        send({"jsonrpc": "2.0", "id": name, "method": "elicitation/create", "params": params})
        said = answer.get()
        return text(json.dumps(said.get("result") or said["error"]["message"]))

    def answer(self, request):
        method = request["method"]
        params = request.get("params") or {}
        if method == "resources/list":
            return {"resources": []}
        if method == "resources/templates/list":
            return {"resourceTemplates": [COUNT]}
        if method == "resources/subscribe":
            self.subscribed.add(params["uri"])
            return {}
        if method == "resources/unsubscribe":
            self.subscribed.discard(params["uri"])
            return {}
        return super().answer(request)

    def receive(self, message):
        if "method" not in message and message.get("id") in self.answers:
            self.answers[message["id"]].put(message)
        else:
            super().receive(message)


if __name__ == "__main__":
    Counter().run()
