"""Budgets of agents and endpoints, and agents' calls per minute over all processes: what may be
spent, what has been, what is out.

Every change of a book is one transaction, and locks the budget's row, so that many processes come
one after the other. Knows nothing of faces, of MCP, or of how models are asked.
"""
