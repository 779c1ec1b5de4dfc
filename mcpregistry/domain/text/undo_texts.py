"""What a page may promise of taking back what it is about to do."""

from __future__ import annotations

MOST = 50  # versions of one action that can be undone at once


def explain_undo(changes: int) -> str:
    """The last sentence before a yes, true of an action that adds, changes and deletes so many
    records."""
    if changes <= MOST:
        return "You can undo this for a minute. Later you can restore the earlier state from the history."
    return (
        f"These are {changes} changes, and at most {MOST} can be undone at once. "
        "You can only restore the earlier state from the history."
    )
