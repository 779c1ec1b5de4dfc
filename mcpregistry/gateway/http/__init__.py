"""The HTTP door: ``/mcp/<endpoint>``, and its two fast lanes before the SDK's server.

A lane decides nothing, and hands on unread what it does not fully understand.
"""
