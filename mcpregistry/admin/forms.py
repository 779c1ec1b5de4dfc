"""The base of the admin's forms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django import forms

if TYPE_CHECKING:
    RecordForm = forms.ModelForm
else:

    class RecordForm(forms.ModelForm):
        """Django's ModelForm, with the model in brackets as its types know it: its own cannot be subscripted."""

        def __class_getitem__(cls, model):
            return cls
