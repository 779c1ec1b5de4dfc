"""Versions of records in words: who changed which field when and from where; that a secret changed
is told, what it held is not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from django.contrib.auth.models import Permission
from django.db import models
from django.utils import formats
from django.utils.timezone import localtime
from django.utils.translation import gettext as _

from mcpregistry.domain.servers.redacted_env import mask_record_secrets
from mcpregistry.models.sealing import find_sealed_columns

_SHOWN = 100
_DIGEST = re.compile(r"[0-9a-f]{64}")
Field: TypeAlias = "models.Field[Any, Any]"
Change = tuple[str, str, str]  # field, before, after
Say: TypeAlias = "Callable[[Field, Any], str]"
Name: TypeAlias = "Callable[[Field], str]"


@dataclass(frozen=True)
class Version:
    """One version against the one before; ``number`` is its own, among those of the model."""

    number: int
    at: datetime
    by: Any
    whence: str
    what: str
    changes: list[Change]


def column_of(field: Field) -> str:
    """A field's name for programs, as in the configuration file."""
    return str(field.name)


def label_of(field: Field) -> str:
    """A field's name on pages."""
    return str(field.verbose_name)


def plain(field: Field, value: Any) -> str:
    """A value as programs read it, without what is secret in a command or an address."""
    return "" if value is None else str(mask_record_secrets({field.name: value})[field.name])


def readable(field: Field, value: Any) -> str:
    """A value as the pages of its record show it: times as everywhere on the site, digests by their
    beginning."""
    if isinstance(value, datetime):
        return formats.localize(localtime(value))
    if field.is_relation and field.related_model and value is not None:
        return str(
            field.related_model._default_manager.filter(pk=value).first() or _("a deleted record")
        )
    said = plain(field, value)
    return f"{said[:12]}…" if _DIGEST.fullmatch(said) else said


def versions(row: Any) -> list[Version]:
    """The newest versions of a record, for its page; none where none are kept."""
    history = getattr(row, "history", None)
    return (
        []
        if history is None
        else describe_versions(
            list(history.select_related("history_user")[: _SHOWN + 1]), _SHOWN, readable, label_of
        )
    )


def describe_versions(
    found: Sequence[Any], most: int, say: Say = plain, name: Name = column_of
) -> list[Version]:
    """Versions of one record, newest first, in words; those beyond ``most`` only say what the last
    one changed. Without those in which nothing changed that a person sets."""
    _read_lists(found)
    # of a row that was made before there were versions
    pairs = zip(found, [*found[1:], None], strict=False)
    return [
        Version(
            number=new.history_id,
            at=new.history_date,
            by=new.history_user,
            whence=new.history_change_reason or "",
            what=new.get_history_type_display(),
            changes=changes,
        )
        for new, old in list(pairs)[:most]
        if (changes := _changes(old, new, say, name)) is not None
    ]


def _read_lists(found: Sequence[Any]) -> None:
    """Put the names in each version's lists of other records to it, of all versions at once."""
    for each in found:
        each.names_listed = {field: set() for field in each._history_m2m_fields}
    by_id = {each.history_id: each for each in found}
    for field in found[0]._history_m2m_fields if found else ():
        name = field.m2m_reverse_field_name()
        whole = (name, f"{name}__content_type") if field.related_model is Permission else (name,)
        rows = getattr(found[0], field.name).model._default_manager.filter(history__in=by_id)
        for row in rows.select_related(*whole):
            by_id[row.history_id].names_listed[field].add(
                str(getattr(row, name) or _("a deleted record"))
            )


def _changes(old: Any, new: Any, say: Say, name: Name) -> list[Change] | None:
    """What differs between two versions; None when nothing that a person sets has changed, and
    nothing was made or deleted."""
    if old is None or new.history_type == "-":
        return []
    # Not ``diff_against``: it leaves out what no form edits, such as the lifecycle and sealed
    # secrets.
    differ = [f for f in new.tracked_fields if getattr(old, f.attname) != getattr(new, f.attname)]
    secrets = find_sealed_columns(new.instance_type)
    found: list[Change] = []
    for f in differ:
        if f.name in secrets:
            secret = secrets[f.name]
            shown = secret if name is column_of else secret.replace("_", " ")
            found.append((shown, "•••", "•••"))
        else:
            values = [say(f, getattr(version, f.attname)) for version in (old, new)]
            found.append((name(f), values[0], values[1]))
    found += _list_differences(old.names_listed, new.names_listed, name)
    return found if found or new.history_type == "+" else None


def _list_differences(
    old: dict[Any, set[str]], new: dict[Any, set[str]], name: Name
) -> Iterator[Change]:
    """Of lists of other records only what differs: what is gone from each, and what came."""
    for field, names in new.items():
        gone = sorted(old[field] - names)
        came = sorted(names - old[field])
        if gone or came:
            label = _("%(field)s (differences)") % {"field": name(field)}
            yield label, ", ".join(gone), ", ".join(came)
