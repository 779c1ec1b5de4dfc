"""Conversations: ``lifecycle`` begins, changes and ends them; ``entering`` says what a call that
names one may see; ``messages`` writes into them.
"""
