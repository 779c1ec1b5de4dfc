"""Pages for providers of language models, and for their models."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import Count, QuerySet
from django.http import HttpRequest
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.text import format_lazy
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display
from unfold.widgets import UnfoldBooleanSwitchWidget

from mcpregistry.admin.base import RecordAdmin, Verb, actor
from mcpregistry.admin.confirm_page import MAY_CONFIRM
from mcpregistry.admin.fields import MASK, SecretField, SecretsField, WordsField
from mcpregistry.admin.forms import RecordForm
from mcpregistry.admin.live_parts import LiveAdmin, LivePart
from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.templatetags.slipsnisse import exactly
from subagents.admin.destination import DestinationPage
from subagents.models import LanguageModel, Provider
from subagents.services import providers
from subagents.services.readiness import provider_problem

_LATE = timedelta(minutes=1)  # by then a worker has answered, if there is one


class ProviderForm(RecordForm[Provider]):
    """A provider's fields; the key and the headers are written and never shown."""

    key = SecretField(label=_("API key"))
    remove_key = forms.BooleanField(
        required=False,
        label=_("Remove the stored key"),
        widget=UnfoldBooleanSwitchWidget,
    )
    headers = SecretsField(
        label=_("Headers"),
        placeholder="X-Team=tools",
        help_text=format_lazy(
            _(
                "One NAME=value per line, sent with every request. Leave {mask} to keep a stored value."
            ),
            mask=MASK,
        ),
    )

    allowed_networks = WordsField(
        rows=2,
        placeholder="127.0.0.1/32",
        help_text=_(
            "Private networks in which this provider can be reached, one per line. If empty, only public "
            "addresses are allowed."
        ),
    )

    class Meta:
        model = Provider
        fields = (
            "slug",
            "kind",
            "base_url",
            "allowed_networks",
            "key",
            "headers",
            "options",
            "tool_choice",
            "timeout",
            "enabled",
        )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        stored = self._load_headers()
        if "key" in self.fields:
            self.fields["key"].help_text = _HAS_KEY if self.instance.sealed_key else _NO_KEY
        if "remove_key" in self.fields and not self.instance.sealed_key:
            del self.fields["remove_key"]
        if "headers" in self.fields:
            self.fields["headers"].stored = stored  # type: ignore[attr-defined]
            self.initial["headers"] = stored

    def _load_headers(self) -> dict[str, str]:
        """The sealed pairs; none when they no longer open, so that they can be entered again."""
        try:
            return dict(self.instance.headers)
        except ConfigInvalid:
            return {}

    def key_to_store(self) -> str | None:
        """The key that was typed, an empty one to remove it, None to keep what is stored."""
        if self.cleaned_data.get("remove_key") and not self.cleaned_data["key"]:
            return ""
        key: str | None = self.cleaned_data["key"]
        return key


_HAS_KEY = _(
    "A key is stored. It is encrypted and never shown. Leave this field empty to keep the stored key."
    " If you change where the key is sent (kind, address, headers, networks, options), enter the key "
    "again. If you do not enter the key, the provider becomes a draft until a user confirms it."
)
_NO_KEY = _(
    "No key is stored. A key is stored encrypted and never shown. ${NAME} inserts a variable that the"
    " site can read, and ${cred:NAME} inserts a credential."
)


def _test(request: HttpRequest, provider: Provider) -> str:
    model = providers.request_test(provider=provider, actor=actor(request))
    return gettext("A worker is asking {model} for one word.").format(
        model=show_invisible_characters(str(model), 120)
    )


def _is_draft(provider: Provider) -> bool:
    return provider.draft_problem() is not None


@admin.register(Provider)
class ProviderAdmin(LiveAdmin):
    """Providers; a button lets a worker ask the first model for one word."""

    form = ProviderForm
    list_display = (
        "slug",
        "shown_state",
        "kind",
        "base_url",
        "has_key",
        "model_count",
        "tested",
        "enabled",
    )
    list_filter = ("kind", "enabled")
    ordering = ("slug",)
    search_fields = ("slug", "base_url")
    change_form_outer_before_template = "admin/subagents/provider.html"
    fieldsets = (
        (None, {"fields": (("slug", "kind"), "base_url", "key", "enabled")}),
        (
            _("Requests"),
            {"fields": (("timeout", "tool_choice"), "headers", "allowed_networks", "options")},
        ),
    )
    verbs = (
        Verb(
            "confirm",
            _("Confirm provider"),
            MAY_CONFIRM,
            "verified_user",
            _("Check where the key would be sent, then confirm it."),
            page="subagents_provider_confirm",
            applies=_is_draft,
            style="primary",
        ),
        Verb(
            "test",
            _("Test provider"),
            "subagents.change_provider",
            "network_check",
            _("Ask the first model of the provider for one word. This costs very little."),
            _test,
            applies=lambda provider: not _is_draft(provider),
        ),
    )

    def get_urls(self) -> list[URLPattern]:
        page = self.admin_site.admin_view(DestinationPage(self))
        return [
            path("<path:object_id>/confirm/", page, name="subagents_provider_confirm"),
            *super().get_urls(),
        ]

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Only a stored key can be removed."""
        if obj is None or not obj.sealed_key or not self.has_change_permission(request, obj):
            return self.fieldsets
        (title, _), *others = self.fieldsets
        return [
            (title, {"fields": (("slug", "kind"), "base_url", ("key", "remove_key"), "enabled")}),
            *others,
        ]

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any
    ) -> Any:
        """The fields that the form makes itself are none of the model's."""
        return super().get_form(
            request, obj, change, **kwargs | {"fields": ProviderForm.Meta.fields}
        )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Provider]:
        return super().get_queryset(request).annotate(models_there=Count("models"))

    @display(description=_("state"), label={"confirmed": "success", "draft": "warning"})
    def shown_state(self, provider: Provider) -> str:
        return "draft" if _is_draft(provider) else "confirmed"

    @display(description=_("key"), boolean=True)
    def has_key(self, provider: Provider) -> bool:
        return bool(provider.sealed_key)

    @display(description=_("models"), ordering="models_there")
    def model_count(self, provider: Provider) -> int:
        return int(provider.models_there)  # type: ignore[attr-defined]

    @display(
        description=_("last test"),
        label={"works": "success", "failed": "danger", "in progress": "info"},
    )
    def tested(self, provider: Provider) -> str:
        if provider.being_tested:
            return "in progress"
        if provider.tested_at is None:
            return "never"
        return "failed" if provider.test_error else "works"

    def save(self, request: HttpRequest, row: Provider, form: ProviderForm) -> None:  # type: ignore[override]
        providers.save_provider(
            provider=row,
            actor=actor(request),
            key=form.key_to_store(),
            headers=form.cleaned_data["headers"],
        )
        if draft := row.draft_problem():
            self.message_user(
                request,
                show_invisible_characters(f"{draft.sentence} {draft.remedy}", 1_000),
                messages.WARNING,
            )

    def remove(self, request: HttpRequest, row: Provider) -> None:
        providers.delete_provider(provider=row, actor=actor(request))

    def overview(self, request: HttpRequest, row: Provider) -> dict[str, Any]:
        add = reverse("admin:subagents_languagemodel_add")
        return self.live_part(request, row, "").context | {
            "models": row.models.order_by("name"),
            "add_url": f"{add}?provider={row.pk}"
            if request.user.has_perm("subagents.add_languagemodel")
            else "",
            "problem": provider_problem(row),
            "live_url": self.live_url(row),
        }

    def live_part(self, request: HttpRequest, row: Provider, name: str) -> LivePart:
        late = row.being_tested and row.test_asked_at and timezone.now() - row.test_asked_at > _LATE
        return LivePart(
            "admin/subagents/provider_test.html", {"provider": row, "late": late}, row.being_tested
        )


@admin.register(LanguageModel)
class LanguageModelAdmin(RecordAdmin):
    """Models with windows and prices; prices that a person changes are dated today."""

    list_display = (
        "name",
        "provider",
        "context_window",
        "price_in",
        "price_out",
        "prices_from",
        "compared",
        "enabled",
    )
    list_filter = ("provider", "enabled", "free")
    list_select_related = ("provider",)
    search_fields = ("name", "provider__slug")
    autocomplete_fields = ("provider",)
    fieldsets = (
        (
            None,
            {
                "fields": (
                    ("provider", "name"),
                    ("context_window", "max_output"),
                    ("buffer_tokens", "tokenizer"),
                    ("enabled", "compared"),
                )
            },
        ),
        (
            _("Prices in US dollars per million tokens"),
            {
                "fields": (
                    ("input_price", "output_price"),
                    ("cache_read_price", "cache_write_price"),
                    ("free", "prices_from"),
                ),
                "description": _(
                    "The command manage.py modelprices fills in missing context windows and prices of "
                    "models that it knows. Budgets in US dollars refuse a model without prices. Prices that you change "
                    "get today's date."
                ),
            },
        ),
        (_("Requests"), {"fields": ("tool_choice", "overrides")}),
    )

    @display(description=_("input, $/M"), ordering="input_price")
    def price_in(self, model: LanguageModel) -> str:
        if model.free:
            return "free"
        return "unknown" if model.input_price is None else exactly(model.input_price)

    @display(description=_("output, $/M"), ordering="output_price")
    def price_out(self, model: LanguageModel) -> str:
        if model.free:
            return "free"
        return "unknown" if model.output_price is None else exactly(model.output_price)

    def save(
        self, request: HttpRequest, row: LanguageModel, form: forms.ModelForm[LanguageModel]
    ) -> None:
        if "prices_from" not in form.changed_data and any(
            name.endswith("_price") for name in form.changed_data
        ):
            row.prices_from = timezone.now().date()
        providers.save_model(model=row, actor=actor(request))

    def remove(self, request: HttpRequest, row: LanguageModel) -> None:
        providers.delete_model(model=row, actor=actor(request))
