"""Who may use which tool, how risky a call is, and what the rules decide about it.

It knows the specs of the configuration, not the snapshot that holds them, and nothing of approvals'
records.
"""
