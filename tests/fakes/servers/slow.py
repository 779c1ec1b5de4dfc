"""Counts up to ``steps`` with a pause of ``pause`` seconds, reports progress, stops when cancelled.

With ``refuse`` it says no in the end.
"""

from rpc import Refused, Server, text, tool


def call(context):
    steps, pause = context.arguments.get("steps", 3), context.arguments.get("pause", 0.01)
    for step in range(steps):
        context.progress(step + 1, steps, f"step {step + 1}")
        if context.cancelled.wait(pause):
            return None
    if context.arguments.get("refuse"):
        raise Refused(-32000, "not today")
    return text(f"{steps} steps")


Server([tool("count")], call, name="slow").run()
