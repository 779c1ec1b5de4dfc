"""Structured content that is no object, which the modern protocol allows."""

from rpc import Server, text, tool

RESULTS = {"number": 7, "array": [1, 2]}


def call(context):
    return {**text("see the structure"), "structuredContent": RESULTS[context.name]}


Server([tool(name) for name in RESULTS], call, name="shapes").run()
