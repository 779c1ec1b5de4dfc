"""What servers have besides lists: suggestions, log lines, word of changed resources, links in
results. Both eras.

Tools: ``log`` says a line of every level during the call, ``flood`` many, ``die`` ends it, ``hold``
answers after a ``log``, ``touch`` changes a resource, ``link`` answers with links, ``make`` and
``show`` need an argument. FAKE_WHO is its name, API_KEY a secret that it gives away.
"""

import os
import threading

from rpc import SUBSCRIPTION, Refused, Server, send, tool

LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
OWNERS = ["me", "mine", "you"]
REVIEW = {
    "name": "review",
    "description": "Look through a file.",
    "arguments": [{"name": "path"}, {"name": "tone"}],
}
ISSUE = {
    "uriTemplate": "repo://{owner}/issues/{number}",
    "name": "issue",
    "description": "One issue.",
}
GUIDE = {"uri": "docs://guide", "name": "guide", "description": "How to begin."}
UI = "ui://widget/main.html"
LINK = {"type": "resource_link", "uri": "made://report/7", "name": "report"}
NAMES = ("log", "flood", "touch", "link", "widget", "count", "hold", "die", "make", "show")
PAGE = "ui://show/main.html"
MADE = {"type": "resource_link", "uri": "made://report/8", "name": "made"}
LOG_LEVEL = "io.modelcontextprotocol/logLevel"


def shown(name):
    # with a required argument, and a definition that no other server has
    if name in ("make", "show"):
        title = os.environ.get("FAKE_WHO", "somebody")
        row = {"rows": {"type": "integer"}}
        schema = {
            "title": title,
            "properties": row,
            "required": ["rows"],
            "additionalProperties": False,
        }
        more = {"_meta": {"ui": {"resourceUri": PAGE}}} if name == "show" else {}
        return tool(name, schema={"type": "object", **schema}, **more)
    return (
        tool(name, _meta={"ui": {"resourceUri": UI}, "kept": 1}) if name == "widget" else tool(name)
    )


class Talkative(Server):
    def __init__(self):
        super().__init__(
            [shown(name) for name in NAMES], self.called, name="talkative", threaded=True
        )
        self.capabilities |= {
            "prompts": {},
            "resources": {"subscribe": True, "listChanged": True},
            "completions": {},
            "logging": {},
        }
        self.who = os.environ.get("FAKE_WHO", "somebody")
        self.level = None
        self.subscribed = {}
        self.counted = 0
        self.logged = threading.Event()

    def whole(self, **more):
        return {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", **more}

    def say(self, level, data, context=None):
        """A line, if whoever listens has asked for its level."""
        wanted = context.meta.get(LOG_LEVEL) if context and self.era == "modern" else self.level
        if wanted and LEVELS.index(level) >= LEVELS.index(wanted):
            params = {"level": level, "logger": "main", "data": data}
            send({"jsonrpc": "2.0", "method": "notifications/message", "params": params})

    def called(self, context):
        getattr(self, f"do_{context.name}")(context)
        links = {"link": [LINK], "make": [MADE]}.get(context.name, [])
        said = f"{context.name} {self.counted}"
        return {"content": [{"type": "text", "text": said}, *links]}

    def do_log(self, context):
        for level in LEVELS:
            self.say(level, f"{level} of {self.who}: {os.environ.get('API_KEY')}", context)

        self.logged.set()

    def do_hold(self, context):
        self.logged.wait()

    def do_die(self, context):
        os._exit(1)

    def do_flood(self, context):
        for number in range(5000):
            self.say("error", f"line {number}", context)

    def do_touch(self, context):
        uri = context.arguments.get("uri", "docs://guide")
        for key, uris in list(self.subscribed.items()):
            if uri in uris:
                meta = {"_meta": {SUBSCRIPTION: key}} if key is not None else {}
                send(
                    {
                        "jsonrpc": "2.0",
                        "method": "notifications/resources/updated",
                        "params": {"uri": uri, **meta},
                    }
                )

    def do_link(self, context):
        pass

    do_widget = do_link
    do_make = do_link
    do_show = do_link

    def do_count(self, context):
        """Says how many subscriptions there are."""
        self.counted = sum(len(uris) for uris in self.subscribed.values())

    def answer(self, request):
        method = request["method"]
        params = request.get("params") or {}
        if method == "initialize":
            self.era = "legacy"
        elif method == "server/discover" and self.era == "both":
            self.era = "modern"
        if method == "prompts/list":
            return self.whole(prompts=[REVIEW])
        if method == "resources/list":
            return self.whole(resources=[GUIDE])
        if method == "resources/templates/list":
            return self.whole(resourceTemplates=[ISSUE])
        if method == "resources/read":
            return self.whole(contents=[self.content(params["uri"])])
        if method == "completion/complete":
            return self.complete(params)
        if method == "logging/setLevel" and self.era == "legacy":
            self.level = params["level"]
            return {}
        if method in ("resources/subscribe", "resources/unsubscribe") and self.era == "legacy":
            uris = self.subscribed.setdefault(None, set())
            (uris.add if method == "resources/subscribe" else uris.discard)(params["uri"])
            return {}
        return super().answer(request)

    def content(self, uri):
        if uri in (UI, PAGE):
            return {
                "uri": uri,
                "mimeType": "text/html;profile=mcp-app",
                "text": f"<p>{self.who}</p>",
            }
        if uri.startswith("secret://"):
            raise Refused(-32602, "no such thing", {"uri": uri})
        return {"uri": uri, "mimeType": "text/plain", "text": f"{uri} of {self.who}"}

    def complete(self, params):
        if params["argument"]["value"] == "endless":
            return None  # it never answers
        return {"resultType": "complete", "completion": self.suggest(params)}

    def suggest(self, params):
        name = params["argument"]["name"]
        value = params["argument"]["value"]
        known = (params.get("context") or {}).get("arguments") or {}
        if value == "refused":
            raise Refused(-32602, f"refused by {os.environ.get('API_KEY')}")
        if value == "many":
            return {
                "values": [f"v{number}" for number in range(250)],
                "total": 250,
                "hasMore": False,
            }
        if name == "number":
            return {"values": [f"{known.get('owner')}-{number}" for number in (1, 2)]}
        if name == "owner":
            return {"values": [each for each in OWNERS if each.startswith(value)], "total": 9}
        tone = f"-{known['tone']}" if "tone" in known else ""
        return {"values": [f"{value}{tone}{end}" for end in (".py", ".md")], "hasMore": True}

    def listen(self, request):
        uris = request["params"]["notifications"].get("resourceSubscriptions") or []
        self.subscribed[request["id"]] = set(uris)
        super().listen(request)

    def receive(self, message):
        if message.get("method") == "notifications/cancelled":
            self.subscribed.pop(message["params"]["requestId"], None)
        super().receive(message)


if __name__ == "__main__":
    Talkative().run()
