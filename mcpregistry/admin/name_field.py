"""A form field for one server, agent or endpoint by its name: selected from few, typed and found of
many."""

from __future__ import annotations

from typing import Any

from django import forms
from django.db.models import QuerySet
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.translation import gettext
from unfold.widgets import INPUT_CLASSES, UnfoldAdminSelectWidget

from mcpregistry.admin.name_filters import FEW


class NameWidget(UnfoldAdminSelectWidget):
    """The list while there are few records; of many, a field whose choices the page fetches while a
    name is typed."""

    def __init__(self, kind: str, *, usable: bool) -> None:
        super().__init__()
        self.kind = kind
        self.usable = usable

    def render(
        self, name: str, value: Any, attrs: dict[str, Any] | None = None, renderer: Any = None
    ) -> Any:
        """The widget as HTML."""
        if not self._has_many():
            return super().render(name, value, attrs, renderer)
        context = forms.Widget.get_context(
            self, name, value, self._build_search_attributes(name) | (attrs or {})
        )
        context["widget"] |= {"type": "search", "value": value or ""}
        field = self._render("django/forms/widgets/input.html", context, renderer)
        return format_html('{}<datalist id="names-of-{}"></datalist>', field, name)

    def _build_search_attributes(self, name: str) -> dict[str, str]:
        asked = {"field": name} | ({"usable": "1"} if self.usable else {})
        return {
            "class": " ".join(INPUT_CLASSES),
            "list": f"names-of-{name}",
            "placeholder": gettext("Type a part of the name"),
            "autocomplete": "off",
            "hx-get": f"{reverse('names', args=[self.kind])}?{urlencode(asked)}",
            "hx-trigger": "focus once, input changed delay:200ms",
            "hx-target": "next datalist",
            "hx-swap": "innerHTML",
        }

    def _has_many(self) -> bool:
        rows: QuerySet[Any] = self.choices.queryset
        return len(rows.values_list("pk", flat=True)[: FEW + 1]) > FEW


class NameField(forms.ModelChoiceField):  # type: ignore[type-arg]
    """``kind`` is what the address "names" knows; ``usable``: ``rows`` are only the enabled ones
    that people made."""

    def __init__(
        self, kind: str, rows: QuerySet[Any], *, usable: bool = False, **options: Any
    ) -> None:
        errors = {
            "invalid_choice": gettext(
                'No {kind} named "%(value)s" can be chosen here. Type a part of its name to find it.'
            ).format(kind=kind)
        }
        widget = NameWidget(kind, usable=usable)
        super().__init__(
            rows, to_field_name="slug", widget=widget, error_messages=errors, **options
        )
