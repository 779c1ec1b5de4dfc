"""What a page may promise of taking back what it is about to do."""

from __future__ import annotations

MOST = 50  # versions of one action that can be undone at once


def undo_said(changes: int) -> str:
    """The last sentence before a yes, true of an action that adds, changes and deletes so many records."""
    if changes <= MOST:
        return "It can be undone for a minute, and put back from the history later."
    return f"These are {changes} changes, and no more than {MOST} can be undone at once: it can only be put back from the history."
