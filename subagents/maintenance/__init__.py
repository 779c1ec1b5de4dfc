"""The background sub-agent: it works a queue of requests about servers, tells how far it is, and
only proposes.

It knows nothing of energy pools: it counts what it uses, and whoever keeps the books takes the
count. Nothing here starts serving anything; what it proposes waits for a person (``proposals``).
"""
