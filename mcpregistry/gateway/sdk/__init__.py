"""Everything in the gateway that the SDK has no public name for, under names of our own.

No other package of the gateway uses a private name of the SDK (``tests/architecture``), and
``tests/gateway/test_sdk.py`` holds the pinned version to the names that are used here.
"""
