"""``manage.py modelprices``: fill in prices and context windows of models from litellm's own list."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand
from django.utils import timezone

from subagents.llm.client import loaded
from subagents.services.prices import take_over


class Command(BaseCommand):
    """Prints what it has filled in for each model."""

    help = "Prices and windows for your models, from litellm's own list (no network). Keeps what you have entered."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--overwrite", action="store_true", help="also replace what is there already")

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write("Reading the list (this loads litellm, a few seconds)…")
        found = take_over(
            loaded().model_cost, today=timezone.localdate(), actor="command", overwrite=options["overwrite"]
        )
        for each in found:
            if each.changed is None:
                self.stdout.write(f"{each.model}: not in the list; enter its prices in the admin")
            else:
                words = ", ".join(f"{name} {value}" for name, value in each.changed.items()) or "nothing new"
                self.stdout.write(f"{each.model}: {words}")
        if not found:
            self.stdout.write("There are no models yet. Add some in the admin under Models.")
