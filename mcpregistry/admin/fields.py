"""Form fields for lists and secrets, written the way people write them: one entry per line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from django import forms
from unfold.widgets import UnfoldAdminPasswordWidget, UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget

MASK = "•••"
_HEADER_NAME = re.compile(r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")  # RFC 9110 token; holds every variable name too


def lines_widget(rows: int, placeholder: str) -> UnfoldAdminTextareaWidget:
    """A text area for code-like text, without spell checking or completion."""
    attrs = {"rows": rows, "placeholder": placeholder, "class": "sn-code", "spellcheck": "false", "autocomplete": "off"}
    return UnfoldAdminTextareaWidget(attrs=attrs)


class WordsField(forms.CharField):
    """A list of texts: one per line, or a JSON list. Cleans to ``list[str]``."""

    def __init__(self, *, rows: int = 4, placeholder: str = "", **kwargs: Any) -> None:
        super().__init__(widget=lines_widget(rows, placeholder), strip=False, required=False, **kwargs)

    def prepare_value(self, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        # A word that a line cannot hold as it is (or that looks like JSON) is only safe as JSON.
        plain = all(isinstance(word, str) and word == word.strip() and word and "\n" not in word for word in value)
        if plain and not (value and value[0].startswith("[")):
            return "\n".join(value)
        return json.dumps(value, ensure_ascii=False)

    def clean(self, value: Any) -> list[str]:
        text = super().clean(value) or ""
        if not text.lstrip().startswith("["):
            return [line.strip() for line in text.splitlines() if line.strip()]
        try:
            words = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise forms.ValidationError('This starts like a JSON list but is none. Write e.g. ["a", "b"].') from error
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise forms.ValidationError('Write a list of texts, e.g. ["a", "b"].')
        return words

    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            return (initial or []) != self.clean(data)
        except forms.ValidationError:
            return True


class NumbersField(forms.CharField):
    """Whole numbers, by spaces, commas or lines. Cleans to ``list[int]``."""

    def __init__(self, *, placeholder: str = "", **kwargs: Any) -> None:
        widget = UnfoldAdminTextInputWidget(attrs={"placeholder": placeholder, "autocomplete": "off"})
        super().__init__(widget=widget, required=False, **kwargs)

    def prepare_value(self, value: Any) -> Any:
        return " ".join(map(str, value)) if isinstance(value, list) else value

    def clean(self, value: Any) -> list[int]:
        words = (super().clean(value) or "").replace(",", " ").split()
        for word in words:
            if not (word.isascii() and word.isdigit() and len(word) < 10):
                raise forms.ValidationError(f"'{word:.50}' is no number. Write e.g. 443 8443.")
        return [*map(int, words)]

    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            return (initial or []) != self.clean(data)
        except forms.ValidationError:
            return True


class SecretsField(forms.CharField):
    """NAME=value lines whose values are never shown again: ``•••`` stands for the stored one.

    Cleans to ``dict[str, str]``; ``stored`` must be set to the current pairs before cleaning.
    """

    def __init__(self, *, placeholder: str = "", **kwargs: Any) -> None:
        super().__init__(widget=lines_widget(4, placeholder), strip=False, required=False, **kwargs)
        self.stored: Mapping[str, str] = {}

    def prepare_value(self, value: Any) -> Any:
        return masked(value) if isinstance(value, Mapping) else value

    def clean(self, value: Any) -> dict[str, str]:
        pairs: dict[str, str] = {}
        for line in (super().clean(value) or "").splitlines():
            if line.strip():
                name, text = self._pair(line)
                if name in pairs:
                    raise forms.ValidationError(f"{name} is there twice. Keep one of the lines.")
                pairs[name] = text
        return pairs

    def _pair(self, line: str) -> tuple[str, str]:
        name, equals, text = line.partition("=")
        name, text = name.strip(), text.strip()
        if not equals or not _HEADER_NAME.match(name):
            # The line may hold a secret, so it is not repeated here.
            raise forms.ValidationError("Every line must be NAME=value; a name has no spaces.")
        if text != MASK:
            return name, text
        if name not in self.stored:
            raise forms.ValidationError(f"{name} has no stored value yet. Write its value instead of {MASK}.")
        return name, self.stored[name]

    def has_changed(self, initial: Any, data: Any) -> bool:
        return masked(initial or {}).splitlines() != [
            line.strip() for line in (data or "").splitlines() if line.strip()
        ]


def masked(pairs: Mapping[str, str]) -> str:
    """The names, each with the mask for its value. A reference such as ${VAR} is masked like any value."""
    return "\n".join(f"{name}={MASK}" for name in sorted(pairs))


class JsonField(forms.JSONField):
    """JSON as people write it: shows what is stored indented; an absent value as an empty field instead of ``null``."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs["widget"] = lines_widget(4, kwargs.pop("placeholder", ""))
        super().__init__(**kwargs)

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


class SecretField(forms.CharField):
    """One secret that is written and never read; left empty it keeps the stored value (cleans to None)."""

    def __init__(self, **kwargs: Any) -> None:
        widget = UnfoldAdminPasswordWidget(attrs={"autocomplete": "new-password"}, render_value=False)
        super().__init__(widget=widget, required=False, strip=True, **kwargs)

    def clean(self, value: Any) -> str | None:
        return super().clean(value) or None
