"""``manage.py history``: versions of records, one put back, and the whole configuration as of a
time."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone
from django.utils.dateparse import parse_datetime

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
from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import ConfigInvalid, Conflict, NotFound, SlipsnisseError
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.queries.versions import Version

ACTOR = "manage.py history"
_LINE = 600  # characters
_VALUE = 200
_NONE = "No versions yet. Each change creates a version."


class Command(BaseCommand):
    """Prints versions, and what putting one back would change; with ``--apply`` it does that."""

    help = (
        "Shows versions of the configuration: of one record (for example servers/git), or the newest of all records. "
        "Restores one version, or the configuration of the whole site as it was at a given time. Without --apply, it only shows what would "
        "change."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "record",
            nargs="?",
            default="",
            metavar="KIND[/NAME]",
            help="Kind and name as in `exportconfig --all`, for example servers/git or rules. Default: all records.",
        )
        what = parser.add_mutually_exclusive_group()
        what.add_argument(
            "--show",
            type=int,
            metavar="NUMBER",
            help="Show one version, and what restoring it would change.",
        )
        what.add_argument(
            "--restore", type=int, metavar="NUMBER", help="Restore the version with this number."
        )
        what.add_argument(
            "--as-of",
            metavar="TIME",
            help="Restore the whole configuration as it was at this time, for example 2026-11-21T12:00, in the time zone of the site.",
        )
        parser.add_argument(
            "--apply", action="store_true", help="With --restore or --as-of: make the changes."
        )
        parser.add_argument(
            "--limit",
            type=int,
            default=20,
            metavar="N",
            help="Maximum number of versions to show. Default: 20.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            self._answer(options)
        except SlipsnisseError as error:
            raise CommandError(show_invisible_characters(str(error), 2_000)) from error

    def _answer(self, options: dict[str, Any]) -> None:
        number = options["restore"] if options["show"] is None else options["show"]
        if options["apply"] and options["restore"] is None and not options["as_of"]:
            raise ConfigInvalid(
                "--apply requires --restore or --as-of.",
                remedy="Add --restore NUMBER or --as-of TIME.",
            )
        section, _, name = options["record"].partition("/")
        if options["as_of"]:
            if section:
                raise ConfigInvalid(
                    "--as-of applies to the whole site, not to one record.",
                    remedy="Leave out the record, or use --restore.",
                )
            self._print_site(_moment(options["as_of"]), apply=options["apply"])
        elif number is not None:
            if not section:
                raise ConfigInvalid(
                    "The kind of record is missing. Each kind has its own version numbers.",
                    remedy="Add the kind or the record to the command, for example servers or servers/git.",
                )
            self._print_version(version_lists.kind_named(section), name, number, options)
        elif not section:
            self._print_list(version_lists.newest(lambda model: True)[: _most(options)])
        elif not name and section != "configuration":
            self._print_list(
                list(version_lists.rows_of(version_lists.kind_named(section))[: _most(options)])
            )
        else:
            kind = version_lists.kind_named(section)
            self._print_record(
                version_lists.in_words(version_lists.of_record(kind, name), _most(options))
            )

    def _print_list(self, rows: Sequence[Any]) -> None:
        for row, name in zip(rows, version_lists.names_of(rows), strict=True):
            who = f"{row.history_user or 'the site'}, {show_invisible_characters(row.history_change_reason or '', 100)}".rstrip(
                ", "
            )
            what = row.get_history_type_display().lower()
            place = f"{version_lists.section_of(row)}/{show_invisible_characters(name, _VALUE)}"
            self.stdout.write(
                f"{_time(row.history_date)}  {row.history_id:>6}  {place}: {what} ({who})"
            )
        if not rows:
            self.stdout.write(_NONE)

    def _print_record(self, versions: Sequence[Version]) -> None:
        for each in versions:
            self._tell(each)
        if not versions:
            self.stdout.write(_NONE)

    def _tell(self, version: Version) -> None:
        whence = f", {show_invisible_characters(version.whence, 100)}" if version.whence else ""
        who = f"{version.by or 'the site'}{whence}"
        self.stdout.write(
            f"{_time(version.at)}  {version.number:>6}  {version.what.lower()} ({who})"
        )
        for field, before, after in version.changes:
            told = [
                show_invisible_characters(value, _VALUE) or "empty" for value in (before, after)
            ]
            self.stdout.write(
                f"{'':29}{show_invisible_characters(field, 100)}: {told[0]} -> {told[1]}"
            )

    def _print_version(
        self, kind: RecordKind, name: str, number: int, options: dict[str, Any]
    ) -> None:
        row, words = version_lists.one(kind, number)
        if name and not version_lists.of_record(kind, name).filter(history_id=number).exists():
            raise NotFound(
                f'Version {number} of {kind.section} belongs to "{show_invisible_characters(version_lists.names_of([row])[0], _VALUE)}", not to '
                f'"{show_invisible_characters(name, _VALUE)}".',
                remedy=error_texts.advise_list(
                    f"`manage.py history {kind.section}/{show_invisible_characters(name, _VALUE)}`"
                ),
            )
        if options["show"] is not None:
            self._tell(words)
        try:
            self._put_back(
                lambda: [version_lists.item_of(row)], reason_of(row), apply=options["apply"]
            )
        except Conflict as error:
            if options["show"] is None:
                raise
            self.stdout.write(
                f"This version cannot be restored: {show_invisible_characters(str(error), 2_000)}"
            )

    def _print_site(self, moment: datetime, *, apply: bool) -> None:
        for kind, name in past_versions.since(moment):
            self.stdout.write(
                f"{kind.section}/{show_invisible_characters(name, 100)} was added later and is kept."
            )
        self._put_back(lambda: past_versions.list_items_at(moment), reason_at(moment), apply=apply)

    def _put_back(self, items: Items, reason: str, *, apply: bool) -> None:
        """Say what would change; with ``apply`` do exactly that."""
        proposal = propose(items, actor=ACTOR)
        self._print(proposal)
        if proposal.empty:
            self.stdout.write("There is nothing to change.")
        elif not apply:
            self.stdout.write(
                "Nothing was changed. To make these changes, use --restore or --as-of with --apply."
            )
        else:
            carry_out(items, actor=ACTOR, shown=proposal.shown, reason=reason)
            report = proposal.report
            parts = (
                (report.changed, "changed"),
                (report.made, "added again"),
                (report.removed, "deleted"),
            )
            self.stdout.write(
                f"Restored: {', '.join(f'{len(rows)} {word}' for rows, word in parts if rows)}."
            )

    def _print(self, proposal: RestoreProposal) -> None:
        for line in [] if proposal.empty else proposal.lines:
            self.stdout.write(show_invisible_characters(line, _LINE))
        for note in proposal.report.notes:
            self.stderr.write(show_invisible_characters(note, _LINE))


def _most(options: dict[str, Any]) -> int:
    return int(min(max(options["limit"], 1), 1_000))


def _time(at: datetime) -> str:
    return f"{timezone.localtime(at):%Y-%m-%d %H:%M:%S}"


def _moment(text: str) -> datetime:
    """A time as people type it; without a zone it is the site's. Raises ConfigInvalid."""
    try:
        found = parse_datetime(text)
    except ValueError:
        found = None
    if found is None:
        raise ConfigInvalid(
            error_texts.say_not_valid(show_invisible_characters(text, 60), "a valid time"),
            remedy=error_texts.advise_form("the ISO format", "2026-11-21T12:00"),
        )
    return min(timezone.make_aware(found) if timezone.is_naive(found) else found, timezone.now())
