"""Admin pages of headends: address, client configuration and current load."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib import admin
from django.db.models import QuerySet
from django.forms import ModelForm, Script
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display

from mcpregistry.admin.base import RecordAdmin, actor
from subagents.models import ExpertTool, Headend, HeadendKind
from subagents.services.headends import configuring, queue_places

_TOKEN = "TOKEN"  # noqa: S105 - a placeholder
_SHOWN = 20  # expert tools on the page


@admin.register(Headend)
class HeadendAdmin(RecordAdmin):
    """Admin of headends."""

    list_display = ("slug", "kind", "address", "endpoint", "concurrency", "enabled")
    list_filter = ("kind", "enabled", "endpoint")
    list_select_related = ("endpoint",)
    search_fields = ("slug", "path", "endpoint__slug")
    autocomplete_fields = ("endpoint",)
    fieldsets = (
        (None, {"fields": ("slug", "kind", "endpoint", "path", "enabled")}),
        (_("Limits"), {"fields": ("concurrency", "longest_queue", "patience_seconds")}),
        (_("Models"), {"fields": ("aliases", "background_prompts")}),
    )
    change_form_outer_before_template = "admin/subagents/headend.html"

    class Media:
        js = (Script("mcpregistry/connect.js", defer=True),)  # copy buttons

    def get_queryset(self, request: HttpRequest) -> QuerySet[Headend]:
        return super().get_queryset(request).select_related("endpoint")

    def save(self, request: HttpRequest, row: Headend, form: ModelForm[Headend]) -> None:
        configuring.save_headend(row=row, actor=actor(request))

    def remove(self, request: HttpRequest, row: Headend) -> None:
        configuring.delete_headend(row=row, actor=actor(request))

    @display(description=_("address"))
    def address(self, row: Headend) -> str:
        return get_address(row)

    def overview(self, request: HttpRequest, row: Headend) -> dict[str, Any]:
        experts = ExpertTool.objects.filter(endpoints=row.endpoint, enabled=True).order_by("name")
        names = list(experts.values_list("name", flat=True)[: _SHOWN + 1])
        example = names[0] if names else "MODEL"
        return {
            "headend": row,
            "address": get_address(row),
            "experts": names[:_SHOWN],
            "more": len(names) > _SHOWN,
            "busy": queue_places.count_requests(row),
            "commands": build_commands(row, example),
        }


def get_address(row: Headend) -> str:
    """Return the base URL for clients. Clients of Anthropic add /v1 themselves."""
    if row.kind == HeadendKind.MCP:
        return f"{settings.SITE_URL}/mcp/{row.endpoint.slug}"
    whole = f"{settings.SITE_URL}/{row.path}"
    return whole.removesuffix("/v1") if row.kind == HeadendKind.ANTHROPIC else whole


def build_commands(row: Headend, model: str) -> list[tuple[str, str]]:
    """Return the configuration for clients as (name, text). ``TOKEN`` is a placeholder."""
    address = get_address(row)
    if row.kind == HeadendKind.OPENAI:
        asked = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
        return [
            (
                "curl",
                f"curl {address}/chat/completions -H 'Authorization: Bearer {_TOKEN}' \\\n  -H 'Content-Type: application/json' -d '{asked}'",
            ),
            ("Python, package openai", f'OpenAI(base_url="{address}", api_key="{_TOKEN}")'),
            (
                "Open WebUI, LibreChat and others",
                f"Base URL: {address}\nAPI key: {_TOKEN}\nModel: {model}",
            ),
            (
                "Codex",
                f'model = "{model}"\nmodel_provider = "slipsnisse"\n\n[model_providers.slipsnisse]\nname = "Slipsnisse"\nbase_url = "{address}"\nenv_key = "SLIPSNISSE_TOKEN"\nwire_api = "responses"',
            ),
        ]
    if row.kind == HeadendKind.ANTHROPIC:
        return [
            ("Python, package anthropic", f'Anthropic(base_url="{address}", api_key="{_TOKEN}")'),
            (
                "Claude Code",
                f"ANTHROPIC_BASE_URL={address} ANTHROPIC_AUTH_TOKEN={_TOKEN} claude --model {model}",
            ),
        ]
    if row.kind == HeadendKind.REST:
        return [
            (
                "curl",
                f"curl -G {address}/{model} -H 'Authorization: Bearer {_TOKEN}' \\\n  --data-urlencode 'q=Hello' -d format=markdown",
            )
        ]
    return []
