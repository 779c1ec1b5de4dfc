"""Who may call what: agents, tokens, grants, roles, credentials.

Below policy and approvals, which it does not know.
"""
