"""Versions as programs and the command ask for them: of a record by its name, of a kind, of
everything; or one by its number."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.db.models import Model, QuerySet

from controlplane.configuration.record_kinds import KINDS, WITH, RecordKind
from controlplane.history import past_versions
from controlplane.history.past_versions import VERSION_GONE
from mcpregistry.domain import error_texts, offer_kinds
from mcpregistry.domain.errors import Conflict, NotFound
from mcpregistry.domain.servers.redacted_env import mask_record_secrets
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Configuration, Permit, Tool
from mcpregistry.queries.versions import Field, Version, describe_versions, plain
from subagents.models import EffortAgent, LanguageModel

NEWEST = 50  # of everything
LISTED: Mapping[str, RecordKind] = {
    kind.section: kind for kind in KINDS if hasattr(kind.model, "history")
}
_KIND_OF: Mapping[type[Model], RecordKind] = {kind.model: kind for kind in LISTED.values()}


def kind_named(section: str) -> RecordKind:
    """The kind of this section of the site's document. Raises NotFound, which says where else to
    look."""
    if section not in LISTED:
        raise NotFound(
            f'The site keeps no versions of "{show_invisible_characters(section, 60)}".',
            remedy=f"Choose one of {', '.join(LISTED)}. For users and their groups, calls and decisions, see the audit log.",
        )
    return LISTED[section]


def rows_of(kind: RecordKind) -> QuerySet[Any]:
    """All versions of all records of a kind, newest first."""
    return kind.model.history.select_related("history_user").order_by("-history_id")  # type: ignore[attr-defined]


def of_record(kind: RecordKind, name: str) -> QuerySet[Any]:
    """The versions of the record that has this name (or number, where its kind has no names), else
    of the last that had it. Raises NotFound."""
    key = _find_key(kind, name)
    if key is None:
        raise NotFound(
            f'There is no record named "{show_invisible_characters(name, 100)}" in {kind.section}, and there never was one.',
            remedy=f"To see the names, list the versions of {kind.section} without a name.",
        )
    return rows_of(kind).filter(**{_attname(kind): key})


def in_words(rows: QuerySet[Any], most: int) -> list[Version]:
    """The newest ``most`` versions of one record with what each changed; what is secret in them is
    hidden."""
    return describe_versions(list(rows[: most + 1]), most, _format_value)


def one(kind: RecordKind, number: int) -> tuple[Any, Version]:
    """A version by its number, as its row and in words. Raises NotFound."""
    row = rows_of(kind).filter(history_id=number).first()
    if row is None:
        raise NotFound(error_texts.say_no_such_number("version", number), remedy=VERSION_GONE)
    earlier = rows_of(kind).filter(
        **{_attname(kind): past_versions.key_of(row)}, history_id__lte=number
    )
    words = in_words(earlier, 1)
    return row, words[0] if words else _describe_unchanged(row)


def section_of(row: Any) -> str:
    """The section of the site's document that the record of this version stands in."""
    return _KIND_OF[row.instance_type].section


def item_of(row: Any) -> Any:
    """What puts this version back. Raises Conflict where nothing does."""
    if row.instance_type is Permit:
        raise Conflict(
            "A permit that has ended cannot be restored.",
            remedy="Create a new permit when you approve the next call of this kind.",
        )
    return past_versions.item_of(row)


def newest(may_see: Callable[[type[Model]], bool]) -> list[Any]:
    """The newest versions of everything that somebody may see."""
    rows: list[Any] = []
    for kind in past_versions.VERSIONED.values():
        if may_see(kind.model):
            rows += rows_of(kind).order_by("-history_date", "-history_id")[:NEWEST]
    rows.sort(key=lambda row: row.history_date, reverse=True)
    return rows[:NEWEST]


def names_of(rows: Sequence[Any]) -> list[str]:
    """The names in the site's document of the records that these are versions of; of one that is
    gone what people call it, and the number of one without a name."""
    found: dict[Any, str] = {}
    for model in {row.instance_type for row in rows}:
        kind = _KIND_OF[model]
        there = model._default_manager.select_related(*([WITH[model]] if model in WITH else []))
        keys = {past_versions.key_of(row) for row in rows if row.instance_type is model}
        found |= {
            (model, key): kind.name(live) for key, live in there.in_bulk(keys).items() if kind.named
        }
    return [
        found.get((row.instance_type, past_versions.key_of(row))) or _name_of_one_gone(row)
        for row in rows
    ]


def _name_of_one_gone(row: Any) -> str:
    return (
        past_versions.name_version(row)
        if _KIND_OF[row.instance_type].named
        else str(past_versions.key_of(row))
    )


def _attname(kind: RecordKind) -> str:
    return str(kind.model._meta.pk.attname)


def _describe_unchanged(row: Any) -> Version:
    return Version(
        row.history_id,
        row.history_date,
        row.history_user,
        row.history_change_reason or "",
        row.get_history_type_display(),
        [],
    )


def _find_key(kind: RecordKind, name: str) -> Any:
    if kind.model is Configuration:
        return Configuration.objects.values_list("pk", flat=True).first()
    columns = _columns(kind, name)
    attname = _attname(kind)
    live = kind.model._default_manager.filter(**columns).values_list(attname, flat=True).first()
    return (
        live
        if live is not None
        else rows_of(kind).filter(**columns).values_list(attname, flat=True).first()
    )


def _columns(kind: RecordKind, name: str) -> dict[str, Any]:
    """The condition that finds a record, or a version of it, by its name in the site's document."""
    if not kind.named:
        return {
            _attname(kind): int(name)
            if name.isascii() and name.isdecimal() and len(name) < 19
            else 0
        }
    if kind.model is Tool:
        server, _, own = name.partition("::")
        of_kind, tool = offer_kinds.parse_offer_key(own)
        return {"server__slug": server, "kind": of_kind, "name": tool}
    if kind.model is LanguageModel:
        provider, _, model = name.partition("/")
        return {"provider__slug": provider, "name": model}
    if kind.model is EffortAgent:
        return {"expert__name": name}
    if kind.section == "slack_people":
        team, _, member = name.partition("/")
        return {"team": team, "member": member}
    (column,) = kind.inside
    return {column: name}


def _format_value(field: Field, value: Any) -> str:
    """As ``plain``; a command is JSON."""
    if field.name == "command" and isinstance(value, list):
        return json.dumps(mask_record_secrets({"command": value})["command"], ensure_ascii=False)
    return plain(field, value)
