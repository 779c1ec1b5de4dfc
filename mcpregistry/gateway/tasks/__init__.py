"""Tasks towards hosts: requests about them, and streams that tell of them.

A task has no state of its own: everything is derived from the call behind it.
"""
