"""``manage.py doctor``: examines a site and prints each finding with its remedy."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from django.core.management.base import BaseCommand

from controlplane import doctor, env


class Command(BaseCommand):
    """Prints the findings of ``controlplane.doctor``; with ``--env``, every environment
    variable."""

    help = (
        "Examines a running site: settings, keys, database, migrations, broker, worker and more. "
        "Exit code 1 if something is wrong."
    )
    requires_system_checks: list[str] = []  # ours are part of the examination

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--env",
            action="store_true",
            help="Print every environment variable that the site reads.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["env"]:
            self._print_variables()
            return
        findings = doctor.examine()
        for finding in findings:
            mark = self.style.SUCCESS("ok  ") if finding.ok else self.style.ERROR("BAD ")
            self.stdout.write(f"{mark} {finding.what}")
            if finding.remedy:
                self.stdout.write(f"     {finding.remedy}")
        if not all(finding.ok for finding in findings):
            sys.exit(1)

    def _print_variables(self) -> None:
        for variable in env.TABLE:
            state = "set" if _is_set(variable.name) else "default"
            value = (
                "(secret)"
                if variable.secret and state == "set"
                else env.text(variable.name) or "(empty)"
            )
            self.stdout.write(f"{variable.name}={value}  [{state}]\n    {variable.about}")


def _is_set(name: str) -> bool:
    return name in os.environ or f"{name}_FILE" in os.environ
