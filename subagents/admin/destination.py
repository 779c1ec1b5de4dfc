"""Confirming where a provider's key goes: a person looks at exactly that, then allows it, as with a server's launch.

Opening the page decides nothing; only a POST with the fingerprint of what was shown does, and the service refuses one
that is no longer the provider's.
"""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse

from mcpregistry.admin.base import RecordAdmin, actor
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.text.display import printable
from subagents.models import Provider
from subagents.services import providers

MAY_CONFIRM = "mcpregistry.confirm_server"  # the right with which a server's launch is confirmed


class DestinationPage:
    """The page behind "Confirm"; ``admin`` gives it records and permissions."""

    def __init__(self, admin: RecordAdmin) -> None:
        self.admin = admin

    def __call__(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show where the key and the requests would go; a POST confirms exactly what was shown."""
        provider = self.admin.get_object(request, object_id)
        if provider is None:
            return self.admin._get_obj_does_not_exist_redirect(request, self.admin.opts, object_id)
        if not request.user.has_perm(MAY_CONFIRM):
            raise PermissionDenied
        return self._confirm(request, provider) if request.method == "POST" else self._show(request, provider)

    def _confirm(self, request: HttpRequest, provider: Provider) -> HttpResponse:
        try:
            providers.confirm_destination(
                provider=provider, actor=actor(request), shown=request.POST.get("shown", ""), user=request.user
            )
        except SlipsnisseError as error:
            provider.refresh_from_db()
            return self._show(request, provider, refusal=str(error))
        self.admin.message_user(request, f"{provider.slug} is confirmed. Test it next.", messages.SUCCESS)
        return HttpResponseRedirect(reverse("admin:subagents_provider_change", args=[provider.pk]))

    def _show(self, request: HttpRequest, provider: Provider, refusal: str = "") -> HttpResponse:
        context: dict[str, Any] = self.admin.admin_site.each_context(request) | {
            "title": f"Confirm where {printable(provider.slug)} sends its key",
            "opts": self.admin.opts,
            "provider": provider,
            "original": provider,
            "refusal": refusal,
        }
        try:
            context |= {
                "shown": provider.destination_hash(), "headers": sorted(provider.headers), "key": _key(provider),
                "draft": provider.draft_problem() is not None, "models": provider.models.order_by("name"),
            }  # fmt: skip
        except SlipsnisseError as error:
            context |= {"refusal": str(error)}
        return TemplateResponse(
            request, "admin/subagents/confirm_destination.html", context, status=409 if refusal else 200
        )


def _key(provider: Provider) -> str:
    """What is said of the key: a reference as it is written, else only that there is one."""
    if not provider.sealed_key:
        return ""
    return provider.key if "${" in provider.key else "a stored key"
