"""The base of the admin's forms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django import forms

from mcpregistry.admin.concurrent_edits import ConcurrentForm

if TYPE_CHECKING:
    RecordForm = forms.ModelForm
else:

    class RecordForm(ConcurrentForm):
        """Takes over what others have changed. With the model in brackets, as the types of Django's
        ModelForm know it."""

        def __class_getitem__(cls, model):
            return cls
