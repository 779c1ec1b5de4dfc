"""Definitions of tools: what a model sees of one, how two differ, what is suspicious, under which
name it is shown.

It judges texts and never decides: approval is a person's, in ``services.definitions``.
"""
