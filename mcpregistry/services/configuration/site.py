"""The site's own settings: how long records are kept, and what happens where no rule fits."""

from __future__ import annotations

from django.db import transaction

from mcpregistry.models import Configuration
from mcpregistry.services.configuration.saving import save_checked
from mcpregistry.services.records import audit


@transaction.atomic
def save_configuration(*, configuration: Configuration, actor: str) -> Configuration:
    """Change the site's settings. Raises ``ConfigInvalid``."""
    # The form may be older than the last change of the configuration; its revision must not go back.
    configuration.revision = Configuration.objects.select_for_update().get(id=1).revision
    save_checked(configuration)
    facts = {
        "payloads_days": configuration.keep_payloads_days,
        "calls_days": configuration.keep_calls_days,
        "default_outcome": configuration.default_outcome,
    }
    audit.record(kind="configuration.changed", actor=actor, subject="configuration", **facts)
    return configuration
