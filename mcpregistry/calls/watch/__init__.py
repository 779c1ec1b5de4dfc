"""How one process follows the database: the change feed, the configuration, and the states that
callers wait for.

It tells that something has changed, never what that means: who waits reads it himself.
"""
