"""Definitions of tools as records: compared with what was approved, and decided on.

It gets what a server lists as plain values and knows no connection.
"""
