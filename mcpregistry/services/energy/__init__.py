"""Energy pools: what agents may spend, what they have spent, and what their calls that are out will
cost.

Every change of a level is one transaction with the entry that tells it. Knows nothing of faces or
of MCP.
"""
