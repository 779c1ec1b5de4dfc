"""The guarded HTTP client: the only way out to the network.

It knows addresses and limits, but no MCP, except for the adapter to the SDK's transports.
"""
