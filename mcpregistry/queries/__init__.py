"""Reads for pages, REST and programs: bounded by indexes and limits; nothing here changes a row.

What a person may see is said by the querysets' ``visible_to``; nothing here knows calls at work or
the network.
"""
