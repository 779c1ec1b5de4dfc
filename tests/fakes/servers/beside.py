"""An older server that sends messages while no call is out, and that wants pages opened first.

``sign_in`` is refused with -32042 and the pages in ``pages``. ``later`` answers, and then does what
its arguments say while no call is out: ``done`` (ids of pages that are done with), ``line`` (a log
line). ``roots`` tells the host's folders, for which it asks as soon as it is connected, and again
when they have changed. ``declared`` tells what the client can do. ``asks`` puts a question to a
person.
"""

import json
import queue
import threading

from rpc import Refused, Server, send, text, tool

PAUSE = 0.2


class Beside(Server):
    def __init__(self):
        super().__init__(
            [tool(name) for name in ("sign_in", "later", "roots", "declared", "asks")],
            self.called,
            name="beside",
        )
        self.capabilities["logging"] = {}
        self.roots = queue.Queue()
        self.answers = queue.Queue()
        self.asked = 0
        self.declared = {}

    def called(self, context):
        return getattr(self, f"do_{context.name}")(context)

    def do_sign_in(self, context):
        raise Refused(
            -32042, "This needs a sign-in", {"elicitations": context.arguments.get("pages", [])}
        )

    def do_later(self, context):
        threading.Timer(PAUSE, self.speak, [context.arguments]).start()
        return text("soon")

    def speak(self, wanted):
        for page in wanted.get("done", []):
            send(
                {
                    "jsonrpc": "2.0",
                    "method": "notifications/elicitation/complete",
                    "params": {"elicitationId": page},
                }
            )
        if line := wanted.get("line"):
            params = {"level": "error", "logger": "timer", "data": line}
            send({"jsonrpc": "2.0", "method": "notifications/message", "params": params})

    def do_roots(self, context):
        return text(json.dumps(self.roots.get(), sort_keys=True))

    def do_asks(self, context):
        """Tells progress and a line before it asks a person, and after it has the answer."""
        self.tell(context, 1, "before")
        schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
        params = {"message": "Sure?", "requestedSchema": schema}
        send({"jsonrpc": "2.0", "id": "form", "method": "elicitation/create", "params": params})
        said = self.answers.get()
        self.tell(context, 2, "after")
        return text(json.dumps(said.get("result"), sort_keys=True))

    def tell(self, context, number, line):
        context.progress(number, 2, line)
        self.speak({"line": line})

    def do_declared(self, context):
        return text(json.dumps(self.declared, sort_keys=True))

    def ask_for_roots(self):
        self.asked += 1
        send({"jsonrpc": "2.0", "id": f"roots{self.asked}", "method": "roots/list"})

    def answer(self, request):
        if request["method"] == "logging/setLevel":
            return {}
        return super().answer(request)

    def receive(self, message):
        method = message.get("method")
        if method == "initialize":
            self.declared = message["params"]["capabilities"]
        if method == "notifications/roots/list_changed" or (
            method == "notifications/initialized" and "roots" in self.declared
        ):
            self.ask_for_roots()
        elif method is None and str(message.get("id", "")).startswith("roots"):
            self.roots.put(message.get("result") or message["error"]["message"])
        elif method is None and message.get("id") == "form":
            self.answers.put(message)
        else:
            super().receive(message)


if __name__ == "__main__":
    Beside().run()
