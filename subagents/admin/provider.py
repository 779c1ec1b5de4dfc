"""Providers and their models."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from unfold.decorators import display

from mcpregistry.admin.base import RecordAdmin, actor
from mcpregistry.admin.fields import MASK, SecretField, SecretsField
from mcpregistry.domain.errors import ConfigInvalid
from subagents.models import LanguageModel, Provider
from subagents.services import providers


class ProviderForm(forms.ModelForm):
    key = SecretField(label="API key", help_text="Stored sealed and never shown. Empty: keep the stored one.")
    headers = SecretsField(
        label="Headers", placeholder="X-Team=tools",
        help_text=f"One NAME=value per line, sent with every request. Leave {MASK} to keep a stored value.",
    )  # fmt: skip

    class Meta:
        model = Provider
        fields = ("slug", "kind", "base_url", "key", "headers", "options", "tool_choice", "timeout", "enabled")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        stored = self._stored()
        if "headers" in self.fields:
            self.fields["headers"].stored = stored  # type: ignore[attr-defined]
            self.initial["headers"] = stored

    def _stored(self) -> dict[str, str]:
        """The sealed pairs; none when they no longer open, so that they can be entered again."""
        try:
            return dict(self.instance.headers)
        except ConfigInvalid:
            return {}


@admin.register(Provider)
class ProviderAdmin(RecordAdmin):
    form = ProviderForm
    list_display = ("slug", "kind", "base_url", "has_key", "model_count", "enabled")
    list_filter = ("kind", "enabled")
    search_fields = ("slug", "base_url")

    @display(description="key", boolean=True)
    def has_key(self, provider: Provider) -> bool:
        return bool(provider.sealed_key)

    @display(description="models")
    def model_count(self, provider: Provider) -> int:
        return provider.models.count()

    def save(self, request: HttpRequest, row: Provider, form: forms.ModelForm) -> None:
        providers.save_provider(
            provider=row, actor=actor(request), key=form.cleaned_data["key"], headers=form.cleaned_data["headers"]
        )

    def remove(self, request: HttpRequest, row: Provider) -> None:
        providers.delete_provider(provider=row, actor=actor(request))


@admin.register(LanguageModel)
class LanguageModelAdmin(RecordAdmin):
    list_display = ("name", "provider", "context_window", "input_price", "output_price", "prices_from", "enabled")
    list_filter = ("provider", "enabled", "free")
    list_select_related = ("provider",)
    search_fields = ("name", "provider__slug")
    autocomplete_fields = ("provider",)
    fieldsets = (
        (None, {"fields": (("provider", "name"), ("context_window", "max_output"), ("buffer_tokens", "tokenizer"))}),
        (
            "Prices: US dollars for a million tokens",
            {
                "fields": (
                    ("input_price", "output_price"), ("cache_read_price", "cache_write_price"), ("free", "prices_from"),
                ),
                "description": "manage.py modelprices fills in what is empty.",
            },
        ),
        ("Requests", {"fields": ("overrides", ("tool_choice", "enabled"), "compared")}),
    )  # fmt: skip

    def save(self, request: HttpRequest, row: LanguageModel, form: forms.ModelForm) -> None:
        providers.save_model(model=row, actor=actor(request))

    def remove(self, request: HttpRequest, row: LanguageModel) -> None:
        providers.delete_model(model=row, actor=actor(request))
