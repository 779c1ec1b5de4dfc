"""Saving a configuration row: all of Django's checks first, refusals as one sentence with a remedy."""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.db.models import Model

from mcpregistry.domain.errors import ConfigInvalid


def save_checked(row: Model) -> None:
    """``full_clean`` and ``save``. Raises ConfigInvalid naming every field that is wrong."""
    try:
        row.full_clean()
    except ValidationError as error:
        problems = "; ".join(f"{field}: {' '.join(texts)}" for field, texts in error.message_dict.items())
        raise ConfigInvalid(f"This cannot be saved: {problems}", remedy="Correct these fields.") from error
    row.save()
