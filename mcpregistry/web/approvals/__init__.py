"""Pages on which people decide on held calls.

Who may decide, and what follows, is in ``services.approvals``; a page only shows the stored bytes.
"""
