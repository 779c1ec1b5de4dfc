"""A part of a record's page that looks again by itself while something goes on."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse

from mcpregistry.admin.base import RecordAdmin

_NOTHING_MORE = 286  # htmx: take this answer and stop asking


class LiveAdmin(RecordAdmin):
    """``live_template`` is rendered with ``live_context``; the page asks for it at ``live_url``."""

    live_template: str

    def live_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        raise NotImplementedError

    def goes_on(self, row: Any) -> bool:
        raise NotImplementedError

    def live_url(self, row: Any) -> str:
        return reverse(f"admin:{self._name('live')}", args=[row.pk])

    def get_urls(self) -> list[URLPattern]:
        live = self.admin_site.admin_view(self.live_view)
        return [path("<path:object_id>/live/", live, name=self._name("live")), *super().get_urls()]

    def live_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        row = self.get_object(request, object_id)
        if row is None or not self.has_view_permission(request, row):
            return HttpResponse(status=404)
        status = 200 if self.goes_on(row) else _NOTHING_MORE
        return TemplateResponse(request, self.live_template, self.live_context(request, row), status=status)
