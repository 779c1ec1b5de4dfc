"""Form fields for lists and secrets, written the way people write them: one entry per line."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from typing import Any

from django import forms
from django.utils.functional import Promise
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.widgets import (
    UnfoldAdminPasswordWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
)

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.servers.launch import split_pasted_command
from mcpregistry.models.sealing import seal, unseal

MASK = "•••"
# The name is an RFC 9110 token, which holds every variable name too; whichever sign comes first
# parts it from its value.
_PAIR = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+)\s*[=:]\s*(.*)")


def lines_widget(rows: int, placeholder: str | Promise) -> UnfoldAdminTextareaWidget:
    """A text area for code-like text, without spell checking or completion."""
    attrs = {
        "rows": rows,
        "placeholder": placeholder,
        "class": "sn-code",
        "spellcheck": "false",
        "autocomplete": "off",
    }
    return UnfoldAdminTextareaWidget(attrs=attrs)


class WordsField(forms.CharField):
    """A list of texts: one per line, or a JSON list. Cleans to ``list[str]``."""

    def __init__(self, *, rows: int = 4, placeholder: str | Promise = "", **kwargs: Any) -> None:
        super().__init__(
            widget=lines_widget(rows, placeholder), strip=False, required=False, **kwargs
        )

    def prepare_value(self, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        # A word that a line cannot hold as it is (or that looks like JSON) is only safe as JSON.
        plain = all(
            isinstance(word, str) and word == word.strip() and word and "\n" not in word
            for word in value
        )
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
            raise forms.ValidationError(
                _('This is not a valid JSON list. Use a list such as ["a", "b"].')
            ) from error
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise forms.ValidationError(_('Use a list of strings, for example ["a", "b"].'))
        return words

    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            return (initial or []) != self.clean(data)
        except forms.ValidationError:
            return True


class NumbersField(forms.CharField):
    """Whole numbers, by spaces, commas or lines. Cleans to ``list[int]``."""

    def __init__(self, *, placeholder: str = "", **kwargs: Any) -> None:
        widget = UnfoldAdminTextInputWidget(
            attrs={"placeholder": placeholder, "autocomplete": "off"}
        )
        super().__init__(widget=widget, required=False, **kwargs)

    def prepare_value(self, value: Any) -> Any:
        return " ".join(map(str, value)) if isinstance(value, list) else value

    def clean(self, value: Any) -> list[int]:
        words = (super().clean(value) or "").replace(",", " ").split()
        for word in words:
            if not (word.isascii() and word.isdigit() and len(word) < 10):
                raise forms.ValidationError(
                    gettext(
                        '"{word}" is not a number. Use port numbers, for example 443 8443.'
                    ).format(word=word[:50])
                )
        return [*map(int, words)]

    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            return (initial or []) != self.clean(data)
        except forms.ValidationError:
            return True


class CommandField(WordsField):
    """A program and its arguments. One pasted line becomes its words, as a shell would part
    them."""

    def clean(self, value: Any) -> list[str]:
        words = super().clean(value)
        if len(words) > 1 and (value or "").lstrip().startswith("["):
            return words  # whoever writes a JSON list has parted the words
        try:
            return split_pasted_command(words, is_file=lambda word: shutil.which(word) is not None)
        except ConfigInvalid as error:
            raise forms.ValidationError(str(error)) from error


class _Typed(str):
    """What stands in a field of secrets; ``kept``: the values that were typed before, which the
    page shows masked."""

    kept: Mapping[str, str]

    def __new__(cls, text: str, kept: Mapping[str, str]) -> _Typed:
        typed = super().__new__(cls, text)
        typed.kept = kept
        return typed


class _SecretLines(forms.MultiWidget):
    """A text area beside which the secrets that were just typed go to the page and back sealed,
    when a form is refused."""

    use_fieldset = False

    def __init__(self, placeholder: str) -> None:
        super().__init__({"": lines_widget(4, placeholder), "typed": forms.HiddenInput()})

    def value_from_datadict(self, data: Any, files: Any, name: str) -> Any:
        text, sealed = super().value_from_datadict(data, files, name)
        try:
            kept = unseal(sealed, place="form") if sealed else {}
        except ConfigInvalid:  # by another key, or made up: these values are asked for again
            kept = {}
        return _Typed(text or "", kept)

    def decompress(self, value: Any) -> list[Any]:
        kept = getattr(value, "kept", None)
        return [value, seal(dict(kept), place="form") if kept else ""]

    def get_context(self, name: str, value: Any, attrs: Any) -> dict[str, Any]:
        context = super().get_context(name, value, attrs)
        if "id" in (attrs or {}):  # the label is the text area's
            context["widget"]["subwidgets"][0]["attrs"]["id"] = attrs["id"]
        return context

    def id_for_label(self, id_: str) -> str:
        return id_


class SecretsField(forms.CharField):
    """NAME=value or Name: value, one a line. No value is ever shown again: ``•••`` stands for the
    stored one, and for one that was typed into a form that was refused.

    Cleans to ``dict[str, str]``; ``stored`` must be set to the current pairs before cleaning.
    """

    def __init__(self, *, placeholder: str = "", **kwargs: Any) -> None:
        super().__init__(widget=_SecretLines(placeholder), strip=False, required=False, **kwargs)
        self.stored: Mapping[str, str] = {}

    def prepare_value(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return mask_pairs(value)
        return self._unseen(value) if isinstance(value, _Typed) else value

    def _unseen(self, typed: _Typed) -> _Typed:
        """What a refused form shows: every line that has a name, with the mask for its value. The
        others may be secrets."""
        found = [pair for line in typed.splitlines() if (pair := _PAIR.fullmatch(line.strip()))]
        kept = {pair[1]: pair[2] if pair[2] != MASK else typed.kept.get(pair[1]) for pair in found}
        return _Typed(
            "\n".join(f"{pair[1]}={MASK}" for pair in found),
            {k: v for k, v in kept.items() if v is not None},
        )

    def clean(self, value: Any) -> dict[str, str]:
        kept = {**self.stored, **getattr(value, "kept", {})}
        pairs: dict[str, str] = {}
        for number, line in enumerate((super().clean(value) or "").splitlines(), 1):
            if line.strip():
                name, text = self._pair(number, line.strip(), kept)
                if name in pairs:
                    raise forms.ValidationError(
                        gettext("{name} is set twice. Keep only one of the lines.").format(
                            name=name
                        )
                    )
                pairs[name] = text
        return pairs

    def _pair(self, number: int, line: str, kept: Mapping[str, str]) -> tuple[str, str]:
        pair = _PAIR.fullmatch(line)
        if pair is None:
            # The line may hold a secret, so it is neither repeated here nor shown again.
            raise forms.ValidationError(
                gettext(
                    "Line {number} was removed, because it did not have the form NAME=value or Name: value. Names cannot contain spaces. Enter the line again."
                ).format(number=number)
            )
        name = pair[1]
        text = pair[2]
        if text != MASK:
            return name, text
        if name not in kept:
            raise forms.ValidationError(
                gettext(
                    "{name} has no stored value yet. Enter its value instead of {mask}."
                ).format(name=name, mask=MASK)
            )
        return name, kept[name]

    def has_changed(self, initial: Any, data: Any) -> bool:
        return mask_pairs(initial or {}).splitlines() != [
            line.strip() for line in (data or "").splitlines() if line.strip()
        ]


def mask_pairs(pairs: Mapping[str, str]) -> str:
    """The names, each with the mask for its value. A reference such as ${VAR} is masked like any
    value."""
    return "\n".join(f"{name}={MASK}" for name in sorted(pairs))


class JsonField(forms.JSONField):
    """JSON as people write it: shows what is stored indented; an absent value as an empty field
    instead of ``null``."""

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
    """One secret that is written and never read; left empty it keeps the stored value (cleans to
    None)."""

    def __init__(self, **kwargs: Any) -> None:
        widget = UnfoldAdminPasswordWidget(
            attrs={"autocomplete": "new-password"}, render_value=False
        )
        super().__init__(widget=widget, required=False, strip=True, **kwargs)

    def clean(self, value: Any) -> str | None:
        return super().clean(value) or None
