"""Everything in the gateway that the SDK has no public name for, under names of our own.

No other module of the gateway uses a private name of the SDK, and the pinned version has those that
are used here (``tests/architecture/test_sdk.py``).
"""
