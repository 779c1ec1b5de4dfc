"""Verbs of expert tools, providers and runs: audited, in one transaction each.

They wake workers and never work on a run themselves.
"""
