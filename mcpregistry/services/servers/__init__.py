"""Servers as records: saved, confirmed, checked, tested; and how a row becomes something to connect
to.

Only ``targets`` opens secrets; nothing here knows calls.
"""
