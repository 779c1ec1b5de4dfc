"""Versions of records as entries of the document of the whole site, and which versions counted at a
time."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import Any

from django.contrib.auth.models import Group, User
from django.core.exceptions import ObjectDoesNotExist
from django.db.models import Model, OuterRef, Subquery

from controlplane.configuration.document_import import DocumentItem
from controlplane.configuration.document_values import Entry, Secrets
from controlplane.configuration.record_kinds import KINDS, NAMES, WITH, RecordKind
from controlplane.configuration.record_savers import DELETERS
from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import ConfigInvalid, Conflict, NotFound
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Configuration, Tool
from mcpregistry.models.sealing import find_sealed_columns
from mcpregistry.services.access.roles import ROLES
from subagents.models import ExpertTool, ExpertVersion, LanguageModel

VERSIONED: Mapping[type[Model], RecordKind] = {
    kind.model: kind for kind in KINDS if hasattr(kind.model, "history")
}
_DELETED = "-"
VERSION_GONE = "Retention may have deleted it. Choose another version."


def kind_of_version(version: Any) -> RecordKind | None:
    """The kind of record that this is a version of; None where such cannot be put back."""
    return VERSIONED.get(version.instance_type)


def find(label: str, version_id: int) -> Any:
    """A version by its model (``mcpregistry.server``) and number. Raises NotFound."""
    model = next((model for model in VERSIONED if model._meta.label_lower == label), None)
    found = model.history.filter(history_id=version_id).first() if model else None  # type: ignore[attr-defined]
    if found is None:
        raise NotFound(error_texts.say_no_such_number("version", version_id), remedy=VERSION_GONE)
    return found


def live_row(version: Any) -> Any:
    """The record that this is a version of, as it is now; None if it is not there any more."""
    return version.instance_type._default_manager.filter(pk=key_of(version)).first()


def key_of(version: Any) -> Any:
    """The record's own key."""
    return getattr(version, version.instance_type._meta.pk.attname)


def name_version(version: Any) -> str:
    """What people call the record in this version."""
    model = version.instance_type
    row = model(
        **{column.attname: getattr(version, column.attname) for column in version.tracked_fields}
    )
    try:
        return str(row)
    except ObjectDoesNotExist:  # what it is called after is gone
        return f"number {row.pk}"


def item_of(version: Any, others: Collection[Any] = ()) -> DocumentItem:
    """What makes the record what it was in this version; one that is gone gets the key again that
    it had, or is today's of the same name, unless that is one of ``others`` (keys).

    Raises Conflict for a version in which it was deleted, and for a tool that is not there any
    more: its server tells it.
    """
    kind = VERSIONED[version.instance_type]
    live = live_row(version)
    if version.history_type == _DELETED:
        raise Conflict(
            "This version cannot be restored, because it only says that the record was deleted.",
            remedy="Choose an earlier version.",
        )
    if kind.model is Group and (version.name in ROLES or (live is not None and live.name in ROLES)):
        raise Conflict(
            "The permissions of a role are fixed by the installed release, so an earlier version cannot be restored.",
            remedy="Add a group of your own for other permissions.",
        )
    row = _as_it_was(version, live)
    if live is None and (live := _of_that_name(kind, row, others)) is not None:
        row = _as_it_was(version, live)
    if live is None and kind.model is Tool:
        raise Conflict(
            "The tool does not exist any more.",
            remedy="Restore this version after the server has listed the tool again.",
        )
    name = kind.name(live if live is not None else row)
    entry, secrets = _entry(kind, name, version, row, live)
    renamed = live is not None and _restore_name(kind, live, row)
    return DocumentItem(kind, name, live, entry, secrets.found, always=renamed, key=key_of(version))


def is_there(version: Any) -> bool:
    """Whether there is this record, or another one by its name."""
    if live_row(version) is not None:
        return True
    return (
        _of_that_name(VERSIONED[version.instance_type], _as_it_was(version, None), ()) is not None
    )


def removal_of(version: Any) -> DocumentItem:
    """What takes a record away that was made by this version. Raises Conflict where nothing
    does."""
    kind = VERSIONED[version.instance_type]
    live = live_row(version)
    if live is None or kind.section not in DELETERS:
        raise Conflict(
            "The record cannot be deleted here: it no longer exists, or records of its kind are never deleted.",
            remedy="Reload the page of the record to see which actions are possible.",
        )
    return DocumentItem(kind, kind.name(live), live, None)


def list_items_at(moment: datetime) -> Iterator[DocumentItem]:
    """Every record that there was at a time and is not the same still, as it was, in the order in
    which they can be made."""
    missing: set[tuple[type[Model], Any]] = set()  # what does not come back, as (model, key)
    for kind in KINDS:
        if kind.model in VERSIONED:
            versions = _find_counted_versions(kind, moment)
            keys = {key_of(version) for version in versions}
            for version in _not_as_now(kind, versions):
                item = _item_at(version, keys, missing)
                if item is not None:
                    yield item
                if item is None or (item.left_out and live_row(version) is None):
                    missing.add((kind.model, key_of(version)))


def _not_as_now(kind: RecordKind, versions: list[Any]) -> list[Any]:
    """Those of records that are gone or differ in a column; thousands are as they were. All of what
    has lists of other records: these change with what they list."""
    if kind.model is ExpertTool or any(version._history_m2m_fields for version in versions[:1]):
        return versions
    there = kind.model._default_manager.in_bulk([key_of(version) for version in versions])
    return [version for version in versions if not _as_now(version, there.get(key_of(version)))]


def _as_now(version: Any, live: Any) -> bool:
    columns = [column.attname for column in version.tracked_fields]
    return live is not None and all(
        getattr(version, name) == getattr(live, name) for name in columns
    )


def _item_at(
    version: Any, keys: Collection[Any], missing: Collection[tuple[type[Model], Any]]
) -> DocumentItem | None:
    """As ``item_of``; None for a tool that is not there, a note for what hung on something that
    cannot come back."""
    kind = VERSIONED[version.instance_type]
    place = f"{kind.section}/{show_invisible_characters(name_version(version), 100)}"
    lacking = "" if kind.model is Tool else _lacking(version, kind, missing)
    if lacking:
        return DocumentItem(
            kind, place, None, None, left_out=f"{place} is left out: {lacking} no longer exists."
        )
    try:
        return item_of(version, keys)
    except Conflict as error:
        if kind.model is Tool:
            return None
        raise Conflict(f"{place}: {error.message}", remedy=error.remedy) from error


def _lacking(version: Any, kind: RecordKind, missing: Collection[tuple[type[Model], Any]]) -> str:
    """What it hung on that cannot come back; a list without one of its rows would mean another
    thing."""
    for column in kind.fields():
        if _hung_on_what_is_gone(version, column):
            return f"its {column.verbose_name}"
    for column in version._history_m2m_fields:
        if any((column.related_model, key) in missing for key in _keys_listed(version, column)):
            return f"one of its {column.verbose_name}"
    return ""


def _keys_listed(version: Any, column: Any) -> list[Any]:
    through = f"{column.m2m_reverse_field_name()}_id"
    return [getattr(each, through) for each in getattr(version, column.name).all()]


def _hung_on_what_is_gone(version: Any, column: Any) -> bool:
    """On a tool, which only its server tells; or on an account, where it has to be of one."""
    model = column.related_model
    if column.many_to_many or not (model is Tool or (model is User and not column.null)):
        return False
    key = getattr(version, column.attname)
    if key is None or model._default_manager.filter(pk=key).exists():
        return False
    known = _find_record(model, key)
    return known is None or _of_that_name(VERSIONED[model], known, ()) is None


def since(moment: datetime) -> list[tuple[RecordKind, str]]:
    """What is here and was made after that time: it stays."""
    found = []
    for kind, model in (
        (kind, model) for model, kind in VERSIONED.items() if kind.section in DELETERS
    ):
        versions = _find_counted_versions(kind, moment)
        there = {key_of(version) for version in versions}
        rows = list(model._default_manager.exclude(pk__in=there))
        names = {name_version(version) for version in versions} if rows and kind.inside else set()
        found += [(kind, str(row)) for row in rows if str(row) not in names]
    return found


def _find_counted_versions(kind: RecordKind, moment: datetime) -> list[Any]:
    """The newest version of each record at that time, without those that were deleted then."""
    history = kind.model.history  # type: ignore[attr-defined]
    key = kind.model._meta.pk.attname
    newest = history.filter(**{key: OuterRef(key)}, history_date__lte=moment).order_by(
        "-history_date", "-history_id"
    )
    rows = history.filter(history_id=Subquery(newest.values("history_id")[:1])).exclude(
        history_type=_DELETED
    )
    found = list(
        rows.order_by(key)
        if kind.model is not Group
        else rows.exclude(name__in=ROLES).order_by(key)
    )
    if kind.model is Configuration and not found:  # it was as before its first change
        return list(history.order_by("history_date", "history_id")[:1])
    return found


def _of_that_name(kind: RecordKind, row: Any, others: Collection[Any]) -> Any:
    """The row that has the name of this one; None for what has no name, and for one of
    ``others``."""
    found = (
        kind.model._default_manager.filter(**_naming(kind, row)).first() if kind.inside else None
    )
    return None if found is None or found.pk in others else found


def _naming(kind: RecordKind, row: Any) -> dict[str, Any]:
    """The condition that finds a row by its name, which may begin with that of another."""
    found: dict[str, Any] = {}
    for column in kind.inside:
        value = getattr(row, column)
        if (other := VERSIONED.get(type(value))) is None:
            found[column] = value
        else:
            found |= {f"{column}__{inner}": said for inner, said in _naming(other, value).items()}
    return found


# A version as the row that it was


def _as_it_was(version: Any, live: Any) -> Any:
    """Unsaved. What versions leave out (secrets of some kinds, what was observed) is as it is
    now."""
    model = version.instance_type
    kind = VERSIONED[version.instance_type]
    row = model._default_manager.filter(pk=live.pk).first() if live is not None else model()
    # what is approved has a history and a verb of its own
    kept = {"pinned", "latest"} if model is Tool else set()
    for column in version.tracked_fields:
        if column.name not in kept:
            setattr(row, column.attname, getattr(version, column.attname))
    told = {column.name for column in kind.fields()} | kind.inside
    for column in version.tracked_fields:
        if column.name in told and column.is_relation and getattr(row, column.attname) is not None:
            _recall(row, column)
    return row


def _recall(row: Any, column: Any) -> None:
    """Of what the record referred to and is gone, at least the name is known: it is what a refusal
    says."""
    model = column.related_model
    try:
        getattr(row, column.name)
    except ObjectDoesNotExist:
        known = _find_record(model, getattr(row, column.attname))
        if known is None and not (model is User and column.null):
            raise Conflict(
                f'The field "{column.verbose_name}" of this version refers to a record that no longer exists.',
                remedy="Choose another version.",
            ) from None
        setattr(row, column.name, known)


def _find_record(model: Any, key: Any) -> Any:
    """The record of this key; one that is gone as it was last, with what its name begins with.
    None: nothing is known."""
    row = model._default_manager.filter(pk=key).first()
    if row is not None or not hasattr(model, "history"):
        return row
    last = model.history.filter(**{model._meta.pk.attname: key}).first()
    row = last.instance if last else None
    if row is not None and model in WITH:
        _recall(row, model._meta.get_field(WITH[model]))
    return row


def _entry(kind: RecordKind, name: str, version: Any, row: Any, live: Any) -> tuple[Entry, Secrets]:
    """Of a record that is gone, secrets that no version keeps are named, so that whoever puts it
    back is told."""
    secrets = Secrets()
    held = find_sealed_columns(kind.model)
    lost = held.keys() - {column.name for column in version.tracked_fields}
    try:
        entry = kind.entry(name, row, secrets)
    except ConfigInvalid:  # sealed with a key that this site no longer has: those of today stay
        today = live if live is not None else kind.model()
        for column in (*held, "uid"):
            setattr(row, column, getattr(today, column))
        secrets = Secrets()
        lost = set(held)
        entry = kind.entry(name, row, secrets)
    if live is None:
        entry |= {
            held[column]: {"secret": f"{kind.section}/{name}/{held[column]}"}
            for column in sorted(lost)
        }
    for column in version._history_m2m_fields:
        entry[column.name] = _list_names(version, column)
    if kind.model is ExpertTool:
        entry["models"] = _find_models(version)
    return entry, secrets


def _list_names(version: Any, column: Any) -> list[str]:
    """The names in a list of other records, also of those that are gone: without them the list
    would mean another thing."""
    model = column.related_model
    names = []
    keys = _keys_listed(version, column)
    there = model._default_manager.select_related(
        *([WITH[model]] if model in WITH else [])
    ).in_bulk(keys)
    for key in keys:
        row = there.get(key) or _find_record(model, key)
        if row is None:
            raise Conflict(
                f'The field "{column.verbose_name}" of this version refers to a record that no longer exists.',
                remedy="Choose another version.",
            )
        names.append(NAMES[model](row))
    return sorted(names)


def _find_models(version: Any) -> list[str]:
    """The models of an expert tool, which its own numbered versions know: the one that came with
    this version."""
    later = version.instance_type.history.filter(id=version.id, history_id__gt=version.history_id)
    until = later.order_by("history_id").values_list("history_date", flat=True).first()
    numbered = ExpertVersion.objects.filter(expert=version.id).order_by("-number")
    newest = (numbered.filter(created_at__lt=until) if until else numbered).first()
    keys = json.loads(newest.body)["targets"] if newest else []
    names = {
        row.pk: NAMES[LanguageModel](row)
        for row in LanguageModel.objects.filter(pk__in=keys).select_related("provider")
    }
    return [names.get(key, f"model {key}, which no longer exists") for key in keys]


def _restore_name(kind: RecordKind, target: Any, row: Any) -> bool:
    """Give the record its name of then; whether that is another one."""
    own = [each for each in kind.inside if not target._meta.get_field(each).is_relation]
    differ = [each for each in own if getattr(target, each) != getattr(row, each)]
    for each in differ:
        setattr(target, each, getattr(row, each))
    return bool(differ)
