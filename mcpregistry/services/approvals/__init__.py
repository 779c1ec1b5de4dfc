"""Held calls as records: asking, deciding, ending. The part that runs them is ``calls.approvals``.

It announces what becomes of them (``announce``) and does not know who listens.
"""
