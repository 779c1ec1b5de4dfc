"""What putting something back would change, shown before it counts; and that exactly this is then
done."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction

from controlplane.configuration.document_import import DocumentItem, DocumentReport, put
from controlplane.configuration.document_values import Secrets
from controlplane.configuration.record_kinds import KINDS, RecordKind
from controlplane.history.restore_rights import Person, check, requirements
from controlplane.history.version_recording import collect_versions, set_reason
from mcpregistry.domain.caller_rights import grant_all_rights
from mcpregistry.domain.errors import Conflict
from mcpregistry.domain.formats import text
from mcpregistry.domain.text.canonical import encode_lossy_json, hash_parts

Items = Callable[
    [], Iterable[DocumentItem]
]  # they are read anew each time: trying them changes them
_ORDER = {kind.section: number for number, kind in enumerate(KINDS)}
_CONTEXT = 3  # lines around a difference
Records = dict[str, list[str]]  # the lines of each record, by its section and name
# What stands before the name of a record that is there now and then, only then, only now.
MARKS = {(True, True): "@", (False, True): "+", (True, False): "-"}


@dataclass(frozen=True)
class RestoreProposal:
    """``lines``: the difference of each record under its name, in the words of the site's document,
    secrets by name; ``report``: what would be made and changed, with what then waits for a person;
    ``shown``: the fingerprint of all that.
    """

    lines: list[str]
    report: DocumentReport
    shown: str

    @property
    def empty(self) -> bool:
        """Whether everything is so already."""
        return not (self.report.made or self.report.changed or self.report.removed)


def propose(items: Items, *, actor: str, user: Person | None = None) -> RestoreProposal:
    """Try it, keep nothing of it, and say what it would do. Raises ConfigInvalid for what cannot be
    so any more, Denied where ``user`` may not do it."""
    with collect_versions():
        return _run_proposal(items, actor, user, save=False)


def carry_out(
    items: Items, *, actor: str, shown: str, reason: str, user: Person | None = None
) -> RestoreProposal:
    """Do exactly what was shown. Raises Conflict, and changes nothing, where by now it would be
    something else; else as ``propose``."""
    with transaction.atomic(), set_reason(reason):
        proposal = _run_proposal(items, actor, user, save=True)
        if proposal.shown != shown:
            raise Conflict(
                "The configuration was changed after these changes were shown.",
                remedy="Show the changes again.",
            )
    return proposal


def reason_of(version: Any) -> str:
    """What versions say that are made by putting this one back."""
    return f"restored the version of {version.history_date:%Y-%m-%d %H:%M}"


def reason_at(moment: datetime) -> str:
    """What versions say that are made by putting the whole site back."""
    return f"restored the site as of {moment:%Y-%m-%d %H:%M}"


def _run_proposal(items: Items, actor: str, user: Person | None, *, save: bool) -> RestoreProposal:
    ordered = in_order(items())
    required = [] if user is None else requirements(ordered)
    kinds = [kind for kind in KINDS if any(item.kind is kind for item in ordered)]
    before = _read_records(kinds)
    seen: list[tuple[Records, dict[str, Any]]] = []
    rights = grant_all_rights if user is None else user.has_perm
    report = put(
        ordered,
        actor=actor,
        rights=rights,
        save=save,
        after=lambda: seen.append(_read_records(kinds)),
    )
    if user is not None:
        touched = {*report.made, *report.changed, *report.removed}
        check(
            user, [each for each in required if f"{each[0].kind.section}/{each[0].name}" in touched]
        )
    after = seen[0] if seen else before
    lines = [*_lines(before[0], after[0]), *_secrets(before[1], after[1])]
    return RestoreProposal(
        lines,
        report,
        hash_parts(
            "proposal", encode_lossy_json([lines, report.made, report.changed, report.removed])
        ),
    )


def in_order(items: Iterable[DocumentItem]) -> list[DocumentItem]:
    """As they can be done: what is removed first, what others hang on last; what is made in the
    document's order."""
    return sorted(items, key=_place)


def _place(item: DocumentItem) -> tuple[int, int]:
    number = _ORDER[item.kind.section]
    return (0, -number) if item.entry is None else (1, number)


def _read_records(kinds: Sequence[RecordKind]) -> tuple[Records, dict[str, Any]]:
    """The document's lines about each record of these kinds, and the secrets that they name."""
    secrets = Secrets()
    records = {
        f"{kind.section}: {name}": _dump_lines(kind.entry(name, row, secrets))
        for kind in kinds
        for name, row in kind.all()
    }
    return records, secrets.found


def _dump_lines(entry: Any) -> list[str]:
    return text.dump(entry, as_yaml=True).splitlines() if entry else []


def _lines(before: Records, after: Records) -> list[str]:
    lines: list[str] = []
    for name in [*after, *(each for each in before if each not in after)]:
        changed = _difference(before.get(name, []), after.get(name, []))
        if changed or (name in before) != (name in after):
            lines += [f"{MARKS[name in before, name in after]} {name}", *changed]
    return lines


def _difference(before: list[str], after: list[str]) -> list[str]:
    found = [*difflib.unified_diff(before, after, n=_CONTEXT, lineterm="")][2:]
    return [" …" if line.startswith("@@") else f"{line[0]}    {line[1:]}" for line in found][1:]


def _secrets(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """That a secret would be another one is said, what it is is not."""
    return [
        f"! {name}: different value"
        for name in sorted(before.keys() & after.keys())
        if before[name] != after[name]
    ]
