"""Breaks the rules in the way its tool is named: oversize, garbage, wrong answers, poison
values."""

import json
import os
import signal
import sys
import time

from rpc import SUBSCRIPTION, Server, send, text, tool, write

MIB = 1024 * 1024
POISON = {
    "nul": b'"a\\u0000b"',
    "nan": b"NaN",
    "infinity": b"-Infinity",
    "overflow": b"1e400",
    "huge_int": b"1" * 400,
    "absurd_int": b"1" * 6000,
    "big_int": b"12345678901234567890123",
    "surrogate": b'"\\ud800"',
    "deep": b"[" * 150 + b"]" * 150,
    "bottomless": b"[" * 5000 + b"]" * 5000,
    "duplicate_key": b'{"a": 1, "a": 2}',
}


def huge_line(context):
    size = context.arguments.get("size", 100 * MIB)
    write(b'{"jsonrpc":"2.0","id":"' + b"x" * size + b'"}\n')


def endless_line(context):
    while True:
        write(b"y" * 65536)


def garbage(context):
    count = context.arguments.get("count", 1_000_000)
    line = b"this is a log line that should be on standard error\n"
    for _ in range(count // 1000):
        write(line * 1000)
    return text("after garbage")


def notices(context):
    note = (
        json.dumps({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}).encode()
        + b"\n"
    )
    for _ in range(200):
        write(note * 1000)
    return text("after notices")


def burst(context):
    """``count`` messages of one sort at once: notifications that mean the same or not, requests,
    answers that nobody awaits."""
    sort = context.arguments["sort"]
    count = context.arguments["count"]
    updated = {"method": "notifications/resources/updated"}
    made = {
        "same": lambda n: updated | {"params": {"uri": "docs://one"}},
        "each": lambda n: updated | {"params": {"uri": f"docs://{n}"}},
        "listener": lambda n: (
            updated
            | {"params": {"uri": f"docs://{n}", "_meta": {SUBSCRIPTION: server.listeners[0]}}}
        ),
        "changed": lambda n: {"method": "notifications/prompts/list_changed"},
        "unknown": lambda n: {"method": "notifications/unknown", "params": {"n": n}},
        "cancelled": lambda n: {"method": "notifications/cancelled", "params": {"requestId": n}},
        "log": lambda n: {
            "method": "notifications/message",
            "params": {"level": "info", "data": n},
        },
        "questions": lambda n: {"id": f"q{n}", "method": "no/such"},
    }[sort]
    write(b"".join(json.dumps({"jsonrpc": "2.0"} | made(n)).encode() + b"\n" for n in range(count)))
    return text("after the burst")


def stderr(context):
    for _ in range(context.arguments.get("chunks", 200)):
        sys.stderr.write("e" * 65536)
    sys.stderr.write("the last words\n")
    sys.stderr.flush()
    return text("after stderr")


def wrong(context):
    """Everything that is not the answer, then the answer, twice."""
    mine = next(key for key, value in server.running.items() if value is context)
    for line in (
        b"\xff\xfe\xfa\n",
        b'{"jsonrpc":"2.0","id":\n',
        b"[]\n",
        b"null\n",
        b"{}\n",
        b'{"jsonrpc":"1.0","id":1000001,"result":{}}\n',
        b'{"jsonrpc":"2.0","id":"f999999","result":{"content":[]}}\n',
        b'{"jsonrpc":"2.0","id":999999,"result":{"content":[]}}\n',
        b'{"jsonrpc":"2.0","id":null,"result":{"content":[]}}\n',
        b'{"jsonrpc":"2.0","id":true,"result":{"content":[]}}\n',
        b'{"jsonrpc":"2.0","id":"s1","method":"roots/list"}\n',
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"f999","progress":1}}\n',
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":7}\n',
        json.dumps([{"jsonrpc": "2.0", "id": mine, "result": text("batched")}] * 2).encode()
        + b"\n",
    ):
        write(line)
    send({"jsonrpc": "2.0", "id": mine, "result": text("right")})
    send({"jsonrpc": "2.0", "id": mine, "result": text("again")})


def poison(context):
    mine = next(key for key, value in server.running.items() if value is context)
    value = POISON[context.arguments["kind"]]
    body = b'{"jsonrpc":"2.0","id":%s,"result":{"content":[],"structuredContent":{"v":%s}}}\n'
    write(body % (json.dumps(mine).encode(), value))


def shapeless(context):
    mine = next(key for key, value in server.running.items() if value is context)
    send({"jsonrpc": "2.0", "id": mine, "result": context.arguments.get("result", [1, 2])})


def items(context):
    return {"content": [{"type": "text", "text": "x"}] * context.arguments["count"]}


def hang(context):
    context.cancelled.wait()


def freeze(context):
    os.kill(os.getpid(), signal.SIGSTOP)


def drip(context):
    for byte in b'{"jsonrpc":"2.0"' + b" " * 100_000:
        write(bytes([byte]))
        time.sleep(0.01)


def big(context):
    return text("b" * context.arguments["size"])


CALLS = [
    huge_line,
    endless_line,
    garbage,
    notices,
    burst,
    stderr,
    wrong,
    poison,
    shapeless,
    items,
    hang,
    freeze,
    drip,
    big,
]
by_name = {function.__name__: function for function in CALLS}
evil_schema = {"type": "object", "properties": {"s": {"type": "string", "pattern": "^(a+)+$"}}}


def redos(context):
    return {**text("x"), "structuredContent": {"s": "a" * 40 + "!"}}


by_name["redos"] = redos
tools = [tool(name) for name in by_name if name != "redos"] + [
    tool("redos", outputSchema=evil_schema)
]
server = Server(tools, lambda context: by_name[context.name](context), name="hostile")
assert SUBSCRIPTION
server.run()
