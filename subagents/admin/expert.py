"""Expert tools: what hosts read, which models answer, and the whitelist, all on one page."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display
from unfold.widgets import (
    UnfoldAdminCheckboxSelectMultipleWidget,
    UnfoldAdminSelectMultipleWidget,
    UnfoldAdminSelectWidget,
)

from mcpregistry.admin.base import RecordAdmin, actor
from mcpregistry.admin.forms import RecordForm
from mcpregistry.domain.definitions.comparison import format_readable
from mcpregistry.domain.definitions.diff import Rewording, compare_words
from mcpregistry.models import Agent, Endpoint, Tool
from subagents.domain.maintenance import MODELLED
from subagents.models import ExpertTool, ExpertVersion, LanguageModel
from subagents.queries import compute_expert_figures
from subagents.services import experts
from subagents.services.readiness import obstacles

_VERSIONS_SHOWN = 10
_ORDER = ("first", "second", "third", "fourth")


_NO_MODEL = _("There is no model yet. Add a provider and a model, then come back.")


class ExpertForm(RecordForm[ExpertTool]):
    """An expert tool's fields, its models in order of fallback, and its whitelist."""

    tools = forms.ModelMultipleChoiceField(
        Tool.objects.none(),
        required=False,
        label=_("Tools"),
        widget=UnfoldAdminSelectMultipleWidget(attrs={"size": 12}),
        help_text=_(
            "Tools that the model can use. Hold Ctrl (Cmd on a Mac) to select several. To add a whole server, "
            "grant it to the agent of this expert tool under Grants."
        ),
    )

    maintains = forms.MultipleChoiceField(
        label=_("Maintenance requests"),
        required=False,
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
        choices=[(kind.value, kind.value.replace("_", " ")) for kind in MODELLED],
        help_text=_(
            "Kinds of maintenance requests that this expert tool handles. Its model uses the operations of "
            "the background sub-agent and can only propose changes. The expert tool must have one text argument, and"
            " each kind can be assigned to only one expert tool."
        ),
    )

    class Meta:
        model = ExpertTool
        exclude = ("targets", "agent")
        labels = {"users": _("Agents")}
        widgets = {
            "users": UnfoldAdminSelectMultipleWidget,
            "endpoints": UnfoldAdminSelectMultipleWidget,
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        askable = LanguageModel.objects.select_related("provider")
        chosen = (
            [t.model_id for t in self.instance.ordered_targets.all()] if self.instance.pk else []
        )
        for place, name in enumerate(_ORDER):
            self.fields[name] = forms.ModelChoiceField(
                askable,
                required=place == 0,
                label=_("Model")
                if place == 0
                else gettext("Fallback {number}").format(number=place),
                help_text=_NO_MODEL if place == 0 and not askable else "",
                initial=chosen[place] if place < len(chosen) else None,
                widget=UnfoldAdminSelectWidget,
            )
        if "tools" in self.fields:
            self.fields["tools"].queryset = Tool.objects.filter_approved().select_related("server")  # type: ignore[attr-defined]
            self.initial["tools"] = experts.whitelist(self.instance) if self.instance.pk else []
        if "users" in self.fields:
            self.fields["users"].queryset = Agent.objects.exclude(pk=self.instance.agent_id)  # type: ignore[attr-defined]
            self.fields["endpoints"].queryset = Endpoint.objects.all()  # type: ignore[attr-defined]

    def get_chosen_models(self) -> list[LanguageModel]:
        """The models in order, each once."""
        return list(
            dict.fromkeys(m for name in _ORDER if (m := self.cleaned_data.get(name)) is not None)
        )


@admin.register(ExpertTool)
class ExpertToolAdmin(RecordAdmin):
    """Expert tools with their figures, versions and what stands in the way of a run."""

    form = ExpertForm
    list_display = ("name", "asks", "tool_count", "max_steps", "max_seconds", "max_cost", "enabled")
    list_filter = ("enabled", "endpoints", "users")
    search_fields = ("name", "description", "system_prompt")
    change_form_outer_before_template = "admin/subagents/expert.html"
    fieldsets = (
        (None, {"fields": (("name", "enabled"), "description", "arguments", "output_schema")}),
        (
            _("Models"),
            {"fields": (("first", "second"), ("third", "fourth"), "system_prompt", "temperature")},
        ),
        (_("Tools"), {"fields": ("tools", "awaited_tools", "tool_instructions")}),
        (_("Callers"), {"fields": (("users", "endpoints"), "maintains")}),
        (
            _("Limits of one run"),
            {
                "fields": (
                    ("max_steps", "max_seconds"),
                    ("max_tokens", "max_cost"),
                    ("max_calls", "parallelism"),
                    "parallel",
                    ("max_energy", "max_result_bytes"),
                    ("on_server_death", "cache_seconds"),
                )
            },
        ),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[ExpertTool]:
        return (
            super()
            .get_queryset(request)
            .prefetch_related("ordered_targets__model__provider", "agent__grants")
        )

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.fieldsets

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any
    ) -> Any:
        """The fields that the form makes itself are none of the model's."""
        names: list[str] = []
        for _title, group in self.fieldsets:
            for row in group["fields"]:
                names += [row] if isinstance(row, str) else row
        kwargs["fields"] = [name for name in names if name not in (*_ORDER, "tools")]
        return super().get_form(request, obj, change, **kwargs)

    @display(description=_("models"))
    def asks(self, expert: ExpertTool) -> str:
        return ", ".join(str(target.model) for target in expert.ordered_targets.all())

    @display(description=_("grants"))
    def tool_count(self, expert: ExpertTool) -> int:
        return len(expert.agent.grants.all())

    def save(self, request: HttpRequest, row: ExpertTool, form: ExpertForm) -> None:  # type: ignore[override]
        experts.save_expert(
            expert=row,
            targets=form.get_chosen_models(),
            actor=actor(request),
            rights=request.user.has_perm,
        )
        experts.set_whitelist(expert=row, tools=form.cleaned_data["tools"], actor=actor(request))
        experts.offer(
            expert=row,
            agents=form.cleaned_data["users"],
            endpoints=form.cleaned_data["endpoints"],
            actor=actor(request),
        )

    def remove(self, request: HttpRequest, row: ExpertTool) -> None:
        experts.delete_expert(expert=row, actor=actor(request), rights=request.user.has_perm)

    def overview(self, request: HttpRequest, row: ExpertTool) -> dict[str, Any]:
        grants = reverse("admin:mcpregistry_grant_changelist")
        return {
            "expert": row,
            "figures": compute_expert_figures(row),
            "versions": _list_versions(row),
            "obstacles": obstacles(row, [target.model_id for target in row.ordered_targets.all()]),
            "listed": row.users.exists() and row.endpoints.exists(),
            "runs_url": reverse("admin:subagents_run_changelist") + f"?q={row.name}",
            "grants_url": f"{grants}?agent={row.agent.slug}",
            "scripted": any(t.model.provider.kind == "scripted" for t in row.ordered_targets.all()),
        }


def _list_versions(expert: ExpertTool) -> list[tuple[ExpertVersion, list[Rewording]]]:
    """The newest, each with what it changed, word by word; the first of all with nothing to
    compare."""
    found = list(expert.versions.all()[: _VERSIONS_SHOWN + 1])
    names = {model.pk: str(model) for model in LanguageModel.objects.select_related("provider")}
    pairs = list(zip(found, [*found[1:], None], strict=True))[:_VERSIONS_SHOWN]
    return [(new, _changes(old, new, names) if old else []) for new, old in pairs]


def _changes(old: ExpertVersion, new: ExpertVersion, names: dict[int, str]) -> list[Rewording]:
    before = json.loads(old.body)
    after = json.loads(new.body)
    for body in (before, after):
        body["targets"] = [
            names.get(pk, gettext("a deleted model ({id})").format(id=pk)) for pk in body["targets"]
        ]
    return [
        Rewording(
            field,
            tuple(
                compare_words(format_readable(before.get(field)), format_readable(after.get(field)))
            ),
        )
        for field in sorted({*before, *after})
        if before.get(field) != after.get(field)
    ]
