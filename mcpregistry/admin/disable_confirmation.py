"""Unticking *enabled* in a form asks first: what then stops is said before anything is saved, as a
serious button does."""

from __future__ import annotations

from typing import Any

from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext

from mcpregistry.admin.base import RecordAdmin
from mcpregistry.admin.question_page import question
from mcpregistry.domain.text.canonical import hash_parts
from mcpregistry.domain.text.display import show_invisible_characters

_NOT_KEPT = {"csrfmiddlewaretoken", "sure"}


class _NotSure(Exception):
    """Takes back what the form has begun to save."""

    def __init__(self, row: Any, sentences: list[str], sure: str) -> None:
        super().__init__()
        self.row = row
        self.sentences = sentences
        self.sure = sure


class AsksWhenSwitchedOff(RecordAdmin):
    """A record whose form saves a change to "off" only once the person has said yes to what that
    does."""

    def switching_off(self, row: Any) -> list[str]:
        """The sentences on what stops when this record, as it is stored, is off; without any,
        nobody is asked."""
        raise NotImplementedError

    def save_model(self, request: HttpRequest, obj: Any, form: ModelForm[Any], change: Any) -> None:
        if change and "enabled" in form.changed_data and not obj.enabled:
            row = self.model._default_manager.get(pk=obj.pk)
            sentences = self.switching_off(row)
            sure = hash_parts("sure", *sentences)
            if sentences and request.POST.get("sure") != sure:
                raise _NotSure(row, sentences, sure)
        super().save_model(request, obj, form, change)

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return super().changeform_view(request, *args, **kwargs)
        except _NotSure as asked:
            return self._ask_confirmation(request, asked)

    def _ask_confirmation(self, request: HttpRequest, asked: _NotSure) -> HttpResponse:
        """The question, holding all that was typed."""
        names = [name for name in request.POST if name not in _NOT_KEPT]
        kept = [(name, value) for name in names for value in request.POST.getlist(name)]
        return question(
            request,
            title=gettext("Disable {name}").format(
                name=show_invisible_characters(str(asked.row), 200)
            ),
            label=gettext("Disable"),
            icon="block",
            sentences=asked.sentences,
            sure=asked.sure,
            back=request.get_full_path(),
            kept=kept,
            opts=self.opts,
            original=asked.row,
        )
