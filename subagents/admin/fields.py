"""JSON as people write it: indented, in a type where brackets can be told apart, and empty for nothing."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from unfold.widgets import UnfoldAdminTextareaWidget


class JsonField(forms.JSONField):
    """Shows what is stored indented; an absent value as an empty field instead of ``null``."""

    def __init__(self, **kwargs: Any) -> None:
        attrs = {"rows": 4, "class": "sn-code", "spellcheck": "false"}
        super().__init__(**kwargs | {"widget": UnfoldAdminTextareaWidget(attrs=attrs)})

    def prepare_value(self, value: Any) -> Any:
        if value is None or value in ({}, []):
            return ""
        if isinstance(value, dict | list):
            return json.dumps(value, indent=2, ensure_ascii=False)
        return super().prepare_value(value)

    def clean(self, value: Any) -> Any:
        """Empty is what a new row has: an object, a list, or no value where that may be absent."""
        found = super().clean(value)
        return self.initial() if found is None and callable(self.initial) else found
