"""Expert tools: one clean tool for hosts, behind it a cheap model with whitelisted tools, and every
run of it.

It registers with the registry and uses its calls and services; nothing in ``mcpregistry`` imports
it.
"""
