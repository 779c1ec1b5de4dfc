"""The rights of the caller, as pages, REST and commands pass them to services."""

from __future__ import annotations

from collections.abc import Callable

# Asked with the name of a permission, for example "mcpregistry.delete_policyrule".
# ``User.has_perm`` is one.
Rights = Callable[[str], bool]


def deny_all_rights(permission: str) -> bool:
    """The rights of a caller that passes none."""
    return False


def grant_all_rights(permission: str) -> bool:
    """The rights of a command: a person who can start one can also change the database."""
    return True
