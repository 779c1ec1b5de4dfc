"""The audit log: read, searched and verified. The database itself refuses any change of it."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display

from mcpregistry.admin.base import ReadOnlyAdmin
from mcpregistry.domain.text.display import shorten_ids, show_invisible_characters
from mcpregistry.domain.text.fact_lists import list_facts
from mcpregistry.models import AuditEntry
from mcpregistry.queries.audit import find_names_of_calls, list_archive_files, search_entries
from mcpregistry.services.configuration.dispatch import NO_BROKER, wake_worker
from mcpregistry.services.records import verification
from mcpregistry.services.records.chains import explain_entry_problem

_COLUMNS = {"writer", "seq", "at", "kind", "actor", "subject"}  # shown apart from the other facts
_ASKED = _("A worker is verifying the audit log. Reload this page to see the result.")


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnlyAdmin):
    """The audit log. Each row shown is checked against its hash; a button has all of it
    verified."""

    list_display = (
        "at",
        "kind",
        "shown_actor",
        "shown_subject",
        "verified",
        "writer",
        "shown_number",
    )
    search_fields = ("kind", "actor", "subject")
    search_help_text = _(
        "First characters of a kind, an actor or a subject, for example call:ID or server:NAME"
    )
    sortable_by = ()
    fields = ("writer", "shown_number", "shown_before", "hash", "key_id")
    change_form_outer_before_template = "admin/mcpregistry/audit_entry.html"
    list_before_template = "admin/mcpregistry/audit_verify.html"

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[AuditEntry], search_term: str
    ) -> tuple[QuerySet[AuditEntry], bool]:
        words = search_term.strip()
        return (search_entries(queryset, words) if words else queryset), False

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.verify_view)
        return [path("verify/", view, name="mcpregistry_auditentry_verify"), *super().get_urls()]

    def verify_view(self, request: HttpRequest) -> HttpResponse:
        """What the last verification found. A POST asks a worker for a new one: it may take longer
        than a request."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if request.method == "POST":
            messages.info(request, _ASKED if wake_worker("verify_audit") else NO_BROKER)
            return HttpResponseRedirect(reverse("admin:mcpregistry_auditentry_verify"))
        context = self.admin_site.each_context(request) | {
            "title": gettext("Verification of the audit log"),
            "opts": self.opts,
            "report": verification.load_last_report(),
            "archived": list_archive_files(),
        }
        return TemplateResponse(request, "admin/mcpregistry/audit_report.html", context)

    @display(description=_("actor"))
    def shown_actor(self, entry: AuditEntry) -> str:
        return show_invisible_characters(entry.actor)

    @display(description=_("subject"))
    def shown_subject(self, entry: AuditEntry) -> str:
        return show_invisible_characters(self._find_name(entry) or shorten_ids(entry.subject))

    def _find_name(self, entry: AuditEntry) -> str:
        names: dict[str, str] = getattr(entry, "names", {})
        return names.get(entry.subject, "")

    @display(description=_("number in the chain"))
    def shown_number(self, entry: AuditEntry) -> str:
        return f"{entry.seq:,}"

    @display(description=_("hash of the previous entry"))
    def shown_before(self, entry: AuditEntry) -> str:
        return entry.prev

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        page = super().get_changelist_instance(request)
        names = find_names_of_calls(page.result_list, request.user)
        for row in page.result_list:
            row.names = names
        return page

    @display(description=_("valid"), label={"yes": "success", "no": "danger"})
    def verified(self, entry: AuditEntry) -> str:
        return "no" if entry.problem else "yes"  # type: ignore[attr-defined]

    def prepare(self, row: AuditEntry) -> None:
        row.problem = explain_entry_problem(row)  # type: ignore[attr-defined]

    def overview(self, request: HttpRequest, row: AuditEntry) -> dict[str, Any]:
        name = find_names_of_calls([row], request.user).get(row.subject, "")
        return {
            "entry": row,
            "problem": explain_entry_problem(row),
            "facts": list_facts(row.body, _COLUMNS),
            "call_name": name,
        }
