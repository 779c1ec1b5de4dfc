"""Versions of a record on its page in the admin: who changed which field when, and the way to
putting one back."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.utils import quote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext
from unfold.admin import ModelAdmin

from mcpregistry.domain.text.display import name_with_kind, show_invisible_characters
from mcpregistry.queries.versions import Version, versions

_NOT_PUT_BACK = ("mcpregistry.permit",)  # one that has ended does not begin again


class VersionsAdmin(ModelAdmin):
    """A record of which versions are kept: its history shows them, and leads to putting one
    back."""

    def may_put_back(self, request: HttpRequest, row: Any) -> bool:
        """Whether this person may put a version of this record back."""
        return (
            self.has_change_permission(request, row) and self.opts.label_lower not in _NOT_PUT_BACK
        )

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Who changed which field when and from where; each version leads to what putting it back
        would change."""
        row = self.get_object(request, object_id)
        if row is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)
        if not self.has_view_or_change_permission(request, row):
            raise PermissionDenied
        more = {"label": self.opts.label_lower, "may_put_back": self.may_put_back(request, row)}
        return history_page(self, request, row, versions(row), more)


def history_page(
    admin: ModelAdmin, request: HttpRequest, row: Any, told: list[Version], more: dict[str, Any]
) -> TemplateResponse:
    """The page of what changed about one record, for every admin that tells it. ``more``: what else
    its template is told."""
    context = admin.admin_site.each_context(request) | {
        "title": gettext("History of {record}").format(
            record=name_with_kind(row._meta.verbose_name, show_invisible_characters(str(row), 200))
        ),
        "opts": admin.opts,
        "object": row,
        "versions": told,
        "back": reverse(
            f"admin:{admin.opts.app_label}_{admin.opts.model_name}_change", args=[quote(row.pk)]
        ),
    }
    return TemplateResponse(request, "admin/mcpregistry/history.html", context | more)
