"""Of the older era: ``ask`` puts a question to the host and answers with what came back;
``declared`` tells what it may ask."""

import json
import queue

from rpc import Server, send, text, tool

answers: dict[str, queue.Queue] = {}
declared: list[dict] = []


class Asker(Server):
    def receive(self, message):
        if message.get("method") == "initialize":
            declared.append(message["params"]["capabilities"])
        if "method" not in message and message.get("id") in answers:
            answers[message["id"]].put(message)
        else:
            super().receive(message)


def call(context):
    if context.name == "declared":
        return text(json.dumps(declared[-1], sort_keys=True))
    ident = f"q{len(answers)}"
    answers[ident] = queue.Queue()
    params = {
        "message": "Sure?",
        "requestedSchema": {"type": "object", "properties": {"ok": {"type": "boolean"}}},
    }
    send({"jsonrpc": "2.0", "id": ident, "method": "elicitation/create", "params": params})
    said = answers[ident].get()
    return text(json.dumps(said.get("result") or said["error"]["message"], sort_keys=True))


Asker([tool("ask"), tool("declared")], call, name="asker").run()
