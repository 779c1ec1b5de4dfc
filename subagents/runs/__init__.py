"""Runs at work: the loop, its lease, turns, tool calls, ends; and expert tools as a source of the
registry.

Everything that decides is in rows; no step may rely on what the process remembers.
"""
