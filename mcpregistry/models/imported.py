"""What imported files say that belongs to no server: expert tools, providers, defaults, unknown
keys.

It is kept so that an export gives it back, and so that the features it is meant for find it. One
row per family of formats; a later import of the same family is merged into it.
"""

from __future__ import annotations

import uuid

from django.db import models
from django.utils.translation import gettext_lazy as _

from mcpregistry.models.sealing import Sealed


class ImportedFile(models.Model):
    """The remainder of the files of one family of formats. Sealed: providers hold API keys."""

    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    family = models.CharField(max_length=40, unique=True)
    path = models.TextField(blank=True, help_text=_("Source of the last imported file."))
    sealed_rest = models.TextField(blank=True, editable=False)
    rest = Sealed("sealed_rest", dict)
    imported_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["family"]

    def __str__(self) -> str:
        return self.family
