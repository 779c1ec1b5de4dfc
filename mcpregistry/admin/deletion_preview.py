"""What the page that asks before a deletion lists: records that people know, and no rows of
relations between them."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.utils.text import capfirst

Deleted = tuple[list[Any], dict[str, int], set[str], list[str]]


def without_relations(found: Deleted) -> Deleted:
    """The answer of ``ModelAdmin.get_deleted_objects`` without the rows that Django itself makes
    for relations.

    They have no name: a membership in a group is listed as "User_groups object (1)".
    """
    listed, counts, missing, protected = found
    made = [
        model._meta
        for model in apps.get_models(include_auto_created=True)
        if model._meta.auto_created
    ]
    prefixes = tuple(f"{capfirst(meta.verbose_name)}: " for meta in made)
    plurals = {str(meta.verbose_name_plural) for meta in made}
    known = {name: count for name, count in counts.items() if str(name) not in plurals}
    return _prune_list(listed, prefixes), known, missing, protected


def _prune_list(listed: list[Any], prefixes: tuple[str, ...]) -> list[Any]:
    """The nested list without the texts that begin so, and without lists that are empty then."""
    kept = [_prune_list(each, prefixes) if isinstance(each, list) else each for each in listed]
    return [
        each for each in kept if each and not (isinstance(each, str) and each.startswith(prefixes))
    ]
