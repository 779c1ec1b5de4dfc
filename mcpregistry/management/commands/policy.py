"""``manage.py policy``: try rules on past calls, or add the starter rules."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.text.display import number_of, show_invisible_characters
from mcpregistry.models import PolicyRule
from mcpregistry.services.policy.drafts import read_rules
from mcpregistry.services.policy.replay import ReplayReport, replay
from mcpregistry.services.policy.rules import add_starter_rules, check_rule

_TOOLS_SHOWN = 30


class Command(BaseCommand):
    """Judges the real calls of the last days by draft rules; saves nothing."""

    help = "Tests rules on past calls before they take effect, or adds the starter rules."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        test = verbs.add_parser(
            "test",
            help="Show which past calls a rule would have held, denied and allowed. Nothing is saved.",
        )
        which = test.add_mutually_exclusive_group(required=True)
        which.add_argument(
            "--rule", metavar="NAME", help="Name of an existing rule, which can be disabled."
        )
        which.add_argument(
            "--file",
            metavar="FILE",
            help="File with rules as YAML or JSON, or - for standard input.",
        )
        test.add_argument(
            "--days", type=_days, default=7, help="Number of past days to test on. Default: 7."
        )
        verbs.add_parser(
            "starter",
            help="Add the starter rules: allow tools that only read and reach nothing outside, and ask about tools that destroy something or act on the outside world.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            if options["verb"] == "starter":
                added = add_starter_rules(actor="manage.py policy")
                self.stdout.write(
                    "\n".join(f"added: {rule}" for rule in added)
                    or "The starter rules exist already."
                )
                return
            drafts = _read_drafts(options["rule"], options["file"])
            for draft in drafts:
                check_rule(draft)
            found = replay(
                drafts=drafts,
                days=options["days"],
                now=timezone.now(),
                on_progress=self._print_progress,
            )
        except SlipsnisseError as error:
            raise CommandError(str(error)) from None
        self._tell(found)

    def _print_progress(self, done: int, total: int) -> None:
        self.stderr.write(f"{done:,} of {total:,} calls\r", ending="")

    def _tell(self, report: ReplayReport) -> None:
        say = self.stdout.write
        say(
            f"{number_of(report.judged, 'call was', 'calls were')} tested (from the last {number_of(report.days, 'day')}). {report.changed:,} would end differently."
        )
        for count, why in (
            (report.erased, "not tested, because retention has deleted the arguments"),
            (
                report.gone,
                "not tested, because the agent, endpoint, server or tool no longer exists",
            ),
            (report.failed, "tested, but a condition could not be evaluated"),
        ):
            if count:
                say(f"{number_of(count, 'call was', 'calls were')} {why}.")
        say(
            f"\nWith the draft: {report.held:,} held, {report.denied:,} denied, {report.allowed:,} allowed."
        )
        for (before, after), count in sorted(report.moved.items()):
            if before is not after:
                say(f"{count:>8,}  {before} -> {after}")
        for change, count in report.changes.most_common(_TOOLS_SHOWN):
            names = f"{show_invisible_characters(change.agent, 100)}  {show_invisible_characters(change.tool, 200)}"
            say(f"{count:>8,}  {names}: {change.before} -> {change.after}")
        self._tell_tools(report)
        for example in report.examples:
            say(
                f"\n{example.at:%Y-%m-%d %H:%M} {example.agent} {show_invisible_characters(example.tool, 200)}: {example.before} -> {example.after}"
            )
            say(f"  {example.arguments}")

    def _tell_tools(self, report: ReplayReport) -> None:
        self.stdout.write(f"\n{'held':>8}{'denied':>8}{'allowed':>8}  tool")
        ordered = sorted(report.by_tool.items(), key=lambda pair: (-sum(pair[1].values()), pair[0]))
        for tool, counts in ordered[:_TOOLS_SHOWN]:
            figures = "".join(f"{counts[outcome]:>8,}" for outcome in ("ask", "deny", "allow"))  # type: ignore[index]
            self.stdout.write(f"{figures}  {show_invisible_characters(tool, 200)}")
        if len(ordered) > _TOOLS_SHOWN:
            self.stdout.write(
                f"{'':>24}  and {number_of(len(ordered) - _TOOLS_SHOWN, 'more tool')}"
            )


def _days(text: str) -> int:
    days = int(text)
    if not 1 <= days <= 3650:
        raise argparse.ArgumentTypeError(
            error_texts.say_out_of_range("The number of days", 1, 3650, days)
        )
    return days


def _read_drafts(name: str | None, file: str | None) -> list[PolicyRule]:
    if file:
        try:
            return read_rules(sys.stdin.read() if file == "-" else Path(file).read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(
                f"{file} cannot be read: {error}. Check its name and permissions."
            ) from None
    rules = list(
        PolicyRule.objects.filter(name=name).select_related(
            "agent", "endpoint", "tool", "server", "approvers"
        )
    )
    if not rules:
        known = ", ".join(f'"{rule}"' for rule in PolicyRule.objects.all()[:20]) or "none"
        raise CommandError(f"{error_texts.say_not_found('rule', name)} Existing rules: {known}.")
    return rules
