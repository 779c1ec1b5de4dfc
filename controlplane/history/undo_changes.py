"""Undo, for a minute: what a person has just done is taken back, unless somebody has changed the
same since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from controlplane.configuration.document_import import DocumentItem, DocumentReport, put
from controlplane.configuration.record_savers import DELETERS
from controlplane.history import past_versions
from controlplane.history.proposals import in_order
from controlplane.history.restore_rights import check, requirements
from controlplane.history.version_recording import LATEST, set_reason
from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import Conflict, NotFound
from mcpregistry.domain.text.display import name_with_kind, show_invisible_characters
from mcpregistry.domain.text.undo_texts import MOST
from mcpregistry.models.sealing import find_sealed_columns
from mcpregistry.models.server import Lifecycle

FOR = timedelta(minutes=1)
_SEE_HISTORY = "See the history of the record, and restore an earlier version if necessary."
# Deleted, these take along what no version has: members, tokens, books, what a server tells.
_TAKES_ALONG = {"roles", "tools", "agents", "budgets", "energy_pools", "registries"}
Made = Sequence[tuple[str, int]]  # (model, version) of each that an action has made


def can_be_undone(versions: Sequence[Any]) -> bool:
    """Whether all that an action has changed can be taken back by itself."""
    return 0 < len(versions) <= MOST and all(_can(version) for version in versions)


def _can(version: Any) -> bool:
    kind = past_versions.kind_of_version(version)
    if kind is None:
        return False
    if version.history_type == "+":
        return kind.section in DELETERS
    before = version.prev_record
    if before is None or (version.history_type == "-" and kind.section in _TAKES_ALONG):
        return False
    return version.history_type == "-" or _differ(kind, before, version)


def _differ(kind: Any, before: Any, after: Any) -> bool:
    """In something that putting the version back would set; not, for one, in what people
    confirm."""
    wanted = (
        {column.name for column in kind.fields()}
        | {*find_sealed_columns(kind.model)}
        | {*kind.inside}
    )
    switched = [
        getattr(version, "lifecycle", None) == Lifecycle.DISABLED for version in (before, after)
    ]
    return switched[0] != switched[1] or any(
        getattr(before, column.attname) != getattr(after, column.attname)
        for column in before.tracked_fields
        if column.name in wanted
    )


@dataclass(frozen=True)
class Latest:
    """What a person has just done, in words, and for how many seconds it can still be taken back;
    ``at`` tells it from what they do next."""

    words: str
    seconds: int
    at: str


def latest(session: Mapping[str, Any], now: datetime) -> Latest | None:
    """What the session's last action was, while it can be undone."""
    kept = session.get(LATEST)
    left = kept["at"] + FOR.total_seconds() - now.timestamp() if kept else 0
    if not kept or left <= 0 or len(kept["made"]) > MOST:
        return None
    try:
        versions = [past_versions.find(label, number) for label, number in kept["made"]]
    except NotFound:  # it was taken back by the database
        return None
    if not can_be_undone(versions):
        return None
    named = list(dict.fromkeys(_describe_version(version) for version in versions))
    more = f" and {len(named) - 2} more" if len(named) > 2 else ""
    said = f"{', '.join(named[:2])}{more}."
    return Latest(said[0].upper() + said[1:], int(left), identity(kept))


def identity(kept: Mapping[str, Any]) -> str:
    """By which the form of the button says what it takes back."""
    return repr(kept["at"])


def _describe_version(version: Any) -> str:
    verb = {"+": "created", "~": "changed", "-": "deleted"}[version.history_type]
    return f"{name_with_kind(version.instance_type._meta.verbose_name, show_invisible_characters(past_versions.name_version(version), 60))} {verb}"


@transaction.atomic
def undo(*, made: Made, at: datetime, user: User, actor: str, now: datetime) -> DocumentReport:
    """Take an action back. Raises Conflict where something was changed since, or the minute is
    over; Denied where the person may not do the opposite."""
    if now - at > FOR:
        raise Conflict(
            "This change can no longer be undone, because it was made more than one minute ago.",
            remedy="Restore an earlier version from the history of the record.",
        )
    versions = [past_versions.find(label, number) for label, number in made]
    if not can_be_undone(versions):
        raise Conflict(
            "This change cannot be undone in one step.",
            remedy="In the history of each changed record, restore an earlier version.",
        )
    first, last = _ends(versions)
    for version in last.values():
        _check(version, user)
    items = in_order(map(_item, first.values()))
    check(user, requirements(items))
    with set_reason("undone"):
        return put(items, actor=actor, rights=user.has_perm)


def _ends(versions: Sequence[Any]) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """The first and the last version of each record, by record."""
    first: dict[Any, Any] = {}
    last: dict[Any, Any] = {}
    for version in versions:
        key = version.instance_type, past_versions.key_of(version)
        first.setdefault(key, version)
        last[key] = version
    return first, last


def _check(version: Any, user: User) -> None:
    model = version.instance_type
    row = (
        model._default_manager.select_for_update(of=("self",))
        .filter(pk=past_versions.key_of(version))
        .first()
    )
    newest = model.history.filter(**{model._meta.pk.attname: past_versions.key_of(version)}).first()
    if newest is None or newest.history_id != version.history_id:
        what = model._meta.verbose_name
        raise Conflict(
            f'The {what} "{row or version}" was changed again after this change.',
            remedy=_SEE_HISTORY,
        )
    if version.history_user_id != user.pk:
        raise Conflict("This change was made by another user.", remedy=_SEE_HISTORY)
    if version.history_type == "-" and past_versions.is_there(version):
        raise Conflict(
            error_texts.say_already_exists(
                str(model._meta.verbose_name), past_versions.name_version(version)
            ),
            remedy="The record was added again after it was deleted. See its page.",
        )


def _item(version: Any) -> DocumentItem:
    return (
        past_versions.removal_of(version)
        if version.history_type == "+"
        else past_versions.item_of(version.prev_record)
    )
