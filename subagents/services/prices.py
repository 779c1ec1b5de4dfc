"""Prices and windows from litellm's own list, marked with the day on which they were taken over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

from django.db import transaction

from mcpregistry.services.records import audit
from subagents.models import LanguageModel

_MILLION = Decimal(1_000_000)
_NAMES = {
    "google": ("gemini/{}", "{}"),
    "openrouter": ("openrouter/{}",),
    "ollama": (),
    "scripted": (),
}


@dataclass(frozen=True, slots=True)
class ListedModel:
    """What litellm's list knows of one model.

    ``changed``: fields that are new; empty when the list knows nothing else, None when it has no
    such model.
    """

    model: LanguageModel
    changed: Mapping[str, Any] | None


@transaction.atomic
def take_over(
    known: Mapping[str, Mapping[str, Any]], *, today: date, actor: str, overwrite: bool = False
) -> list[ListedModel]:
    """Fill in what is empty (or all of it, with ``overwrite``) for every model that the list
    knows."""
    models = (
        LanguageModel.objects.select_for_update(of=("self",))
        .select_related("provider")
        .order_by("pk")
    )
    found = [_take(model, known, today, overwrite) for model in models]
    for each in found:
        if each.changed:
            each.model.save(update_fields=[*each.changed])
            facts = {name: str(value) for name, value in each.changed.items()}
            audit.record_entry(
                kind="model.priced", actor=actor, subject=f"model:{each.model}", **facts
            )
    return found


def _take(
    model: LanguageModel, known: Mapping[str, Mapping[str, Any]], today: date, overwrite: bool
) -> ListedModel:
    entry = next((known[name] for name in _candidates(model) if name in known), None)
    if entry is None:
        return ListedModel(model, None)
    changed = {
        field: value
        for field, value in _build_fields(entry).items()
        if value is not None
        and getattr(model, field) != value
        and (overwrite or getattr(model, field) is None)
    }
    if any(field.endswith("_price") for field in changed):
        changed["prices_from"] = today
    for field, value in changed.items():
        setattr(model, field, value)
    return ListedModel(model, changed)


def _candidates(model: LanguageModel) -> list[str]:
    return [pattern.format(model.name) for pattern in _NAMES.get(model.provider.kind, ("{}",))]


def _build_fields(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A price of zero means that nobody has entered one: never that the model is free."""
    return {
        "input_price": _price(entry.get("input_cost_per_token")),
        "output_price": _price(entry.get("output_cost_per_token")),
        "cache_read_price": _price(entry.get("cache_read_input_token_cost")),
        "cache_write_price": _price(entry.get("cache_creation_input_token_cost")),
        "context_window": entry.get("max_input_tokens") or entry.get("max_tokens"),
    }


def _price(for_one: Any) -> Decimal | None:
    return (Decimal(str(for_one)) * _MILLION).quantize(Decimal("0.000001")) if for_one else None
