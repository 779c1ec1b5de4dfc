"""Rows that remember the values they were read with, so that saving a row does not undo later
changes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy, deepcopy
from typing import Any, Self

from django.db import models

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.models.sealing import find_sealed_columns


class TrackedModel(models.Model):
    """A configured row.

    ``services.configuration.saving.take_current`` uses it before each save: only the columns that
    were changed on this object, or set with ``change``, are written over what the database holds.
    """

    # Columns and values as they were read or last saved; None for a row that is not in the database
    # yet.
    _columns_read: Collection[str] | None = None
    _values_read: Sequence[Any] = ()
    _set_on_purpose: frozenset[str] = frozenset()

    class Meta:
        abstract = True

    @classmethod
    def from_db(
        cls, db: str | None, field_names: Collection[str], values: Collection[Any], **more: Any
    ) -> Self:
        """As Django, and remember the columns."""
        row = super().from_db(db, field_names, values, **more)
        row._columns_read = field_names
        row._values_read = [
            deepcopy(value) if type(value) in _CHANGEABLE and value else value for value in values
        ]
        return row

    def refresh_from_db(self, *args: Any, **kwargs: Any) -> None:
        """As Django, and remember the columns."""
        super().refresh_from_db(*args, **kwargs)
        self._remember(kwargs.get("fields") or (args[1] if len(args) > 1 else None))

    def save(self, *args: Any, **kwargs: Any) -> None:
        """As Django, and remember the columns."""
        super().save(*args, **kwargs)
        self._remember(kwargs.get("update_fields"))

    def change(self, **values: Any) -> Self:
        """Set these attributes; they are written also where this object had the same values
        already."""
        for name, value in values.items():
            setattr(self, name, value)
        self._set_on_purpose |= {_column_of(type(self), name) for name in values}
        return self

    def list_changed_columns(self) -> set[str]:
        """The columns that the next save is to write: changed since the row was read, or set with
        ``change``."""
        loaded = [
            field.attname for field in self._meta.concrete_fields if field.attname in self.__dict__
        ]
        if self._columns_read is None:
            return {*loaded}
        before = dict(zip(self._columns_read, self._values_read, strict=True))
        hidden = find_sealed_columns(type(self))
        return {
            name
            for name in loaded
            if name in self._set_on_purpose
            or name not in before
            or self._differs(name, before[name], hidden.get(name))
        }

    def validate_unique(self, exclude: Collection[str] | None = None) -> None:
        """As Django, but without a query for a unique column that still has the stored value."""
        if self._state.adding:  # also a copy of a row that was read, with the same values
            super().validate_unique(exclude=exclude)
            return
        together = {name for names in self._meta.unique_together for name in names}
        changed = self.list_changed_columns()
        same = {
            field.name
            for field in self._meta.concrete_fields
            if field.unique and field.attname not in changed and field.name not in together
        }
        super().validate_unique(exclude={*(exclude or ()), *same})

    def compare_with(self, stored: Self) -> None:
        """Compare with the values that ``stored`` was read with from now on."""
        self._columns_read = stored._columns_read
        self._values_read = stored._values_read

    def _differs(self, column: str, before: Any, secret: str | None) -> bool:
        """Sealing the same secret again makes another text, so of a sealed column the secrets are
        compared."""
        now = self.__dict__[column]
        if now == before or secret is None:
            return bool(now != before)
        earlier = copy(self)
        setattr(earlier, column, before)
        try:
            return bool(getattr(earlier, secret) != getattr(self, secret))
        except ConfigInvalid:  # a secret whose key is lost
            return True

    def _remember(self, names: Collection[str] | None) -> None:
        """Take these fields (None: all) as they are now for what the database holds."""
        some = None if names is None else {self._meta.get_field(name).attname for name in names}  # type: ignore[union-attr]
        known = dict(zip(self._columns_read or (), self._values_read, strict=False))
        known |= {
            field.attname: deepcopy(self.__dict__[field.attname])
            for field in self._meta.concrete_fields
            if field.attname in self.__dict__ and (some is None or field.attname in some)
        }
        self._columns_read = [*known]
        self._values_read = [*known.values()]
        self._set_on_purpose = frozenset() if some is None else self._set_on_purpose - some


_CHANGEABLE = (dict, list)


def _column_of(model: type[models.Model], name: str) -> str:
    columns = {secret: column for column, secret in find_sealed_columns(model).items()}
    return columns[name] if name in columns else model._meta.get_field(name).attname  # type: ignore[union-attr]
