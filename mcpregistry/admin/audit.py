"""The audit log: read, searched and verified. The database itself refuses any change of it."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from unfold.decorators import display

from mcpregistry.admin.base import ReadOnlyAdmin
from mcpregistry.domain.text.display import printable
from mcpregistry.models import AuditEntry
from mcpregistry.queries import audit
from mcpregistry.services.records.chains import entry_problem


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnlyAdmin):
    """The audit log. Each row shown is checked against its hash; a button verifies all chains."""

    list_display = ("at", "kind", "shown_actor", "shown_subject", "verified", "writer", "seq")
    search_fields = ("kind", "actor", "subject")
    search_help_text = "Kind, actor or subject, e.g. call:ID or server:NAME"
    sortable_by = ()
    fields = ("writer", "seq", "prev", "hash", "key_id")
    change_form_outer_before_template = "admin/mcpregistry/audit_entry.html"
    list_before_template = "admin/mcpregistry/audit_verify.html"

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.verify_view)
        return [path("verify/", view, name="mcpregistry_auditentry_verify"), *super().get_urls()]

    def verify_view(self, request: HttpRequest) -> HttpResponse:
        """Verify the whole log. Takes a POST although it changes nothing, because it is much work."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not self.has_view_permission(request):
            raise PermissionDenied
        context = self.admin_site.each_context(request) | {
            "title": "Audit log verified",
            "opts": self.opts,
            "chains": audit.verify_audit(),
        }
        return TemplateResponse(request, "admin/mcpregistry/audit_report.html", context)

    @display(description="actor")
    def shown_actor(self, entry: AuditEntry) -> str:
        return printable(entry.actor)

    @display(description="subject")
    def shown_subject(self, entry: AuditEntry) -> str:
        return printable(entry.subject)

    @display(description="holds", boolean=True)
    def verified(self, entry: AuditEntry) -> bool:
        return not entry.problem  # type: ignore[attr-defined]

    def prepare(self, row: AuditEntry) -> None:
        row.problem = entry_problem(row)  # type: ignore[attr-defined]

    def overview(self, request: HttpRequest, row: AuditEntry) -> dict[str, Any]:
        return {"entry": row, "problem": entry_problem(row)}
