"""Fails its first FAKE_FAILURES starts (counted in the file FAKE_COUNTER), then serves."""

import os
import sys

from rpc import Server, text, tool

path = os.environ["FAKE_COUNTER"]
with open(path, "a") as file:
    file.write("x")
if os.path.getsize(path) <= int(os.environ["FAKE_FAILURES"]):
    sys.exit(1)
Server([tool("ok")], lambda context: text("ok"), name="flaky").run()
