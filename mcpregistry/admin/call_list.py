"""The list of calls: search by words, bounded sorting, filters under a name, and a tail that goes
on by itself."""

from __future__ import annotations

from typing import Any, cast

from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.views import ChangeList

from mcpregistry.admin.base import ReadOnlyAdmin
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.text.canonical import hash_parts
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.queries.call_search import MOST, search_calls
from mcpregistry.services.records import saved_filters

SORTED = 10_000  # calls that are put into another order than that of time
# What a saved filter may say: the filters of the list, and the columns that links of other pages
# narrow it by.
KEPT = (
    "q",
    "o",
    "state__exact",
    "period",
    "server",
    "agent",
    "conversation",
    "origin",
    "tool_name",
    "endpoint_slug",
)
_LIST = "admin:mcpregistry_invocation_changelist"


class CallList(ChangeList):
    """By time as far as one likes; by anything else the newest that fit, for there is no end of
    calls."""

    cut = False

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        rows = super().get_queryset(request, exclude_parameters)
        if "o" not in self.params or self._by_time(request):
            return rows
        newest = list(rows.order_by("-received_at", "-id").values_list("pk", flat=True)[:SORTED])
        self.cut = len(newest) == SORTED
        return self.root_queryset.filter(pk__in=newest).order_by(*rows.query.order_by)

    def _by_time(self, request: HttpRequest) -> bool:
        columns = self.get_ordering_field_columns()
        return {
            self.list_display[number] for number in columns if number < len(self.list_display)
        } <= {
            "received_at",
            "shown_at",
        }


class CallListAdmin(ReadOnlyAdmin):
    """What the list of calls can do; the page of one call is in ``call``."""

    list_before_template = "admin/mcpregistry/calls_before.html"
    search_fields = ("id",)
    search_help_text = _("Words in arguments, errors, results and names, or the ID of a call")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[CallList]:
        return CallList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        if not search_term.strip():
            return queryset, False
        found = search_calls(search_term)
        request.words_cut = len(found) >= MOST  # type: ignore[attr-defined]
        return queryset.filter(pk__in=found), False

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        user = cast(User, request.user)
        kept = (
            saved_filters.select_filters(user)
            if user.has_perm("mcpregistry.view_invocation")
            else []
        )
        here = "&".join(sorted(request.GET.urlencode().split("&"))) if request.GET else ""
        extra = {
            "title": gettext("Calls"),
            "saved": [(each, "&".join(sorted(each.query.split("&"))) == here) for each in kept],
            "tail": reverse("admin:mcpregistry_invocation_tail"),
            "most": MOST,
            "sorted_most": SORTED,
        }
        return super().changelist_view(request, extra | (extra_context or {}))

    def get_urls(self) -> list[URLPattern]:
        wrapped = self.admin_site.admin_view
        return [
            path("tail/", wrapped(self.tail_view), name="mcpregistry_invocation_tail"),
            path("filters/", wrapped(self.filter_view), name="mcpregistry_invocation_filters"),
            *super().get_urls(),
        ]

    def tail_view(self, request: HttpRequest) -> HttpResponse:
        """The rows of the list as it is now, for these filters; 204 where they are still those that
        ``have`` names."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        have = request.GET.get("have", "")
        asked = request.GET.copy()
        for name in ("have", "p", "all"):
            asked.pop(name, None)
        request.GET = asked  # type: ignore[assignment]
        cl = self.get_changelist_instance(request)
        cl.formset = None  # nothing is edited in it
        version = hash_parts(*(f"{row.pk} {row.state}" for row in cl.result_list))[:16]
        if version == have:
            return HttpResponse(status=204)
        context = self.admin_site.each_context(request) | {"cl": cl, "opts": self.opts}
        answer = TemplateResponse(request, "admin/mcpregistry/calls_tail.html", context)
        answer["X-Version"] = version
        answer["Cache-Control"] = "no-store"
        return answer

    def filter_view(self, request: HttpRequest) -> HttpResponse:
        """Keep the view under a name, or remove one's own; back to the list."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not self.has_view_permission(request):
            raise PermissionDenied
        user = cast(User, request.user)
        said = request.POST
        query = said.get("query", "")[:5_000].replace("\x00", "")
        try:
            if said.get("remove", "").isdecimal():
                name = saved_filters.remove_filter(user=user, pk=int(said["remove"][:18]))
                self.message_user(
                    request,
                    gettext("The filter “{name}” is deleted.").format(
                        name=show_invisible_characters(name)
                    ),
                    messages.SUCCESS,
                )
            else:
                shared = said.get("shared") == "yes"
                kept = saved_filters.save_filter(
                    user=user,
                    name=said.get("name", "").replace("\x00", ""),
                    query=query,
                    shared=shared,
                    known=KEPT,
                )
                query = kept.query
                self.message_user(
                    request,
                    gettext("The filter “{name}” is saved.").format(
                        name=show_invisible_characters(kept.name)
                    ),
                    messages.SUCCESS,
                )
        except SlipsnisseError as error:
            self.message_user(request, show_invisible_characters(str(error), 500), messages.ERROR)
        return HttpResponseRedirect(f"{reverse(_LIST)}?{query.lstrip('?')}")
