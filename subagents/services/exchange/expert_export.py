"""Expert tools and providers as a configuration file says them, from the records of now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.db.models import Prefetch, QuerySet

from mcpregistry.domain.formats.document import Document, JsonObject, Parked
from mcpregistry.models import Tool
from subagents.models import ExpertTarget, ExpertTool, Provider
from subagents.services import experts
from subagents.services.exchange.expert_rows import (
    key_of,
    key_reference,
    model_entry,
    plain_headers,
    provider_entry,
    tool_entry,
)


def query_whole_experts(rows: QuerySet[ExpertTool]) -> QuerySet[ExpertTool]:
    """With all of a tool that an entry says, but its whitelist."""
    targets = Prefetch("ordered_targets", ExpertTarget.objects.select_related("model__provider"))
    return rows.select_related("agent").prefetch_related("users", "endpoints", targets)


def entry_now(row: ExpertTool, whitelist: Iterable[Tool], *, kept: Parked) -> JsonObject:
    """The tool (one that was read ``query_whole_experts``) as a file says it; ``kept``: how a file
    has spelled it."""
    targets = [(t.model.provider, t.model.name) for t in row.ordered_targets.all()]
    spelled = kept.spelling.get("provider", "")
    names = [
        (spelled if number == 0 and spelled == p.kind else p.slug, m)
        for number, (p, m) in enumerate(targets)
    ]
    return tool_entry(
        row,
        targets=names,
        whitelist=[*map(key_of, whitelist), *row.awaited_tools],
        users=[agent.slug for agent in row.users.all()],
        endpoints=[endpoint.slug for endpoint in row.endpoints.all()],
        kept=kept,
    )


def list_tools(document: Document) -> tuple[JsonObject, ...]:
    """The tools as they are now, those of files in their order; and what files brought that no
    record was made of."""
    rows = {row.name: row for row in query_whole_experts(ExpertTool.objects.all())}
    whitelists = experts.load_whitelists(list(rows.values()))
    written = []
    for item in document.expert_tools:
        row = rows.pop(item["name"], None)
        if row is not None:
            written.append(
                entry_now(row, whitelists[row.pk], kept=Parked.from_json(item.get("made", {})))
            )
        elif "made" not in item:
            written.append(item)
    return (*written, *(entry_now(row, whitelists[row.pk], kept=Parked()) for row in rows.values()))


def list_model_providers(document: Document, *, include_secrets: bool) -> dict[str, JsonObject]:
    """Those that a file has described, and those that no file could do without."""
    found = {}
    for row in Provider.objects.prefetch_related("models"):
        kept = document.model_providers.get(row.slug)
        stated = kept.get("made", {}) if kept else {}
        order = stated.get("order", ())
        entry = provider_entry(
            row, order, headers=row.headers if include_secrets else plain_headers(row.headers)
        )
        models = _models(row, stated.get("models", {}))
        if models or "models" in order:
            entry["models"] = models
        if kept or not _is_implied(row, entry):
            found[row.slug] = {key: entry[key] for key in (*order, *entry) if key in entry}
    raw = {name: item for name, item in document.model_providers.items() if "made" not in item}
    return {**{name: item for name, item in raw.items() if name not in found}, **found}


def _models(row: Provider, stated: Mapping[str, Any]) -> dict[str, JsonObject]:
    """The provider's models about which there is something to say, or which the file has named."""
    entries = {
        model.name: model_entry(model, stated.get(model.name, ())) for model in row.models.all()
    }
    return {name: facts for name, facts in entries.items() if facts or name in stated}


def _is_implied(row: Provider, entry: JsonObject) -> bool:
    """A file that merely names it would set it up the same way, or it is used by nothing."""
    reference = key_reference(row.kind)
    plain = {"kind": row.slug, "key": reference} if reference else {"kind": row.slug}
    return entry == plain or not ExpertTool.objects.filter(targets__provider=row).exists()
