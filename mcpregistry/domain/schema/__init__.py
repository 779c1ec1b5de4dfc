"""Validation of arguments against schemas that strangers wrote, within a bounded cost.

It never fetches a reference and knows nothing of tools or servers.
"""
