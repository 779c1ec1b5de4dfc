"""The records of calls: group commit, raw SQL, one audit chain for each writer.

It writes what it is given and knows no policy; the words of an end come from
``services.records.ending``.
"""
