"""Confirming a provider's destination: where its key, and all that runs ask its models, would
go."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext

from mcpregistry.admin.confirm_page import ConfirmPage
from mcpregistry.domain.text.display import show_invisible_characters
from subagents.models import Provider
from subagents.services import providers


class DestinationPage(ConfirmPage[Provider]):
    """The page behind a provider's "Confirm"."""

    template = "admin/subagents/confirm_destination.html"

    def title(self, record: Provider) -> str:
        return gettext("Confirm where the key of {provider} is sent").format(
            provider=show_invisible_characters(record.slug)
        )

    def confirm(self, record: Provider, *, shown: str, actor: str, user: object) -> str:
        providers.confirm_destination(provider=record, actor=actor, shown=shown, user=user)
        return gettext("The provider {provider} is confirmed. Next, press “Test provider”.").format(
            provider=record.slug
        )

    def facts(self, record: Provider) -> dict[str, Any]:
        return {
            "shown": record.destination_hash(),
            "confirmed": record.draft_problem() is None,
            "headers": sorted(record.headers),
            "key": _key(record),
            "models": record.models.order_by("name"),
        }


def _key(provider: Provider) -> str:
    """What is said of the key: a reference as it is written, else only that there is one."""
    if not provider.sealed_key:
        return ""
    return provider.key if "${" in provider.key else gettext("a stored key")
