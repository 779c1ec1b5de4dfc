"""One way to save a configured row: it is checked as by a form, and a refusal is one sentence with
a remedy.

Each service that saves a row calls ``take_current`` first. Then saving does not undo changes that
were made since the row was read.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import CharField, JSONField, Model, TextField

from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import AlreadyExists, ConfigInvalid, NotFound
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models.tracked import TrackedModel

Row = TypeVar("Row", bound=TrackedModel)

DEPTH = 3  # levels above a column's value in a document of the whole site: section, name, column


def take_current(row: Row, *, own: Collection[str] = ()) -> Row | None:
    """Lock the row in the database, and take over each column from there that the caller has not
    changed.

    ``own`` names columns that the database decides in any case, because only their own services may
    write them. Returns the row as it is stored, or None for a new one. Raises NotFound if it was
    deleted in the meantime. Call it in the transaction that saves the row, before anything is
    checked.
    """
    if row._state.adding:
        return None
    # Not for its key, so that calls which refer to the row can be recorded in the meantime.
    # by no other table, which is not locked
    rows = type(row)._base_manager.select_for_update(no_key=True).order_by()
    stored = rows.filter(pk=row.pk).first()
    if stored is None:
        name = show_invisible_characters(str(row), 200)
        what = row._meta.verbose_name
        raise NotFound(
            f"The {what} '{name}' was deleted before your change was saved.",
            remedy="If you still need it, add it again.",
        )
    changed = row.list_changed_columns() - {row._meta.get_field(name).attname for name in own}  # type: ignore[union-attr]
    for field in row._meta.concrete_fields:
        if field.attname not in changed and not field.primary_key:
            setattr(row, field.attname, getattr(stored, field.attname))
    row.compare_with(stored)
    return stored


def save_checked(row: Model) -> None:
    """``full_clean`` and ``save``. Raises as ``check_fields``, also when another request is first
    in between."""
    check_fields(row)
    store_checked(row)


def check_fields(row: Model) -> None:
    """Raises ConfigInvalid naming every field that is wrong; AlreadyExists when all that is wrong
    is a name that another row has."""
    try:
        row.full_clean()
    except ValidationError as error:
        taken = [
            name
            for name, found in error.error_dict.items()
            if all(each.code == "unique" for each in found)
        ]
        if taken == list(error.error_dict) and taken[0] in {
            field.name for field in row._meta.fields
        }:
            raise _make_already_exists(row, taken[0]) from error
        problems = "; ".join(
            f"{field}: {' '.join(texts)}" for field, texts in error.message_dict.items()
        )
        raise ConfigInvalid(
            f"These values cannot be saved: {problems}", remedy="Correct these fields."
        ) from error
    _check_storable(row)


def _check_storable(row: Model) -> None:
    """What SQLite would keep and PostgreSQL or a document of the site could not: Django's fields
    let it through."""
    from mcpregistry.domain.formats import text  # brings YAML along, which runmcp can do without

    for field in row._meta.concrete_fields:
        text_or_json = field.editable and isinstance(field, JSONField | CharField | TextField)
        if text_or_json and not text.is_readable_value(field.value_from_object(row), below=DEPTH):
            raise ConfigInvalid(
                f"The value of the field {field.name} cannot be saved: it contains a NUL character, an incomplete Unicode character or "
                "an infinite number, or it is nested too deeply.",
                remedy="Correct this field.",
            )


def store_checked(row: Model) -> None:
    """``save`` a row whose fields were checked; whoever took its name meanwhile is told as if it
    had been before."""
    try:
        with transaction.atomic():
            row.save()
    except IntegrityError:
        check_fields(row)
        raise


def _make_already_exists(row: Model, field: str) -> AlreadyExists:
    value = getattr(row, field)
    other = type(row)._default_manager.filter(**{field: value}).first()
    return AlreadyExists(
        error_texts.say_already_exists(
            str(row._meta.verbose_name), show_invisible_characters(str(value), 200)
        ),
        remedy=error_texts.CHOOSE_ANOTHER_NAME,
        key=str(getattr(other, "slug", None) or getattr(other, "pk", "")),
    )
