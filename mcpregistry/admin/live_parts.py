"""Parts of a record's page that refresh themselves while something goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse

from mcpregistry.admin.base import RecordAdmin

_NOTHING_MORE = 286  # htmx: take this answer and stop asking


@dataclass(frozen=True, slots=True)
class LivePart:
    """A template with its context; ``goes_on``: the page shall ask again."""

    template: str
    context: dict[str, Any]
    goes_on: bool


class LiveAdmin(RecordAdmin):
    """A record's page with parts that it asks for at ``live_url`` as long as they go on."""

    def live_part(self, request: HttpRequest, row: Any, name: str) -> LivePart:
        """The part of that name; the empty name is the page's main part."""
        raise NotImplementedError

    def live_url(self, row: Any, name: str = "") -> str:
        """The address that the page asks for the part."""
        address = reverse(f"admin:{self._name('live')}", args=[row.pk])
        return f"{address}?part={name}" if name else address

    def get_urls(self) -> list[URLPattern]:
        live = self.admin_site.admin_view(self.live_view)
        return [path("<path:object_id>/live/", live, name=self._name("live")), *super().get_urls()]

    def live_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Answer with the part; status 286 tells htmx to stop asking."""
        row = self.get_object(request, object_id)
        if row is None or not self.has_view_permission(request, row):
            return HttpResponse(status=404)
        part = self.live_part(request, row, request.GET.get("part", ""))
        return TemplateResponse(
            request, part.template, part.context, status=200 if part.goes_on else _NOTHING_MORE
        )
