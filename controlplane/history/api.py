"""History over REST: versions of records, one put back, and the whole configuration as of a time.
Importing this adds the operations to the registry's router; what a person may read and put back is
what the pages let them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from django.contrib.auth.models import User
from django.http import HttpRequest
from django.utils import timezone
from ninja import Query, Schema
from pydantic import Field

from controlplane.configuration.record_kinds import RecordKind
from controlplane.history import past_versions, version_lists
from controlplane.history.proposals import (
    Items,
    RestoreProposal,
    carry_out,
    propose,
    reason_at,
    reason_of,
)
from controlplane.history.restore_rights import may_change, may_see
from mcpregistry.api import lookup
from mcpregistry.api.auth import actor, principal
from mcpregistry.api.idempotent_operations import once
from mcpregistry.api.paging import Cursor, Limit, read_page
from mcpregistry.api.permission_router import PermissionRouter
from mcpregistry.api.permissions import TABLE, OperationRule
from mcpregistry.api.schemas.basics import Page, Problem, StrictInput, Text, When, cap_text
from mcpregistry.api.v1 import api
from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import Denied, SlipsnisseError
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.queries.versions import Version

# Which records somebody may read and put back depends on their kind, which is in the request: the
# operations ask further.
_READ = OperationRule("view_configuration")
_SITE = OperationRule("change_configuration")
TABLE.update(
    {
        "GET /history": _READ,
        "GET /history/{kind}/{version_id}": _READ,
        "POST /history/{kind}/{version_id}/restore": _READ,
        "GET /config/as-of": _SITE,
        "POST /config/as-of": _SITE,
    }
)
router = PermissionRouter(tags=["history"])
# characters
_DIFF = 200_000
_VALUE = 2_000
_WORDS: dict[str, Literal["made", "changed", "deleted"]] = {
    "+": "made",
    "~": "changed",
    "-": "deleted",
}
Section = Annotated[Text, Field(max_length=60)]


class ChangeOfField(Schema):
    """One changed field. Secrets and values that may contain secrets are shown as dots."""

    field: str
    before: str
    after: str


class VersionOut(Schema):
    """Who did what to a record, when and from where."""

    id: int = Field(description="Number of the version among the versions of its kind.")
    kind: str = Field(description="Section of the configuration file, for example servers.")
    record: str = Field(
        description="Name of the record in the configuration file, or its number if it has no name."
    )
    what: Literal["made", "changed", "deleted"]
    at: datetime
    by: str | None = Field(
        description="Name of the user. Null if a program or a command made the change."
    )
    source: str = Field(
        description="Where the change came from (admin, REST, a command or the worker), with the reason if there is one."
    )
    changes: list[ChangeOfField] | None = Field(
        description="Differences from the previous version. Null in lists of several records."
    )


class RestoreOut(Schema):
    """What restoring the version would change, or has changed, in the format of `exportconfig
    --all`."""

    saved: bool
    diff: str = Field(
        description="Lines that start with + or -. Empty if there is nothing to change."
    )
    made: list[str]
    changed: list[str]
    removed: list[str]
    notes: list[str] = Field(
        description="What waits for a confirmation after the restore, and which values must be entered again."
    )
    kept: list[str] = Field(
        description="Records that were added after that time. They are not changed."
    )
    shown: str = Field(
        description="Fingerprint of the changes. Send it back to make exactly these changes."
    )


class VersionDetail(VersionOut):
    """One version, and what restoring it would change."""

    proposal: RestoreOut | None = Field(
        description="Null if the version cannot be restored, or you cannot restore it. `problem` contains the reason."
    )
    problem: str


class Restore(StrictInput):
    """``shown``: fingerprint of the proposal that you read. If something else was changed since,
    nothing is changed."""

    shown: Annotated[Text, Field(min_length=1, max_length=100)]


class RestoreSite(Restore):
    """The time, and the proposal that you read."""

    at: When


@router.get("/history", response={200: Page[VersionOut], 404: Problem})
def list_history(
    request: HttpRequest,
    *,
    kind: Annotated[
        Section | None, Query(description="Section of the configuration file, for example servers.")
    ] = None,
    record: Annotated[
        Text | None, Query(max_length=500, description="Name of one record. Requires `kind`.")
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[VersionOut]:
    """List versions, newest first: of one record with its changes, of a kind (with deleted
    records), or of everything.

    Without a kind, there is one page with at most 50 versions.
    """
    if kind is None:
        newest = version_lists.newest(lambda model: may_see(_person(request), model))
        return Page[VersionOut](items=_list_versions(newest[:limit]), next=None)
    of_kind = _kind(request, kind)
    rows = (
        version_lists.rows_of(of_kind)
        if record is None
        else version_lists.of_record(of_kind, record)
    )
    part = read_page(rows, order=("-history_id",), limit=limit, cursor=cursor, show=lambda row: row)
    if record is None or not part.items:
        return Page[VersionOut](items=_list_versions(part.items), next=part.next)
    said = version_lists.in_words(rows.filter(history_id__lte=part.items[0].history_id), limit)
    changes = {each.number: _changes(each) for each in said}
    here = [row for row in part.items if row.history_id in changes]
    return Page[VersionOut](items=_list_versions(here, changes), next=part.next)


@router.get("/history/{kind}/{version_id}", response=VersionDetail)
def get_version(request: HttpRequest, kind: Section, version_id: lookup.Id) -> VersionDetail:
    """Get one version, and what restoring it would change now. This operation changes nothing."""
    row, words = version_lists.one(_kind(request, kind), version_id)
    proposal = None
    problem = ""
    try:
        _check_may_change(request, row)
        proposal = _proposal(
            propose(_items(row), actor=actor(request), user=_person(request)), saved=False
        )
    except SlipsnisseError as error:
        problem = show_invisible_characters(str(error), _VALUE)
    out = _out(row, version_lists.names_of([row])[0]) | {"changes": _changes(words)}
    return VersionDetail(**out, proposal=proposal, problem=problem)


@router.post("/history/{kind}/{version_id}/restore", response={200: RestoreOut, 409: Problem})
@once()
def restore_version(
    request: HttpRequest, kind: Section, version_id: lookup.Id, payload: Restore
) -> RestoreOut:
    """Restore one version. Checks and permissions are those of an edit, and confirmations are
    required again."""
    row, _ = version_lists.one(_kind(request, kind), version_id)
    _check_may_change(request, row)
    return _carry_out(request, _items(row), payload.shown, reason_of(row))


@router.get("/config/as-of", response={200: RestoreOut, 409: Problem})
def propose_site(request: HttpRequest, *, at: When) -> RestoreOut:
    """Show what restoring the whole configuration as of a time would change. This operation changes
    nothing."""
    moment = min(at, timezone.now())
    found = propose(
        lambda: past_versions.list_items_at(moment), actor=actor(request), user=_person(request)
    )
    return _proposal(found, saved=False, kept=_since(moment))


@router.post("/config/as-of", response={200: RestoreOut, 409: Problem})
@once()
def restore_site(request: HttpRequest, payload: RestoreSite) -> RestoreOut:
    """Restore the whole configuration as of a time, in one transaction, exactly as it was shown."""
    moment = min(payload.at, timezone.now())
    return _carry_out(
        request,
        lambda: past_versions.list_items_at(moment),
        payload.shown,
        reason_at(moment),
        kept=_since(moment),
    )


def _person(request: HttpRequest) -> User:
    user = principal(request).user
    assert user is not None  # no rule of these operations lets an agent in
    return user


def _kind(request: HttpRequest, section: str) -> RecordKind:
    kind = version_lists.kind_named(section)
    if not may_see(_person(request), kind.model):
        raise Denied(
            error_texts.say_not_permitted("view", kind.section),
            remedy="Ask an administrator for a role with this permission.",
        )
    return kind


def _check_may_change(request: HttpRequest, row: Any) -> None:
    if not may_change(_person(request), row.instance_type):
        what = version_lists.section_of(row)
        raise Denied(
            error_texts.say_not_permitted("change", what),
            remedy="Ask an administrator for a role with this permission.",
        )


def _items(row: Any) -> Items:
    return lambda: [version_lists.item_of(row)]


def _carry_out(
    request: HttpRequest, items: Items, shown: str, reason: str, kept: Iterable[str] = ()
) -> RestoreOut:
    done = carry_out(items, actor=actor(request), user=_person(request), shown=shown, reason=reason)
    return _proposal(done, saved=True, kept=kept)


def _since(moment: datetime) -> list[str]:
    return [
        f"{kind.section}: {show_invisible_characters(name, 100)}"
        for kind, name in past_versions.since(moment)
    ]


def _proposal(found: RestoreProposal, *, saved: bool, kept: Iterable[str] = ()) -> RestoreOut:
    report = found.report
    diff = "" if found.empty else cap_text("\n".join(found.lines), _DIFF)
    return RestoreOut(
        saved=saved,
        diff=diff,
        made=report.made,
        changed=report.changed,
        removed=report.removed,
        notes=[show_invisible_characters(note, _VALUE) for note in report.notes],
        kept=[*kept],
        shown=found.shown,
    )


def _list_versions(
    rows: list[Any], changes: Mapping[int, list[ChangeOfField]] | None = None
) -> list[VersionOut]:
    names = version_lists.names_of(rows)
    known = changes or {}
    return [
        VersionOut(**_out(row, name), changes=known.get(row.history_id))
        for row, name in zip(rows, names, strict=True)
    ]


def _out(row: Any, name: str) -> dict[str, Any]:
    return {
        "id": row.history_id,
        "kind": version_lists.section_of(row),
        "record": name,
        "what": _WORDS[row.history_type],
        "at": row.history_date,
        "by": row.history_user.get_username() if row.history_user else None,
        "source": row.history_change_reason or "",
    }


def _changes(words: Version) -> list[ChangeOfField]:
    cut = [
        (field, cap_text(before, _VALUE), cap_text(after, _VALUE))
        for field, before, after in words.changes
    ]
    return [ChangeOfField(field=field, before=before, after=after) for field, before, after in cut]


api.add_router("", router)
