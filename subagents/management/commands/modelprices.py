"""``manage.py modelprices``: fill in prices and context windows of models from litellm's own
list."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand
from django.utils import timezone

from subagents.llm.client import load_litellm
from subagents.services.prices import take_over


class Command(BaseCommand):
    """Prints what it has filled in for each model."""

    help = (
        "Enters prices and context windows for your models from the list of litellm, without network access. Values that "
        "you have entered are kept."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--overwrite", action="store_true", help="Replace existing values too.")

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write("Reading the list. Loading litellm takes a few seconds.")
        found = take_over(
            load_litellm().model_cost,
            today=timezone.localdate(),
            actor="command",
            overwrite=options["overwrite"],
        )
        for each in found:
            if each.changed is None:
                self.stdout.write(
                    f"{each.model}: not in the list. Enter the prices in the admin, on the page of the model."
                )
            else:
                words = (
                    ", ".join(f"{name} {value}" for name, value in each.changed.items())
                    or "no changes"
                )
                self.stdout.write(f"{each.model}: {words}")
        if not found:
            self.stdout.write(
                "There are no models. Add them in the admin under Expert tools, Models."
            )
