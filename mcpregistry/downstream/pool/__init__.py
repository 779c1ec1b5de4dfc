"""Connections to servers: one owner task each, limits, health, and what they tell the outside.

It speaks through ``transports`` and does not know which one; who calls, and whether it may, is not
its business.
"""
