"""Ends itself. FAKE_CRASH=start: before the handshake; otherwise in the call named ``crash``."""

import os
import sys

from rpc import Server, text, tool


def call(context):
    if context.name == "crash":
        sys.stderr.write("about to fall over\n")
        sys.stderr.flush()
        os._exit(3)
    return text(str(os.getpid()))


if os.environ.get("FAKE_CRASH") == "start":
    sys.stderr.write("cannot find my configuration\n")
    sys.exit(1)
Server([tool("crash"), tool("pid")], call, name="crash").run()
