"""``manage.py secondfactor``: for whoever has lost theirs, when no administrator can reset it."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError, CommandParser

from mcpregistry.domain import error_texts
from mcpregistry.services.access import second_factor


class Command(BaseCommand):
    """Resets one person's second factor, or lists who has one."""

    help = "Lists the users and their second factors. With --reset NAME, removes the second factor of a user who lost it."

    def add_arguments(self, parser: CommandParser) -> None:
        """One option."""
        parser.add_argument(
            "--reset", metavar="NAME", help="Remove the second factor of the user with this name."
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Reset or list."""
        if options["reset"]:
            self._reset(options["reset"])
            return
        users = User.objects.filter(is_active=True).order_by("username")
        if not users:
            self.stdout.write("The site has no enabled users.")
        for user in users:
            now = second_factor.load_factor_standing(user.pk)
            self.stdout.write(
                f"{user.username}: {'on' if now.uid else 'off'}{', required' if now.required else ''}"
            )

    def _reset(self, name: str) -> None:
        user = User.objects.filter(username=name).first()
        if user is None:
            raise CommandError(
                f"{error_texts.say_not_found('user', name)} {error_texts.advise_list('manage.py secondfactor')}"
            )
        gone = second_factor.reset_factor(user, by=None)
        self.stdout.write(
            f"The second factor of {name} was removed."
            if gone
            else f"{name} does not have a second factor."
        )
