"""Policy as records: rules and permits, explained and tried on past calls.

What follows from a rule is decided in ``domain.policy``; held calls are not known here.
"""
