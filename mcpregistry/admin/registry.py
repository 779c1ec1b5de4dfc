"""Pages of public registries: which are read, how they stand, and a search in what they list."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display
from unfold.widgets import UnfoldBooleanSwitchWidget

from mcpregistry.admin.add_entry import AddEntryPage
from mcpregistry.admin.base import ReadOnlyAdmin, RecordAdmin, Verb, actor
from mcpregistry.admin.fields import SecretField
from mcpregistry.admin.forms import RecordForm
from mcpregistry.admin.live_parts import LiveAdmin, LivePart
from mcpregistry.domain.registry.entries import Status
from mcpregistry.domain.registry.install_options import InstallOption
from mcpregistry.models import RegistryEntry, RegistrySource
from mcpregistry.models.registry import OFFERED
from mcpregistry.services.registry import add_entries, sources, withdrawn_entries

STATUS_COLOURS = {
    Status.ACTIVE.value: "success",
    Status.DEPRECATED.value: "warning",
    Status.DELETED.value: "danger",
    Status.GONE.value: "danger",
}
STATE_COLOURS = {
    "reading": "info",
    "waiting": "info",
    "failed": "danger",
    "read": "success",
    "not read yet": "warning",
}


_STORED = _(
    "A token is stored. It is sent only to this address and never shown. Leave this field empty to "
    "keep the stored token. If you change the address or add networks, enter the token again."
)
_NOT_STORED = _(
    "Bearer token for a private registry. It is sent only to this address, stored encrypted, and never shown."
)


class SourceForm(RecordForm[RegistrySource]):
    """A registry's fields with their explanations; its token is written and never shown."""

    token = SecretField(max_length=sources.MOST_TOKEN)
    remove_token = forms.BooleanField(
        required=False,
        label=_("Remove the stored token"),
        widget=UnfoldBooleanSwitchWidget,
    )

    class Meta:
        model = RegistrySource
        fields = (
            "slug",
            "base_url",
            "by_clock",
            "propose_versions",
            "disable_deleted",
            "allowed_networks",
            "token",
        )
        help_texts = {
            "base_url": _(
                "Address of the registry without /v0.1. The official one is https://registry.modelcontextprotocol.io."
            ),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        stored = bool(self.instance.sealed_token)
        if "token" in self.fields:
            self.fields["token"].help_text = _STORED if stored else _NOT_STORED
        if "remove_token" in self.fields and not stored:
            del self.fields["remove_token"]

    def token_to_store(self) -> str | None:
        """The token that was typed, an empty one to remove it, None to keep what is stored."""
        if self.cleaned_data.get("remove_token") and not self.cleaned_data.get("token"):
            return ""
        token: str | None = self.cleaned_data.get("token")
        return token


def _sync(request: HttpRequest, row: RegistrySource) -> str:
    sources.request_reading(source=row, actor=actor(request))
    return gettext("A worker reads the registry. This page shows the progress.")


@admin.register(RegistrySource)
class RegistrySourceAdmin(LiveAdmin, RecordAdmin):
    """Registries that this site reads. None is read before somebody says so."""

    form = SourceForm
    list_display = ("slug", "base_url", "shown_state", "synced_at", "by_clock", "shown_entries")
    list_filter = ("by_clock",)
    search_fields = ("slug", "base_url")
    fieldsets = (
        (
            None,
            {
                "fields": (
                    "slug",
                    "base_url",
                    "token",
                    "by_clock",
                    "propose_versions",
                    "disable_deleted",
                )
            },
        ),
        (_("Private networks"), {"fields": ("allowed_networks",), "classes": ("collapse",)}),
    )
    change_form_outer_before_template = "admin/mcpregistry/registry.html"
    verbs = (
        Verb(
            "sync",
            _("Sync registry"),
            "sync_registrysource",
            "sync",
            _("Read the registry again now."),
            _sync,
            style="primary",
            applies=lambda row: sources.describe_state(row) not in ("reading", "waiting"),
        ),
    )

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Only a stored token can be removed; whoever may only look sees no field for one."""
        may_write = (
            self.has_change_permission(request, obj) if obj else self.has_add_permission(request)
        )
        (title, facts), *others = self.fieldsets
        shown: list[Any] = [name for name in facts["fields"] if may_write or name != "token"]
        if may_write and obj is not None and obj.sealed_token:
            shown[shown.index("token")] = ("token", "remove_token")
        return [(title, {"fields": shown}), *others]

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any
    ) -> Any:
        """The fields that the form makes itself are none of the model's."""
        return super().get_form(request, obj, change, **kwargs | {"fields": SourceForm.Meta.fields})

    def get_queryset(self, request: HttpRequest) -> QuerySet[RegistrySource]:
        return RegistrySource.objects.with_offer_counts().order_by(
            *self.get_ordering(request) or ["slug"]
        )

    def save(self, request: HttpRequest, row: RegistrySource, form: SourceForm) -> None:  # type: ignore[override]
        sources.save_source(source=row, actor=actor(request), token=form.token_to_store())

    def remove(self, request: HttpRequest, row: RegistrySource) -> None:
        sources.delete_source(source=row, actor=actor(request))

    @display(description=_("state"), label=STATE_COLOURS)
    def shown_state(self, row: RegistrySource) -> str:
        return sources.describe_state(row)

    @display(description=_("servers"))
    def shown_entries(self, row: Any) -> int:
        return int(row.offers)

    def overview(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        return _stand(row) | {"live_url": self.live_url(row)}

    def live_part(self, request: HttpRequest, row: Any, name: str) -> LivePart:
        stand = _stand(row)
        return LivePart(
            "admin/mcpregistry/registry_state.html",
            stand | {"ended": not stand["goes_on"]},
            stand["goes_on"],
        )


def _stand(row: Any) -> dict[str, Any]:
    state = sources.describe_state(row)
    return {
        "source": row,
        "state": state,
        "state_colour": STATE_COLOURS[state],
        "goes_on": state in ("reading", "waiting"),
        "count": row.offers,
    }


class NewestFilter(admin.SimpleListFilter):
    """The newest version of each server that is not taken back, unless somebody wants the others
    too."""

    title = _("versions")
    parameter_name = "versions"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("all", gettext("All, including withdrawn ones"))]

    def choices(self, changelist: Any) -> Iterator[Any]:
        """The first one is the default: not "All", as Django calls it."""
        for number, choice in enumerate(super().choices(changelist)):
            yield choice if number else {**choice, "display": gettext("Newest")}

    def queryset(self, request: HttpRequest, queryset: Any) -> QuerySet[RegistryEntry]:
        found: QuerySet[RegistryEntry] = (
            queryset if self.value() == "all" else queryset.filter_offered()
        )
        return found


class KindFilter(admin.SimpleListFilter):
    """By how a server comes."""

    title = _("kind")
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(each, each) for each in ("npm", "pypi", "remote", "oci", "mcpb")]

    def queryset(
        self, request: HttpRequest, queryset: QuerySet[RegistryEntry]
    ) -> QuerySet[RegistryEntry]:
        kind = self.value()
        return queryset.filter(kinds__contains=kind) if kind else queryset


@admin.register(RegistryEntry)
class RegistryEntryAdmin(ReadOnlyAdmin):
    """A search in what the registries list, and the way from an entry to a server of this site."""

    list_display = (
        "name",
        "shown_title",
        "version",
        "kinds",
        "shown_status",
        "published_at",
        "source",
    )
    list_filter = (NewestFilter, KindFilter, "source")
    list_select_related = ("source",)
    search_fields = ("name", "title", "description")
    search_help_text = _("Words in the name, title or description")
    sortable_by = ()
    fields = ("name", "version", "source", "description", "published_at", "updated_at", "seen_at")
    list_before_template = "admin/mcpregistry/registry_entries.html"
    change_form_outer_before_template = "admin/mcpregistry/registry_entry.html"

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        none_read = not RegistrySource.objects.filter(synced_at__isnull=False).exists()
        return super().changelist_view(request, (extra_context or {}) | {"none_read": none_read})

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(AddEntryPage(self))
        return [
            path("<path:object_id>/add/<int:number>/", view, name=self._name("add_way")),
            *super().get_urls(),
        ]

    @display(description=_("description"))
    def shown_title(self, row: RegistryEntry) -> str:
        return row.title or row.description[:120]

    @display(description=_("status"), label=STATUS_COLOURS)
    def shown_status(self, row: RegistryEntry) -> str:
        return row.status

    def overview(self, request: HttpRequest, row: RegistryEntry) -> dict[str, Any]:
        open_to = row.status in OFFERED
        return {
            "entry": row,
            "status_colour": STATUS_COLOURS[row.status],
            "open_to": open_to,
            "ways": [
                (way, _address(request, row, number, way) if open_to else "")
                for number, way in enumerate(add_entries.list_local_options(row))
            ],
            "servers": withdrawn_entries.list_entry_servers(row),
            "others": row.source.entries.filter(name=row.name)
            .exclude(pk=row.pk)
            .order_by("-published_at")[:20],
        }


def _address(request: HttpRequest, row: RegistryEntry, number: int, way: InstallOption) -> str:
    """The form by which it is added; empty for who may not add, and for what cannot be added."""
    if way.problem or not request.user.has_perm(add_entries.find_required_permission(way)):
        return ""
    return reverse("admin:mcpregistry_registryentry_add_way", args=[row.pk, number])
