"""Budgets with how they stand, what was spent of them, and how earlier periods ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display

from mcpregistry.admin.base import CappedPaginator, ReadOnlyAdmin, RecordAdmin, actor
from mcpregistry.admin.forms import RecordForm
from mcpregistry.admin.name_filters import by_name
from mcpregistry.domain.budgets import Level, Unit, format_amount
from mcpregistry.models import Agent, Budget, BudgetEntry, BudgetPeriod, Endpoint
from mcpregistry.services.budgets import books
from mcpregistry.services.budgets.books import BudgetStanding

LEVEL_COLOURS = {Level.OK: "success", Level.SOFT: "warning", Level.SPENT: "danger"}
_ENTRIES_SHOWN = 20
_PERIODS_SHOWN = 12


class BudgetForm(RecordForm[Budget]):
    """A budget's fields with their explanations."""

    class Meta:
        model = Budget
        fields = "__all__"
        help_texts = {
            "slug": _("Short name of the budget in REST and in error messages."),
            "agent": _(
                "Counts all calls of this agent, and all calls of the expert tools that it uses. To limit one "
                "expert tool for all its callers, choose the agent of that tool. Choose either an agent or an endpoint."
            ),
            "endpoint": _(
                "Counts all calls that come through this endpoint, by any agent, and all calls of the expert "
                "tools that they use."
            ),
            "unit": _(
                "Dollars: the price of model turns and the estimated price of calls. Tokens: all tokens that "
                "models read and write. Calls: all calls that are sent to a server."
            ),
            "enabled": _(
                "If disabled, nothing is counted or refused. The amount spent so far is kept."
            ),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in ("soft", "hard"):  # 60 instead of 60.00000000
            if (mark := self.initial.get(name)) is not None:
                self.initial[name] = f"{Decimal(mark).normalize():f}"


@admin.register(Budget)
class BudgetAdmin(RecordAdmin):
    """Budgets: how they stand, and what was spent."""

    form = BudgetForm
    list_display = (
        "slug",
        "shown_holder",
        "shown_spent",
        "shown_level",
        "period",
        "shown_end",
        "enabled",
    )
    list_filter = (
        "unit",
        "period",
        "enabled",
        by_name("agent", nobody=_("No agent (budget of an endpoint)")),
        by_name("endpoint", nobody=_("No endpoint (budget of an agent)")),
    )
    list_select_related = ("agent", "endpoint")
    search_fields = ("slug", "description", "agent__slug", "endpoint__slug")
    autocomplete_fields = ("agent", "endpoint")
    fieldsets = (
        (None, {"fields": ("slug", ("agent", "endpoint"), "description", "enabled")}),
        (_("Limits"), {"fields": (("unit", "period"), ("soft", "hard"), "time_zone")}),
    )
    change_form_outer_before_template = "admin/mcpregistry/budget.html"

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        page = super().get_changelist_instance(request)
        stand = books.load_standings(page.result_list)
        for row in page.result_list:
            row.standing = stand[row.pk]
        return page

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("agent", "endpoint", "unit") if obj else ()

    def save(self, request: HttpRequest, row: Budget, form: forms.ModelForm[Budget]) -> None:
        books.save_budget(budget=row, actor=actor(request))

    def remove(self, request: HttpRequest, row: Budget) -> None:
        books.delete_budget(budget=row, actor=actor(request))

    @display(description=_("agent or endpoint"), ordering="agent__slug")
    def shown_holder(self, row: Budget) -> str:
        return row.whose.replace("'", "")

    @display(description=_("amount spent"))
    def shown_spent(self, row: Budget) -> str:
        return _format_spent(row, row.standing)  # type: ignore[attr-defined]

    @display(
        description=_("state"), label={each.value: colour for each, colour in LEVEL_COLOURS.items()}
    )
    def shown_level(self, row: Budget) -> str:
        return row.standing.level.value  # type: ignore[attr-defined]

    @display(description=_("end of period (UTC)"))
    def shown_end(self, row: Budget) -> str:
        return f"{row.standing.ends:%d %b %H:%M}"  # type: ignore[attr-defined]

    def overview(self, request: HttpRequest, row: Budget) -> dict[str, Any]:
        may_see = request.user.has_perm("mcpregistry.view_budgetentry")
        entries = list(row.entries.order_by("-id")[:_ENTRIES_SHOWN]) if may_see else []
        return {
            "budget": row,
            "line": lines([row])[0],
            "entries": [(each, format_amount(each.amount, row.counts)) for each in entries],
            "periods": [
                _past(row, each) for each in row.periods.order_by("-start")[:_PERIODS_SHOWN]
            ],
        }


@dataclass(frozen=True, slots=True)
class BudgetLine:
    """A budget in one line. ``part``: per cent of its hard limit (else its soft one) that are
    spent, at most 100."""

    budget: Budget
    standing: BudgetStanding
    said: str
    reserved: str
    part: int
    colour: str


def lines(budgets: Iterable[Budget]) -> list[BudgetLine]:
    """How these budgets stand, for pages."""
    rows = list(budgets)
    stand = books.load_standings(rows)
    return [_line(row, stand[row.pk]) for row in rows]


def list_budget_lines(holder: Agent | Endpoint, request: HttpRequest) -> list[BudgetLine]:
    """Those of an agent or an endpoint that this person may see."""
    rows = holder.budgets.filter(enabled=True)
    return lines(rows & Budget.objects.visible_to(request.user))


def _line(row: Budget, stand: BudgetStanding) -> BudgetLine:
    reserved = format_amount(stand.book.reserved, row.counts) if stand.book.reserved else ""
    return BudgetLine(
        row,
        stand,
        _format_spent(row, stand),
        reserved,
        _part(row, stand.book.spent),
        LEVEL_COLOURS[stand.level],
    )


def _part(row: Budget, spent: int) -> int:
    soft, hard = row.marks
    mark = hard if hard is not None else soft
    return min(100, 100 * spent // mark) if mark else 100


def _format_spent(row: Budget, stand: BudgetStanding) -> str:
    of = stand.book.hard if stand.book.hard is not None else stand.book.soft
    spent = format_amount(stand.book.spent, row.counts)
    if of is None:
        return spent
    bare = spent if row.counts is Unit.MONEY else spent.rpartition(" ")[0]
    return f"{bare} of {format_amount(of, row.counts)}"


def _past(row: Budget, period: BudgetPeriod) -> tuple[BudgetPeriod, str, int]:
    return period, format_amount(period.spent, row.counts), _part(row, period.spent)


@admin.register(BudgetEntry)
class BudgetEntryAdmin(ReadOnlyAdmin):
    """Everything that was spent of budgets, the newest first."""

    paginator = CappedPaginator
    list_display = ("at", "budget", "kind", "shown_amount", "agent_slug", "reference")
    list_filter = ("kind", "budget")
    list_select_related = ("budget",)
    search_fields = ("=reference", "agent_slug", "budget__slug")
    search_help_text = _("ID of a call, or name of an agent or budget")
    sortable_by = ()
    fields = ("budget", "kind", "shown_amount", "agent_slug", "reference", "at")

    @display(description=_("amount"))
    def shown_amount(self, row: BudgetEntry) -> str:
        return format_amount(row.amount, row.budget.counts)
