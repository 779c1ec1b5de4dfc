"""Named secrets, and where each may go."""

from __future__ import annotations

import uuid

from django.db import models
from django.utils.translation import gettext_lazy as _
from simple_history.models import HistoricalRecords

from mcpregistry.models.sealing import Sealed
from mcpregistry.models.server import slug_validator
from mcpregistry.models.tracked import TrackedModel


class Credential(TrackedModel):
    """A named secret that servers and providers of its scope refer to as ``${cred:NAME}``.
    Write-only once saved."""

    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    name = models.CharField(max_length=63, unique=True, validators=[slug_validator])
    description = models.TextField(blank=True)
    sealed_value = models.TextField(blank=True, editable=False)
    value = Sealed("sealed_value", str)
    scope = models.JSONField(
        default=list,
        db_default=[],
        blank=True,
        help_text=_(
            'Servers and providers that can use the credential, for example ["server:github", '
            '"provider:openai"]. If empty, no server or provider can use it.'
        ),
    )
    updated_at = models.DateTimeField(auto_now=True)

    history = HistoricalRecords(excluded_fields=["sealed_value"])

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    @property
    def needs_value(self) -> bool:
        return not self.sealed_value
