"""Energy pools with their level over time, and what was drawn on them."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display

from mcpregistry.admin.base import CappedPaginator, ReadOnlyAdmin, RecordAdmin, Verb, actor
from mcpregistry.admin.forms import RecordForm
from mcpregistry.domain.energy import EnergyLevel
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import EnergyEntry, EnergyPool
from mcpregistry.queries import energy
from mcpregistry.services.energy import pools

LEVEL_COLOURS = {
    EnergyLevel.OK: "success",
    EnergyLevel.LOW: "warning",
    EnergyLevel.CRITICAL: "danger",
    EnergyLevel.EMPTY: "danger",
}
_ENTRIES_SHOWN = 20


def level_of(row: EnergyPool, request: HttpRequest, agent: str = "") -> dict[str, Any]:
    """What ``energy_level.html`` shows of a pool read ``with_reserved``, on its page and those of
    its agents."""
    stand = pools.load_pool_standing(row)
    may_see = request.user.has_perm("mcpregistry.view_energyentry")
    return {
        "pool": row,
        "stand": stand,
        "level_colour": LEVEL_COLOURS[stand.state],
        "bars": energy.chart(row, timezone.now(), agent) if may_see else [],
    }


class PoolForm(RecordForm[EnergyPool]):
    """A pool's fields with their explanations."""

    class Meta:
        model = EnergyPool
        fields = "__all__"
        help_texts = {
            "slug": _("Short name of the pool, for the pages of agents and for REST."),
            "capacity": _("Maximum number of units. A new pool is full."),
            "low_policy": _(
                "The background sub-agent works for the agents that use this pool. Choose what happens to "
                "this work while the pool is below its critical level."
            ),
            "per_call": _("Units for each call that is sent, even if it fails."),
            "per_kilobyte": _("Units for each KiB of arguments and result."),
        }


def _fill(request: HttpRequest, row: EnergyPool) -> str:
    entry = pools.grant(pool_id=row.pk, amount=row.capacity, actor=actor(request))
    return gettext("The pool is full: {units:g} units.").format(units=entry.after)


@admin.register(EnergyPool)
class EnergyPoolAdmin(RecordAdmin):
    """Pools: how they stand, how the level went, and what drained it."""

    form = PoolForm
    list_display = (
        "slug",
        "shown_level",
        "shown_state",
        "capacity",
        "regeneration",
        "shown_agents",
        "on_empty",
    )
    list_filter = ("on_empty",)
    search_fields = ("slug", "description", "agents__slug")
    fieldsets = (
        (None, {"fields": ("slug", "description", ("capacity", "regeneration"))}),
        (_("Energy of calls"), {"fields": ("per_second", ("per_call", "per_kilobyte"))}),
        (
            _("Energy of model turns"),
            {
                "fields": (("per_1000_input", "per_1000_cached", "per_1000_output"),),
                "classes": ("collapse",),
            },
        ),
        (
            _("Low level"),
            {"fields": ("on_empty", "max_wait", ("critical", "resume"), "low_policy")},
        ),
    )
    change_form_outer_before_template = "admin/mcpregistry/energy.html"
    verbs = (
        Verb(
            "fill",
            _("Fill pool"),
            "change_energypool",
            "battery_charging_full",
            _("Raise the level to the capacity of the pool."),
            _fill,
        ),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[EnergyPool]:
        return super().get_queryset(request).with_reserved().prefetch_related("agents")  # type: ignore[attr-defined]

    def save(
        self, request: HttpRequest, row: EnergyPool, form: forms.ModelForm[EnergyPool]
    ) -> None:
        pools.save_pool(pool=row, actor=actor(request))

    def remove(self, request: HttpRequest, row: EnergyPool) -> None:
        pools.delete_pool(pool=row, actor=actor(request))

    @display(description=_("level"))
    def shown_level(self, row: EnergyPool) -> str:
        return f"{pools.load_pool_standing(row).level:.1f}"

    @display(
        description=_("state"), label={each.value: colour for each, colour in LEVEL_COLOURS.items()}
    )
    def shown_state(self, row: EnergyPool) -> str:
        return pools.load_pool_standing(row).state.value

    @display(description=_("agents"))
    def shown_agents(self, row: EnergyPool) -> str:
        return (
            show_invisible_characters(", ".join(agent.slug for agent in row.agents.all()), 100)
            or "none"
        )

    def overview(self, request: HttpRequest, row: EnergyPool) -> dict[str, Any]:
        may_see = request.user.has_perm("mcpregistry.view_energyentry")
        entries = list(row.entries.order_by("-id")[:_ENTRIES_SHOWN]) if may_see else []
        return level_of(row, request) | {"entries": entries, "drawers": list(row.agents.all())}


@admin.register(EnergyEntry)
class EnergyEntryAdmin(ReadOnlyAdmin):
    """Every charge and gift, the newest first."""

    paginator = CappedPaginator
    list_display = ("at", "pool", "kind", "agent_slug", "shown_amount", "shown_after", "reference")
    list_filter = ("kind", "pool")
    list_select_related = ("pool",)
    # The turns of a run, and the work on a request, have references that begin with its id.
    search_fields = ("reference__startswith", "agent_slug")
    search_help_text = _("ID of a call, run or request, or name of an agent")
    sortable_by = ()
    fields = (
        "pool",
        "kind",
        "agent_slug",
        "shown_amount",
        "shown_before",
        "shown_after",
        "reference",
        "at",
    )

    @display(description=_("units"))
    def shown_amount(self, row: EnergyEntry) -> str:
        return f"{-row.amount:+.2f}"

    @display(description=_("level before"))
    def shown_before(self, row: EnergyEntry) -> str:
        return f"{row.before:.1f}"

    @display(description=_("level after"))
    def shown_after(self, row: EnergyEntry) -> str:
        return f"{row.after:.1f}"
