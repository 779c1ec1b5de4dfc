"""Records that are deleted together with the record that they are about.

A rule, a grant or a budget often belongs to somebody with more rights than the person who deletes
its server, agent or endpoint. So a person can only delete a record if they may also delete each of
these, and each of these gets its own entry in the audit log. The database deletes them
(``CASCADE``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.db.models import CASCADE, ForeignKey, Model, Q
from django.utils import timezone

from mcpregistry.domain.caller_rights import Rights
from mcpregistry.domain.errors import Conflict
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.extensions import list_extensions
from mcpregistry.models import Budget, Channel, Grant, Permit, PolicyRule, Server, Token, Workspace
from mcpregistry.services.records import audit

_NAMED = 5  # records that a refusal names


def _match_all_rows() -> Q:
    return Q()


def _make_no_facts(_row: Any) -> dict[str, Any]:
    return {}


def _match_usable_permits() -> Q:
    return Q(revoked_at=None, expires_at__gt=timezone.now()) & ~Q(uses_left=0)


def _match_usable_tokens() -> Q:
    return Q(revoked_at=None) & (Q(expires_at=None) | Q(expires_at__gt=timezone.now()))


@dataclass(frozen=True, slots=True)
class DependentKind:
    """A kind of record whose deletion needs a right of its own.

    ``permission``: that right. ``event``, ``subject`` and ``facts``: its entry in the audit log.
    ``counting``: which rows still have an effect; the others are deleted without a check and
    without an entry.
    """

    model: type[Model]
    permission: str
    event: str
    subject: Callable[[Any], str]
    counting: Callable[[], Q] = _match_all_rows
    facts: Callable[[Any], dict[str, Any]] = _make_no_facts


_OWN_KINDS = (
    DependentKind(
        PolicyRule, "mcpregistry.delete_policyrule", "rule.deleted", lambda row: f"rule:{row.pk}"
    ),
    DependentKind(Grant, "mcpregistry.delete_grant", "grant.withdrawn", lambda row: f"grant:{row}"),
    DependentKind(
        Permit,
        "mcpregistry.decide_approval",
        "permit.revoked",
        lambda row: f"permit:{row.pk}",
        _match_usable_permits,
    ),
    DependentKind(
        Budget,
        "mcpregistry.delete_budget",
        "budget.deleted",
        lambda row: f"budget:{row.slug}",
        facts=lambda row: {"book": row.book_name},
    ),
    DependentKind(
        Token,
        "mcpregistry.delete_token",
        "token.revoked",
        lambda row: f"agent:{row.agent}",
        _match_usable_tokens,
    ),
    DependentKind(
        Workspace,
        "mcpregistry.delete_workspace",
        "workspace.deleted",
        lambda row: f"workspace:{row.directory}",
    ),
)


def _list_kinds() -> Iterator[DependentKind]:
    yield from _OWN_KINDS
    for extension in list_extensions():
        yield from extension.dependent_kinds


def list_dependent_models() -> set[type[Model]]:
    """The models whose rows are only deleted along by whoever may delete them."""
    return {kind.model for kind in _list_kinds()}


@cache
def find_cascade_paths(model: type[Model], target: type[Model]) -> tuple[str, ...]:
    """The ways by which a row of ``model`` is deleted with one of ``target``, as lookups, for
    example ``tool__server``."""
    found: list[str] = []
    for column in model._meta.concrete_fields:
        if (
            isinstance(column, ForeignKey)
            and column.remote_field.on_delete is CASCADE
            and column.related_model != model
        ):
            related: Any = column.related_model
            if related is target:
                found.append(column.name)
            found += [f"{column.name}__{path}" for path in find_cascade_paths(related, target)]
    return tuple(found)


def find_dependents(
    row: Model, *, own: Collection[type[Model]] = ()
) -> list[tuple[DependentKind, Any]]:
    """Find the records that would be deleted with this one and need a right of their own.

    ``own``: models whose rows are part of the record, such as the whitelist of an expert tool.
    """
    found: list[tuple[DependentKind, Any]] = []
    for kind in _list_kinds():
        paths = () if kind.model in own else find_cascade_paths(kind.model, type(row))
        if paths:
            hanging = Q()
            for path in paths:
                hanging |= Q(**{path: row.pk})
            rows = kind.model._base_manager.filter(hanging, kind.counting()).order_by("pk")
            found += [(kind, each) for each in rows]
    return found


def name_dependents(found: Iterable[tuple[DependentKind, Any]]) -> list[str]:
    """Return the kind and the name of each record."""
    return [
        f"{kind.model._meta.verbose_name} '{show_invisible_characters(str(row), 100)}'"
        for kind, row in found
    ]


def end_dependents(
    row: Model, *, actor: str, rights: Rights, own: Collection[type[Model]] = ()
) -> None:
    """Write the audit entries of the records that are deleted with this one. Call it in the
    transaction that deletes it.

    Raises Conflict, which names the records, if ``rights`` does not cover one of them.
    """
    _lock(row)
    found = find_dependents(row, own=own)
    if kept := [(kind, each) for kind, each in found if not rights(kind.permission)]:
        raise _make_refusal(row, kept)
    what = f"{row._meta.model_name}:{row}"
    for kind, each in found:
        facts = kind.facts(each) | {"name": str(each), "deleted_with": what}
        audit.record_entry(kind=kind.event, actor=actor, subject=kind.subject(each), **facts)
    rules = [each.pk for kind, each in found if kind.model is PolicyRule]
    switch_off_channels(server=row if isinstance(row, Server) else None, rules=rules, actor=actor)


def _make_refusal(row: Model, kept: list[tuple[DependentKind, Any]]) -> Conflict:
    names = name_dependents(kept)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    needed = ", ".join(sorted({kind.permission.partition(".")[2] for kind, _ in kept}))
    return Conflict(
        f"You do not have permission to delete the {row._meta.verbose_name} '{show_invisible_characters(str(row), 100)}' together with "
        f"{', '.join(names[:_NAMED])}{more}.",
        remedy=f"Ask an administrator to delete it (needed permissions: {needed}), or disable it instead.",
    )


def _lock(row: Model) -> None:
    """Lock the record, so that no transaction can add a dependent between the check and the
    deletion."""
    model = type(row)
    locked: set[tuple[Any, str]] = {(model, "pk")}
    for kind in _list_kinds():
        for path in find_cascade_paths(kind.model, model):
            column, _, rest = path.partition("__")
            if rest:
                locked.add((kind.model._meta.get_field(column).related_model, rest))
    for related, condition in sorted(locked, key=lambda each: each[0]._meta.label):
        rows = related._base_manager.filter(**{condition: row.pk}).order_by("pk")
        list(rows.select_for_update().values_list("pk", flat=True))


def switch_off_channels(
    *, server: Server | None = None, rules: Collection[int] = (), actor: str
) -> None:
    """Disable the channels that are limited to what is deleted: with an empty list they would be
    sent every event."""
    limits = [("rules", {*rules})] + ([("servers", {server.pk})] if server is not None else [])
    for column, gone in limits:
        for channel in Channel.objects.filter(enabled=True, **{f"{column}__in": gone}).distinct():
            if {each.pk for each in getattr(channel, column).all()} <= gone:
                channel.enabled = False
                channel.save()
                audit.record_entry(
                    kind="channel.changed",
                    actor=actor,
                    subject=f"channel:{channel.name}",
                    enabled=False,
                    reason=f"all {column} to which the channel was limited were deleted",
                )
