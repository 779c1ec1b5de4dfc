"""Two users edit one record at the same time: the form that is saved last does not undo the changes
of the other user.

A form carries a fingerprint of each value that the page shows (``opened``). When the form is saved,
a field that another user has changed in the meantime gets the newer value. If both users have
changed the same field, the form is refused: it shows the other value and keeps what was entered.
Django's ``show_hidden_initial`` cannot do this for sealed secrets, and with it a field with several
inputs loses what was entered when a form is refused twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from django import forms
from django.db import connection
from django.forms.boundfield import BoundField
from django.forms.widgets import DateTimeBaseInput
from django.http import HttpRequest
from django.utils.translation import gettext as _

from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models.sealing import find_sealed_columns

OPENED = "_opened"  # the name of the input that carries the fingerprints
_LONGEST = 300  # characters of the other person's value in a message

# forms and pages of Unfold, which are combined with these, have no types
_ModelForm: Any = forms.ModelForm


class ConcurrentForm(_ModelForm):
    """A form of a stored record. It takes over what other users have changed since the page was
    opened."""

    data: Any

    @property
    def opened(self) -> str:
        """The fingerprints of the values that this form shows, for the page; empty for a new
        record."""
        if self.instance._state.adding or not self.fields:
            return ""
        return json.dumps(
            {
                name: self._fingerprint(self[name])
                for name, field in self.fields.items()
                if not field.disabled
            }
        )

    def full_clean(self) -> None:
        conflicts = (
            self._take_over_changes() if self.is_bound and not self.instance._state.adding else {}
        )
        super().full_clean()
        for name, message in conflicts.items():
            self.add_error(name, message)

    def _take_over_changes(self) -> dict[str, str]:
        """Put newer values of other users into the data. Returns messages for the fields that both
        users have changed."""
        opened = _read(self.data.get(self.add_prefix(OPENED), ""))
        conflicts = {}
        newer: dict[str, list[str]] = {}
        for name, field in self.fields.items():
            bound = self[name]
            if field.disabled or name not in opened or opened[name] == self._fingerprint(bound):
                continue
            if not self.is_touched(name, opened[name]):
                newer |= _as_posted(bound)
            elif _texts(bound.data) != _texts(_value_now(bound)) or name in self._secrets:
                conflicts[name] = self._message(bound)
        if newer:
            self.data = self.data.copy()
            for name, values in newer.items():
                self.data.setlist(name, values)
        return conflicts

    def is_touched(self, name: str, opened: str) -> bool:
        """Whether the user has entered another value than the page has shown. ``opened``: its
        fingerprint."""
        return opened.partition(".")[0] != _digest(_texts(self[name].data))

    @property
    def _secrets(self) -> dict[str, str]:
        return {name: column for column, name in find_sealed_columns(type(self.instance)).items()}

    def _fingerprint(self, bound: BoundField) -> str:
        """A digest of what the page shows. A secret is not shown, so its sealed text has a digest
        too."""
        stored = (
            getattr(self.instance, self._secrets[bound.name]) if bound.name in self._secrets else ""
        )
        return f"{_digest(_texts(_value_now(bound)))}.{_digest((stored,))}"

    def _message(self, bound: BoundField) -> str:
        if bound.name in self._secrets:
            return _(
                "Another user changed this after you opened the page. Save again to replace that change."
            )
        return _(
            'Another user changed this to "%(value)s" after you opened the page. Save again to replace it '
            "with your value."
        ) % {"value": show_invisible_characters(_for_people(bound), _LONGEST)}


class ConcurrentAdmin:
    """A page whose form is a ``ConcurrentForm``."""

    change_form_before_template = "admin/mcpregistry/opened.html"
    model: Any

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any:
        """Return the record. While a form is being saved, the row is locked, so that it stays as
        the form compares it."""
        row = super().get_object(request, object_id, from_field)  # type: ignore[misc]
        if row is None or request.method != "POST" or not connection.in_atomic_block:
            return row
        list(
            self.model._base_manager.select_for_update(no_key=True)
            .order_by()
            .filter(pk=row.pk)
            .values("pk")
        )
        return super().get_object(request, object_id, from_field)  # type: ignore[misc]


def _read(text: str) -> dict[str, str]:
    """The fingerprints that a page has sent back; empty if they are missing or invalid."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: value for name, value in found.items() if isinstance(value, str)}


def _digest(texts: tuple[str, ...]) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]


def _texts(value: Any) -> tuple[str, ...]:
    """A value of a form as browsers send it, so that an untouched field is equal to what the page
    showed."""
    if isinstance(value, list | tuple):
        return tuple(sorted(text for each in value for text in _texts(each)))
    if kept := getattr(value, "kept", None):  # secrets that were typed into a form that was refused
        return (str(value), *sorted(kept))
    text = "" if value is None or value is False else str(value)
    text = text.replace("\r\n", "\n").strip()
    return () if text in ("", "False") else (text,)


def _parts(bound: BoundField) -> list[tuple[str, Any]]:
    """The names and values of the inputs that would hold the record's present value.

    Hidden ones for all that can be chosen or ticked; dates and fields with several inputs have a
    format of their own.
    """
    widget = bound.field.widget
    if not isinstance(widget, forms.MultiWidget | DateTimeBaseInput):
        widget = bound.field.hidden_widget()
    context = widget.get_context(bound.html_name, bound.field.prepare_value(bound.initial), None)[
        "widget"
    ]
    return [(part["name"], part["value"]) for part in context.get("subwidgets", [context])]


def _value_now(bound: BoundField) -> Any:
    return [value for _name, value in _parts(bound)]


def _as_posted(bound: BoundField) -> dict[str, list[str]]:
    """The same as data of a form."""
    found: dict[str, list[str]] = {bound.html_name: []}
    for name, value in _parts(bound):
        found.setdefault(name, []).extend([] if value is None else [str(value)])
    return found


def _for_people(bound: BoundField) -> str:
    """The current value of the record, as text for a message."""
    values = _texts(_value_now(bound))
    field = bound.field
    if isinstance(field, forms.BooleanField):
        return _("on") if values else _("off")
    if isinstance(field, forms.ModelMultipleChoiceField | forms.ModelChoiceField):
        rows = (
            field.queryset.filter(**{f"{field.to_field_name or 'pk'}__in": values})
            if field.queryset is not None
            else ()
        )
        values = tuple(str(row) for row in rows)
    elif isinstance(field, forms.ChoiceField):
        labels = _labels(field)
        values = tuple(labels.get(value, value) for value in values)
    return ", ".join(values) or _("(empty)")


def _labels(field: forms.ChoiceField) -> Mapping[str, str]:
    found: dict[str, str] = {}
    choices: Any = field.choices
    for value, label in choices:
        pairs = label if isinstance(label, list | tuple) else [(value, label)]
        found |= {str(each): str(words) for each, words in pairs}
    return found
