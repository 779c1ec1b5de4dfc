"""Actions on several rows of a list at once; a serious one first says what it will do and asks, as
a record's button does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.functional import Promise

from mcpregistry.admin.question_page import question
from mcpregistry.domain.text.canonical import hash_parts

Run = Callable[[Any, HttpRequest, QuerySet[Any]], None]
Consequences = Callable[[Sequence[Any]], list[str]]


def asks_first(
    consequences: Consequences,
    *,
    label: str | Promise,
    icon: str = "block",
    bound_to: Callable[[Any], object] = lambda row: "",
) -> Callable[[Run], Run]:
    """An action of a list that runs when the person says yes to exactly these rows and sentences.

    ``label`` is what the button says that does it; ``bound_to`` tells of a row what must be the
    same when they say yes. Django gives the action its rows, and shows the page that it returns.
    """

    def asking(run: Run) -> Run:
        @wraps(run)
        def action(self: Any, request: HttpRequest, rows: QuerySet[Any]) -> HttpResponse | None:
            chosen = list(rows)
            sentences = consequences(chosen) if chosen else []
            sure = hash_parts("sure", *sentences, *(f"{row.pk} {bound_to(row)}" for row in chosen))
            if not chosen or request.POST.get("sure") == sure:
                run(self, request, rows)
                return None
            return question(
                request,
                title=label,
                label=label,
                icon=icon,
                sentences=sentences,
                sure=sure,
                back=request.get_full_path(),
                kept=_list_kept_fields(request),
                opts=self.opts,
            )

        # Django's own: a page, or None to show the list again
        return action  # type: ignore[return-value]

    return asking


def _list_kept_fields(request: HttpRequest) -> Iterable[tuple[str, str]]:
    """What Django needs to choose the same rows and the same action again."""
    for name in ("action", "select_across", "index", ACTION_CHECKBOX_NAME):
        for value in request.POST.getlist(name):
            yield name, value
