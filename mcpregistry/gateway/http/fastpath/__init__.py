"""Answers to common requests of hosts without the SDK's layers around them.

They use the same pipeline and decide nothing; what they do not fully understand goes to the SDK.
Through the SDK alone, a call over HTTP takes two to three times as long, and a call of an older
host reaches only 0.20 to 0.30 times the rate of a direct call (docs/performance.md).
"""
