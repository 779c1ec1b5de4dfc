"""MCP towards servers. The only importer of the protocol's client; nothing here reads the database.

It gets a ``Target`` with its secrets resolved and knows neither agents nor policy.
"""
