"""Counts up to ``steps`` with a pause of ``pause`` seconds, reports progress, stops when cancelled.

With ``until`` it goes on, whatever the steps, when there is a file of that name; with ``refuse`` it
says no in the end.
"""

import os

from rpc import Refused, Server, text, tool


def call(context):
    steps = context.arguments.get("steps", 3)
    pause = context.arguments.get("pause", 0.01)
    for step in range(steps):
        context.progress(step + 1, steps, f"step {step + 1}")
        if context.cancelled.wait(pause):
            return None
    while (gate := context.arguments.get("until")) and not os.path.exists(gate):
        if context.cancelled.wait(0.01):
            return None
    if context.arguments.get("refuse"):
        raise Refused(-32000, "not today")
    return text(f"{steps} steps")


Server([tool("count")], call, name="slow").run()
