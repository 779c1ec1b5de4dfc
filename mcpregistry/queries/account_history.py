"""What the audit log tells of a person's account, in the words of other records' histories. Nothing
of it can be put back."""

from __future__ import annotations

import json
from typing import Any

from django.contrib.auth.models import User
from django.utils.translation import gettext_lazy as _

from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import AuditEntry
from mcpregistry.queries.versions import Change, Version

_SHOWN = 100
_NAMES = 10  # that an account had before, at most
_ENTRY = {"writer", "seq", "at", "kind", "actor", "subject"}
_WORDS = {
    "user.created": _("Added"),
    "user.changed": _("Changed"),
    "user.password_changed": _("Password changed"),
    "user.deleted": _("Deleted"),
    "user.roles_given": _("Roles added"),
    "user.roles_taken": _("Roles removed"),
    "user.permissions_given": _("Permissions added"),
    "user.permissions_taken": _("Permissions removed"),
}


def list_account_history(user: User) -> list[Version]:
    """The newest entries about an account, also under names that it had before; roles and groups
    are among them."""
    subjects = {_subject(user.get_username())}
    for _round in range(_NAMES):
        if not (earlier := _find_earlier_names(subjects) - subjects):
            break
        subjects |= earlier
    rows = AuditEntry.objects.filter(subject__in=subjects).order_by("-id")[:_SHOWN]
    return [_describe_entry(row, json.loads(row.body)) for row in rows]


def _subject(name: str) -> str:
    return f"user:{show_invisible_characters(name, 150)}"


def _find_earlier_names(subjects: set[str]) -> set[str]:
    renamed = AuditEntry.objects.filter(subject__in=subjects, kind="user.changed").order_by("-id")[
        :_SHOWN
    ]
    pairs = [json.loads(row.body).get("username") for row in renamed]
    return {_subject(pair[0]) for pair in pairs if isinstance(pair, list)}


def _describe_entry(row: AuditEntry, body: dict[str, Any]) -> Version:
    facts = [(name, value) for name, value in body.items() if name not in _ENTRY]
    what = str(_WORDS.get(row.kind) or row.kind.replace("_", " ").replace(".", " ").capitalize())
    return Version(
        row.pk,
        row.at,
        row.actor,
        "",
        what,
        [_change(name, value, row.kind) for name, value in facts],
    )


def _change(name: str, value: Any, kind: str) -> Change:
    label = name.removeprefix("is_").replace("_", " ")
    if kind == "user.changed" and isinstance(value, list) and len(value) == 2:
        return label, _word(value[0]), _word(value[1])
    words = ", ".join(map(_word, value)) if isinstance(value, list) else _word(value)
    return (label, words, "") if kind.endswith("_taken") else (label, "", words)


def _word(value: Any) -> str:
    return (
        {True: "yes", False: "no", None: ""}[value]
        if isinstance(value, bool | None)
        else str(value)
    )
