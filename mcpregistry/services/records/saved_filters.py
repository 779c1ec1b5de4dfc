"""Views of the list of calls that people keep under a name of their own."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import parse_qsl, urlencode

from django.contrib.auth.models import User
from django.db.models import Case, Q, QuerySet, When

from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import Conflict, NotFound
from mcpregistry.models import SavedFilter

MOST = 50  # of one person
_SHOWN = 100


def select_filters(user: User) -> QuerySet[SavedFilter]:
    """The person's own, which nobody's crowd out, then those that others share; each by name."""
    theirs = Case(When(owner=user, then=0), default=1)
    found = SavedFilter.objects.filter(Q(owner=user) | Q(shared=True)).select_related("owner")
    return found.order_by(theirs, "name", "pk")[:_SHOWN]


def save_filter(
    *, user: User, name: str, query: str, shared: bool, known: Collection[str]
) -> SavedFilter:
    """Keep the view under this name, in place of one of the same name. Only what the list knows
    (``known``) is kept."""
    name = " ".join(name.split())[:60]
    if not name:
        raise Conflict(
            error_texts.say_required("A name"),
            remedy="Enter a name, for example: Failed this week.",
        )
    pairs = [(key, value) for key, value in parse_qsl(query.lstrip("?")) if key in known]
    kept = urlencode(pairs)
    if len(kept) > SavedFilter._meta.get_field("query").max_length:  # type: ignore[operator]
        raise Conflict(
            "The filter is too long to be saved.",
            remedy="Search for fewer words, or use fewer fields of the filter.",
        )
    others = SavedFilter.objects.filter(owner=user).exclude(name=name)
    if others.count() >= MOST:
        raise Conflict(
            f"You can save at most {MOST} filters.",
            remedy="Delete a filter that you no longer use.",
        )
    return SavedFilter.objects.update_or_create(
        owner=user, name=name, defaults={"query": kept, "shared": shared}
    )[0]


def remove_filter(*, user: User, pk: int) -> str:
    """Remove the person's own filter; returns its name. Raises NotFound, for one of somebody else
    as well."""
    found = SavedFilter.objects.filter(owner=user, pk=pk).first()
    if found is None:
        raise NotFound(
            "This filter does not exist, or it belongs to another user.",
            remedy="To delete a shared filter, ask the user who saved it.",
        )
    found.delete()
    return found.name
