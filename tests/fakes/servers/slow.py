"""Counts up to ``steps`` with a pause of ``pause`` seconds, reports progress, stops when cancelled."""

from rpc import Server, text, tool


def call(context):
    steps, pause = context.arguments.get("steps", 3), context.arguments.get("pause", 0.01)
    for step in range(steps):
        context.progress(step + 1, steps, f"step {step + 1}")
        if context.cancelled.wait(pause):
            return None
    return text(f"{steps} steps")


Server([tool("count")], call, name="slow").run()
