"""Scopes of secrets: the places, ``server:NAME`` or ``provider:NAME``, into which one may be
filled."""

from __future__ import annotations

import re

from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import ConfigInvalid

_PLACE = re.compile(r"(server|provider):[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def check_places(places: object, what: str) -> list[str]:
    """The list of places, each once and in order, else ConfigInvalid; ``what`` names whose scope it
    is."""
    if not isinstance(places, list) or not all(
        isinstance(each, str) and _PLACE.fullmatch(each) for each in places
    ):
        raise ConfigInvalid(
            f"The scope of {what} must be a list of servers and providers.",
            remedy="Write each of them as server:NAME or provider:NAME.",
        )
    return sorted(set(places))


def check_variable_scope(scope: object) -> dict[str, list[str]]:
    """The variables with their places, else ConfigInvalid."""
    if not isinstance(scope, dict):
        raise ConfigInvalid(
            "The scopes of variables must be an object.",
            remedy=error_texts.advise_form("an object", '{"GITHUB_TOKEN": ["server:github"]}'),
        )
    return {str(name): check_places(places, str(name)) for name, places in sorted(scope.items())}
