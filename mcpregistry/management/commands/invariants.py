"""``manage.py invariants``: check what must be true of the records at any time."""

from __future__ import annotations

import argparse
from typing import Any

from django.core.management.base import BaseCommand
from django.utils import timezone

from mcpregistry.domain.text.display import number_of, show_invisible_characters
from mcpregistry.services.upkeep.invariants.calls import check_invariants


class Command(BaseCommand):
    """Prints each invariant with how often it is broken, and examples."""

    help = "Checks that the records are consistent. Exit code 1 if a check fails."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--strict",
            action="store_true",
            help="Also check that nothing is left open. Use this only when all processes are stopped.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        findings = check_invariants(timezone.now(), strict=options["strict"])
        for finding in findings:
            verdict = (
                "ok"
                if not finding.violations
                else f"FAILED {number_of(finding.violations, 'time')}"
            )
            self.stdout.write(f"{verdict:<18}{finding.rule}")
            for place in finding.examples:
                self.stdout.write(f"{'':<18}  {show_invisible_characters(place, 200)}")
        broken = sum(1 for finding in findings if finding.violations)
        self.stdout.write(f"\n{len(findings)} invariants were checked, {broken} failed.")
        if broken:
            raise SystemExit(1)
