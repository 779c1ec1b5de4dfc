"""Raw JSON-RPC base of the fake servers: standard library only, both protocol eras, fast to start.

FAKE_ERA is ``both`` (default), ``legacy`` or ``modern``. FAKE_JOURNAL names a file that gets one
JSON line for each message received. FAKE_LISTED (a JSON list of definitions) is listed instead of
the fake's own tools, and it then gives no instructions: what a test approved is what the server
says. FAKE_INSTRUCTIONS names a file whose text is given instead, read at each handshake. Handlers
run in threads, so a slow call does not block the others.
"""

import json
import os
import sys
import threading

MODERN = "2026-07-28"
LEGACY = "2025-11-25"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
_lock = threading.Lock()


class Refused(Exception):
    def __init__(self, code, message, data=None):
        super().__init__(message)
        self.error = {"code": code, "message": message} | (
            {"data": data} if data is not None else {}
        )


def text(value):
    return {"content": [{"type": "text", "text": value}]}


def tool(name, description="", schema=None, **more):
    return {
        "name": name,
        "description": description,
        "inputSchema": schema or {"type": "object"},
        **more,
    }


def write(data):
    with _lock:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def send(message):
    write(json.dumps(message).encode() + b"\n")


def journal(message):
    if path := os.environ.get("FAKE_JOURNAL"):
        with _lock, open(path, "ab", buffering=0) as file:  # whoever reads it finds whole lines
            file.write(json.dumps(message).encode() + b"\n")


class Context:
    """One call: its arguments, its cancellation, its progress token."""

    def __init__(self, params):
        self.name = params.get("name")
        self.arguments = params.get("arguments") or {}
        self.meta = params.get("_meta") or {}
        self.cancelled = threading.Event()

    def progress(self, progress, total=None, message=None):
        token = self.meta.get("progressToken")
        if token is not None:
            params = {
                "progressToken": token,
                "progress": progress,
                "total": total,
                "message": message,
            }
            send({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})


class Server:
    def __init__(self, tools, call, *, name="fake", list_changed=True, threaded=True):
        listed = os.environ.get("FAKE_LISTED")
        self.tools = tools if listed is None else json.loads(listed)
        self._instructions = (
            {} if listed is not None else {"instructions": f"instructions of {name}"}
        )
        self.call = call
        self.name = name
        self.capabilities = {"tools": {"listChanged": True} if list_changed else {}}
        self.threaded = threaded
        self.era = os.environ.get("FAKE_ERA", "both")
        self.running = {}
        self.listeners = []

    @property
    def instructions(self):
        if path := os.environ.get("FAKE_INSTRUCTIONS"):
            with open(path) as file:
                return {"instructions": file.read()}
        return self._instructions

    def list_tools(self, params):
        return {"tools": self.tools}

    def changed(self, what="tools"):
        """Tell whoever listens, in its era."""
        note = {"jsonrpc": "2.0", "method": f"notifications/{what}/list_changed"}
        for listener in self.listeners:
            send(note | {"params": {"_meta": {SUBSCRIPTION: listener}}})
        if not self.listeners:
            send(note)

    def answer(self, request):
        method = request["method"]
        params = request.get("params") or {}
        if method == "initialize" and self.era != "modern":
            info = {"name": self.name, "version": "1"}
            return {
                "protocolVersion": LEGACY,
                "capabilities": self.capabilities,
                "serverInfo": info,
                **self.instructions,
            }
        if method == "server/discover" and self.era != "legacy":
            return {
                "resultType": "complete",
                "supportedVersions": [MODERN],
                "capabilities": self.capabilities,
                **self.instructions,
                "ttlMs": 0,
                "cacheScope": "private",
                "_meta": {
                    "io.modelcontextprotocol/serverInfo": {"name": self.name, "version": "1"}
                },
            }
        if method == "ping":
            return {}
        if method == "tools/list":
            return {
                "resultType": "complete",
                "ttlMs": 0,
                "cacheScope": "private",
            } | self.list_tools(params)
        if method == "tools/call":
            context = self.running.setdefault(request["id"], Context(params))
            result = self.call(context)
            if result is None or context.cancelled.is_set():
                return None
            return result
        raise Refused(-32601, f"no method {method}")

    def handle(self, request):
        # as servers do that know no other ids
        known = request["id"] if type(request["id"]) is int else None
        try:
            result = self.answer(request)
        except Refused as refused:
            send({"jsonrpc": "2.0", "id": known, "error": refused.error})
        else:
            if result is not None:
                send({"jsonrpc": "2.0", "id": known, "result": result})
        finally:
            self.running.pop(request["id"], None)

    def listen(self, request):
        self.listeners.append(request["id"])
        params = {
            "_meta": {SUBSCRIPTION: request["id"]},
            "notifications": (request.get("params") or {}).get("notifications", {}),
        }
        send(
            {
                "jsonrpc": "2.0",
                "method": "notifications/subscriptions/acknowledged",
                "params": params,
            }
        )

    def receive(self, message):
        journal(message)
        method = message.get("method")
        if method == "notifications/cancelled":
            if context := self.running.get(message["params"]["requestId"]):
                context.cancelled.set()
        elif "id" not in message or method is None:
            return
        elif method == "subscriptions/listen" and self.era != "legacy":
            self.listen(message)
        elif method == "tools/call" and self.threaded:
            # Before its thread begins: the next line may already cancel it.
            self.running[message["id"]] = Context(message.get("params") or {})
            threading.Thread(target=self.handle, args=(message,), daemon=True).start()
        else:
            self.handle(message)

    def run(self):
        for line in sys.stdin.buffer:
            self.receive(json.loads(line))
