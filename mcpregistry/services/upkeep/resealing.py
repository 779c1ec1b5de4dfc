"""After a rotation of keys: every secret sealed anew with the newest one, while the site works on.

Nothing is remembered between two runs, for a sealed text says which key it is of; so one that was
broken off goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from django.apps import apps
from django.conf import settings
from django.db import transaction
from django.db.models import Model, QuerySet

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.models.sealing import find_sealed_columns, key_of, seal, unseal
from mcpregistry.services.records import audit

_PAGE = 200  # texts of one transaction

Text = tuple[Any, Any, str]  # key of the row, its uid, what is sealed


@dataclass(frozen=True, slots=True)
class SealedColumn:
    """A column of sealed texts. ``model`` is the one whose row they belong to, also in a
    history."""

    rows: QuerySet[Model]
    model: type[Model]
    name: str

    def place(self, uid: object) -> str:
        """As ``Sealed`` names it."""
        return f"{self.model._meta.label_lower}:{uid}:{self.name}"


def list_sealed_columns() -> list[SealedColumn]:
    """Every column of the site that holds sealed texts, those of histories included."""
    found = []
    for model in filter(find_sealed_columns, apps.get_models()):
        history = getattr(model, "history", None)
        tables = [model, *([history.model] if history else [])]
        for name in find_sealed_columns(model):
            for table in tables:
                if name in {field.name for field in table._meta.local_concrete_fields}:
                    found.append(SealedColumn(table._base_manager.all(), model, name))
    return found


def count_key_uses() -> Counter[str]:
    """How many texts each key has sealed."""
    found: Counter[str] = Counter()
    for column in list_sealed_columns():
        for page in _iterate_pages(column):
            found.update(key_of(text) for _, _, text in page)
    return found


def reseal_all(*, actor: str, say: Callable[[str], None]) -> tuple[int, list[str]]:
    """Seal with the newest key whatever another has sealed.

    Returns how many texts that were, and one sentence for each that does not open and stays as it
    is.
    """
    done = 0
    closed = list[str]()
    for column in list_sealed_columns():
        for page in _iterate_pages(column):
            count, problems = _reseal_page(column, page)
            done = done + count
            closed = [*closed, *problems]
            if count:
                say(f"{done:,} secrets encrypted again")
    if done:
        audit.record_entry(
            kind="secrets.resealed", actor=actor, subject=f"key:{_find_newest_key()}", texts=done
        )
    return done, closed


def _find_newest_key() -> str:
    return str(next(iter(settings.SLIPSNISSE_KEYS)))


@transaction.atomic
def _reseal_page(column: SealedColumn, page: Iterable[Text]) -> tuple[int, list[str]]:
    """One page in one transaction: running processes read the configuration anew once for all of
    it."""
    done = 0
    closed = list[str]()
    for pk, uid, text in page:
        if key_of(text) == _find_newest_key():
            continue
        place = column.place(uid)
        try:
            anew = seal(unseal(text, place=place), place=place)
        except ConfigInvalid as error:
            closed.append(str(error))
            continue
        # Only as it was read: what somebody saves meanwhile is sealed with the newest key anyway.
        done += column.rows.filter(pk=pk, **{column.name: text}).update(**{column.name: anew})
    return done, closed


def _iterate_pages(column: SealedColumn) -> Iterator[list[Text]]:
    rows = (
        column.rows.exclude(**{column.name: ""})
        .order_by("pk")
        .values_list("pk", "uid", column.name)
    )
    page = list(rows[:_PAGE])
    while page:
        yield page
        page = list(rows.filter(pk__gt=page[-1][0])[:_PAGE])
